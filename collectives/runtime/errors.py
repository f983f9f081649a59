"""The error of a collective that could not be completed."""

from collections.abc import Iterator
from contextlib import contextmanager

from collectives.runtime.flight_record import FlightRecord


class CollectiveError(RuntimeError):
    """A transfer failed or did not come in time; the message names rank, step, chunk and peer.

    At its end the message names the rank that failed first, the same on all ranks, where that can be found out: a
    neighbour that this rank was waiting for may have left only because it had lost another one.

    The tensor is left half-reduced, and the process group is broken: further collectives of it raise at once. Leave by
    sys.exit with a code other than 0, so that whoever started the ranks ends the others; with Gloo neither that nor
    dist.destroy_process_group before it waits for a peer. (Where torch's own collectives are under way as well, whose
    threads may abort a process that takes leave, os._exit is the sure way.)

    flight_record: how far each of this rank's transfers had got; None if it failed outside of a schedule.
    peer: the rank of the group that this rank was waiting for; None if it is not known.

        >>> try:
        ...     collectives.all_reduce(torch.ones(3))
        ... except collectives.CollectiveError as error:
        ...     print(error, error.flight_record.table() if error.flight_record else "")
        ...     sys.exit(1)
    """

    def __init__(self, message: str, flight_record: FlightRecord | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.flight_record = flight_record
        self.peer = peer
        self._cause = ""

    def add_cause(self, cause: str) -> None:
        """Put at the end of the message what made the transfer fail, unless that is there already."""
        if cause and not self._cause:
            self._cause = cause
            self.args = (f"{self}; {cause}",)


def is_timeout(error: BaseException) -> bool:
    """Whether Gloo says that nothing came in time, or that an earlier such failure has closed the connection."""
    text = str(error).lower()
    return "timed out" in text or "timeout" in text


def first_line(error: BaseException) -> str:
    """Return the first line of what it says."""
    return (str(error).strip() or repr(error)).splitlines()[0]


@contextmanager
def naming_failures(doing: str) -> Iterator[None]:
    """Turn what torch.distributed raises in the block, a bare RuntimeError, into a CollectiveError.

    doing: the rank and what it was at, put in front of the first line of the cause.
    """
    try:
        yield
    except RuntimeError as error:
        raise CollectiveError(f"{doing}: {first_line(error)}") from error
