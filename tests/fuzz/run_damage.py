"""`Damage`: what happens to the files of a run that was interrupted, drawn at random."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.hostile_content import flipped, other_line, truncated
from trainers.checkpoints.output import CheckpointFolder

Place = tuple[Any, ...]
Change = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Damage:
    """kind: one of KINDS. seed: of all that is drawn for it, such as where the file is cut."""

    kind: str
    seed: int

    @property
    def is_of_log(self) -> bool:
        """Whether it is done to the log, not to a checkpoint."""
        return self.kind in OF_LOG

    def do(self, output: Path) -> bool:
        """Do it to the newest checkpoint, or to the log; False if there is none yet."""
        path = output / "log.jsonl"
        if not self.is_of_log:
            found = CheckpointFolder(output).newest_first()
            if not found:
                return False
            path = found[0]
        if not path.exists() or not path.stat().st_size:
            return False
        before = path.read_bytes()
        KINDS[self.kind](path, random.Random(self.seed))
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


def _edit(path: Path, draw: random.Random) -> None:
    """As somebody may who has torch: the file is whole, but not what this program has saved."""
    try:
        parts = torch.load(path, weights_only=True)
    except Exception:  # what was done to it before is enough
        return
    place = draw.choice(list(_leaves({name: parts[name] for name in parts if name != "format"})))
    _change(parts, place, draw.choice((_drop, _other_type, _other_value)))
    torch.save(parts, path)


def _leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where in nested dicts something stands."""
    items: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        items = list(enumerate(value))
    for key, inner in items:
        yield from _leaves(inner, (*place, key))
    if not items and place:
        yield place


def _change(parts: Any, place: Place, change: Callable[[Any, Any], None]) -> None:
    holder = parts
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])


def _drop(holder: Any, key: Any) -> None:
    del holder[key]


def _other_type(holder: Any, key: Any) -> None:
    holder[key] = "something else"


def _other_value(holder: Any, key: Any) -> None:
    value = holder[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_tensor = isinstance(value, torch.Tensor) and value.numel() > 0
    holder[key] = value + 1 if is_number or is_tensor else "something else"


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _scribbled(draw: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice((b"\0" * 40, b"nonsense\n", b'{"step": "4"}\n', b"[]\n")))
    return b"".join(lines)


def _rewrite(content: Callable[[random.Random, bytes], bytes]) -> Change:
    def change(path: Path, draw: random.Random) -> None:
        path.write_bytes(content(draw, path.read_bytes()))

    return change


OF_CHECKPOINT: dict[str, Change] = {
    "truncate": _rewrite(truncated),
    "flip": _rewrite(flipped),
    "swap": _swap,
    "edit": _edit,
    "remove": _remove,
}
OF_LOG: dict[str, Change] = {
    "truncate the log": _rewrite(truncated),
    "flip bytes of the log": _rewrite(flipped),
    "lose, repeat or move a line of the log": _rewrite(other_line),
    "scribble into the log": _rewrite(_scribbled),
    "remove the log": _remove,
}
KINDS = {**OF_CHECKPOINT, **OF_LOG}
