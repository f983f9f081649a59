"""`CheckpointFolder`: the checkpoints of one run, named by their steps; the newest few are kept."""

import re
from contextlib import suppress
from pathlib import Path

NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)\.pt")
UNFINISHED = ".checkpoint-*.pt.*.tmp"  # what `atomic_file` leaves when it is killed


class CheckpointFolder:
    """The directory need not be there before something is written. Importing this loads no torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Of the checkpoint after `step` steps, whether it is there or not."""
        return self.folder / f"checkpoint-{step}.pt"

    def newest_first(self) -> list[Path]:
        """Whatever has the name of a checkpoint; whether it is a good one is to be found out."""
        steps = [int(match[1]) for each in self._listed() if (match := NAME.fullmatch(each.name))]
        return [self.path(step) for step in sorted(set(steps), reverse=True)]

    def prune(self, step: int, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints of those up to `step`.

        Later ones are left alone: if they were any good, the run would not have begun before them.
        """
        for path in [path for path in self.newest_first() if _step_of(path) <= step][keep:]:
            path.unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete what a run that was killed while it wrote a checkpoint has left."""
        with suppress(OSError):  # they are in nobody's way
            for path in self.folder.glob(UNFINISHED):
                path.unlink(missing_ok=True)

    def _listed(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []


def _step_of(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
