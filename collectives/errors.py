"""The error of a collective that could not be completed."""


class CollectiveError(RuntimeError):
    """A transfer failed or did not come in time; the message names rank, step, chunk and peer.

    The tensor is left half-reduced and the process group must be taken as broken: destroy it and exit.
    """
