"""Checkpoints: a training run on disk, written so that a crash leaves either the old one or the new one whole."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from ringsim.atomic_file import atomic_file

FORMAT = "ringsim checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What `save_checkpoint` was given; tensors are on the CPU."""

    model_state: dict[str, Any]
    optimizer_state: dict[str, Any]
    config: dict[str, Any]
    step: int


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model_state: dict[str, Any],
    optimizer_state: dict[str, Any],
    config: dict[str, Any],
    step: int,
) -> None:
    """Write a checkpoint, replacing the one at `path` only once the new one is safely on disk.

    config: numbers and strings, such as `dataclasses.asdict` gives. step: how many steps have been done.

    Raises OSError if it cannot be written; the old checkpoint, if any, is then untouched.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model_state": model_state,
        "optimizer_state": optimizer_state,
        "config": config,
        "step": step,
    }
    with atomic_file(path) as file:
        torch.save(content, file)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `save_checkpoint` wrote; runs no code that the file may contain.

    Raises ValueError for a file that is missing, truncated, damaged, or not a checkpoint of this version.
    """
    content = _read(Path(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"checkpoint {path}: was not written by this program")
    if content.get("version") != VERSION:
        raise ValueError(f"checkpoint {path}: has version {content.get('version')}; this program reads {VERSION}")
    return Checkpoint(content["model_state"], content["optimizer_state"], content["config"], content["step"])


def _read(path: Path) -> object:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"checkpoint {path}: cannot be read: {error.strerror}") from error
    with file:
        try:
            # torch.save writes a zip file with checksums, but torch.load does not look at them.
            if damaged := ZipFile(file).testzip():
                raise BadZipFile(damaged)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what is raised for a damaged file depends on where the damage is
            raise ValueError(f"checkpoint {path}: is truncated, damaged or not a checkpoint") from error
