"""`WorkerError`: a worker has ended, or cannot do what it should."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version


class WorkerError(OSError):
    """What went wrong with a worker, in one line; not with a task."""


@cache  # each task asks
def versions() -> dict[str, str]:
    """What workers must have the same version of, so that all of them find the same to the last bit."""
    return {name: version(name) for name in ("ringsim", "numpy")}


def require_same_version(needed: Mapping[str, str]) -> None:
    """Raises WorkerError, which names this host, where another version is installed than `needed` says."""
    for name, installed in versions().items():
        if installed != needed[name]:
            raise WorkerError(
                f"worker on {platform.node()}: {name} {installed} is installed, here it is {needed[name]}: must be the "
                "same"
            )
