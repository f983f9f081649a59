"""The error of a collective that could not be completed."""

from collections.abc import Iterator
from contextlib import contextmanager

from collectives.ledger import Ledger


class CollectiveError(RuntimeError):
    """A transfer failed or did not come in time; the message names rank, step, chunk and peer.

    The tensor is left half-reduced and the process group must be taken as broken: destroy it and exit.

    ledger: how far each of this rank's transfers had got; None if it failed outside of a schedule.
    """

    def __init__(self, message: str, ledger: Ledger | None = None) -> None:
        super().__init__(message)
        self.ledger = ledger


@contextmanager
def naming_failures(doing: str) -> Iterator[None]:
    """Turn what torch.distributed raises in the block, a bare RuntimeError, into a CollectiveError.

    doing: the rank and what it was at, put in front of the first line of the cause.
    """
    try:
        yield
    except RuntimeError as error:
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        raise CollectiveError(f"{doing}: {cause}") from error
