"""`Damage`: what happens to the files of a run that was interrupted, drawn at random."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.hostile_content import flipped, other_line, truncated
from trainers.checkpoints.output import CheckpointFolder


def _scribbled(draw: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice((b"\0" * 40, b"nonsense\n", b'{"step": "4"}\n', b"[]\n")))
    return b"".join(lines)


REWRITTEN: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "truncate": truncated, "flip": flipped, "truncate the log": truncated, "flip bytes of the log": flipped,
    "lose, repeat or move a line of the log": other_line, "scribble into the log": _scribbled,
}  # fmt: skip
KINDS = (*REWRITTEN, "swap", "remove", "remove the log")


@dataclass(frozen=True)
class Damage:
    """kind: one of KINDS. seed: of all that is drawn for it, such as where the file is cut."""

    kind: str
    seed: int

    @property
    def is_of_log(self) -> bool:
        """Whether it is done to the log, not to a checkpoint."""
        return self.kind.endswith("log")

    def do(self, output: Path) -> bool:
        """Do it to the newest checkpoint, or to the log; False if there is none yet."""
        files = [output / "log.jsonl"] if self.is_of_log else CheckpointFolder(output).newest_first()
        if not files or not files[0].exists() or not files[0].stat().st_size:
            return False
        path, draw, before = files[0], random.Random(self.seed), files[0].read_bytes()
        if self.kind in REWRITTEN:
            path.write_bytes(REWRITTEN[self.kind](draw, before))
        elif self.kind == "swap":
            _swap(path, draw)
        else:
            path.unlink()
        return not path.exists() or path.read_bytes() != before


def _swap(path: Path, draw: random.Random) -> None:
    """With another one, or under another name where there is none."""
    others = CheckpointFolder(path.parent).newest_first()[1:]
    if not others:
        path.rename(path.with_name(f"checkpoint-{CheckpointFolder.step_of(path) + draw.randrange(1, 5)}.pt"))
        return
    other = draw.choice(others)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
