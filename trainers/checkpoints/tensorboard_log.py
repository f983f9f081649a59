"""`TensorBoardLog`: the figures of a run's log as curves for TensorBoard."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"  # in the output directory
ADVICE = "needs tensorboard, which is not installed: pip install 'ringsim[tensorboard]'"


def require_tensorboard() -> None:
    """Raises ValueError, which says how to install it, if it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(f"--tensorboard: {ADVICE}")


class TensorBoardLog:
    """Each number of a line is a scalar of the same name at the line's "step", one of a dict "evaluation/loss".

    Written by one rank.

    begin: at which step the run begins. TensorBoard leaves out what an earlier run has written of later steps into the
    same directory, as `StepLog` drops such lines.

    Raises ValueError if TensorBoard is not installed, OSError if the directory cannot be written.
    """

    def __init__(self, folder: Path, begin: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra, and loads seconds of modules

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = SummaryWriter(str(folder), purge_step=begin + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the figures of a line; they are in the file when this returns."""
        for name, value in _named(line):
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        """No line is to come any more."""
        self._writer.close()


def _named(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{inner}", number) for inner, number in value.items())
        else:
            yield name, value
