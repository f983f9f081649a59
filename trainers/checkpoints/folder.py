"""`CheckpointFolder`: the checkpoints of one run, named by their steps; the newest few are kept."""

import re
from contextlib import suppress
from pathlib import Path

from ringsim.files import atomic_file

NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)\.pt")
OPTIONS_FILE = "run.toml"
NAMES = ("checkpoint-*.pt", "log.jsonl", "result.json", OPTIONS_FILE)
UNFINISHED = tuple(f".{name}.*.tmp" for name in NAMES)  # by `atomic_file`, when killed


def save_options(output: Path, text: str) -> None:
    """Write the options of a run. Raises OSError if they cannot be written."""
    with atomic_file(output / OPTIONS_FILE) as file:
        file.write(text.encode(errors="replace"))  # a path may hold bytes that are no text


class CheckpointFolder:
    """The directory need not be there before something is written. Importing this loads no torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def step_of(path: Path) -> int:
        """After how many steps a checkpoint was written, by its name."""
        match = NAME.fullmatch(path.name)
        assert match is not None
        return int(match[1])

    def path(self, step: int) -> Path:
        """Of the checkpoint after `step` steps, whether it is there or not."""
        return self.folder / f"checkpoint-{step}.pt"

    def newest_first(self) -> list[Path]:
        """Whatever has the name of a checkpoint; whether it is a good one is to be found out."""
        steps = [int(match[1]) for path in self._listed() if (match := NAME.fullmatch(path.name))]
        return [self.path(step) for step in sorted(set(steps), reverse=True)]

    def prune(self, step: int, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints of those up to `step`.

        Later ones are left alone: if they were any good, the run would not have begun before them.
        """
        for path in [path for path in self.newest_first() if self.step_of(path) <= step][keep:]:
            path.unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete what a run that was killed while it wrote a file has left.

        A later one may have the number of its process, as in a container, and would take the name for its own.
        """
        with suppress(OSError):
            for path in (path for pattern in UNFINISHED for path in self.folder.glob(pattern)):
                path.unlink(missing_ok=True)

    def _listed(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []
