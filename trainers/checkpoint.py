"""Checkpoints: a training run on disk, written so that a crash leaves either the old one or the new one whole."""

import io
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import BadZipFile, ZipFile

import torch

from ringsim.atomic_file import atomic_file

FORMAT = "ringsim checkpoint"
VERSION = 2


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run after `step` steps; read back, its tensors are on the CPU.

    config: numbers, strings and dicts of them, such as `dataclasses.asdict` gives.
    random_states: of each rank, as `random_state` gives them; empty if nobody means to go on from here.
    notes: what else the run must know to go on as if it had never stopped; as `config`.
    """

    model_state: dict[str, Any]
    optimizer_state: dict[str, Any]
    config: dict[str, Any]
    step: int
    random_states: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


NAMES = tuple(part.name for part in fields(Checkpoint))


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write `checkpoint`, replacing the one at `path` only once the new one is safely on disk.

    Raises OSError if it cannot be written; the old checkpoint, if any, is then untouched.
    """
    parts = {name: getattr(checkpoint, name) for name in NAMES}
    with atomic_file(path) as file:
        try:
            torch.save({"format": FORMAT, "version": VERSION, **parts}, file)
        except RuntimeError as error:
            raise _cause(error) from error


def _cause(error: BaseException) -> BaseException:
    """What the file said: torch tells of a full disk as a position that it did not expect."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `save_checkpoint` wrote; runs no code that the file may contain.

    Raises ValueError for a file that is missing, truncated, damaged, or not a checkpoint of this version.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"checkpoint {path}: cannot be read: {error.strerror}") from error
    return checkpoint_of(content, path)


def checkpoint_of(content: bytes | bytearray, path: str | os.PathLike[str]) -> Checkpoint:
    """The same for a file that has been read. path: for the messages."""
    parts = _parse(content, path)
    if not isinstance(parts, dict) or parts.get("format") != FORMAT:
        raise ValueError(f"checkpoint {path}: was not written by this program")
    if parts.get("version") != VERSION:
        raise ValueError(f"checkpoint {path}: has version {parts.get('version')}; this program reads {VERSION}")
    if missing := [name for name in NAMES if name not in parts]:
        raise ValueError(f"checkpoint {path}: lacks {', '.join(missing)}")
    return Checkpoint(**{name: parts[name] for name in NAMES})


def _parse(content: bytes | bytearray, path: str | os.PathLike[str]) -> object:
    file = cast(BinaryIO, io.BytesIO(content))
    try:
        # torch.save writes a zip file with checksums, but torch.load does not look at them.
        if damaged := ZipFile(file).testzip():
            raise BadZipFile(damaged)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what is raised for a damaged file depends on where the damage is
        raise ValueError(f"checkpoint {path}: is truncated, damaged or not a checkpoint") from error
