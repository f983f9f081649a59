"""Checkpoints: a training run on disk; a crash leaves either the old file or the new file whole.

A file is the output of `torch.save` and its SHA-256. Random states are tensors and numbers: reading runs no code.
"""

import hashlib
import io
import os
import random
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch

from ringsim.files import atomic_file, read_regular

RandomState = dict[str, Any]

MT_WORDS = 624  # of the state of the Mersenne Twister, in NumPy and Python
FORMAT = "ringsim checkpoint"
VERSION = 4
DIGEST_BYTES = hashlib.sha256().digest_size
MAX_EXPANDED_BYTES = 2**26  # of a sparse or expanded tensor, which is larger than its data in the file


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run after `step` steps; when read, on the CPU.

    config, notes: numbers, strings and dicts of them. random_states, strategy_states: by rank, or empty.
    """

    model_state: dict[str, Any]
    optimizer_state: dict[str, Any]
    config: dict[str, Any]
    step: int
    random_states: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    strategy_states: list[dict[str, Any]] = field(default_factory=list)


NAMES = tuple(part.name for part in fields(Checkpoint))
KINDS = {"step": int, "random_states": list, "strategy_states": list}  # the others are dicts


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write `checkpoint`; replace the file at `path` only when the new one is on disk. Raises OSError."""
    parts = {name: getattr(checkpoint, name) for name in NAMES}
    with atomic_file(path) as file:
        try:
            torch.save({"format": FORMAT, "version": VERSION, **parts}, file)
        except RuntimeError as error:
            raise _cause(error) from error
        file.flush()
        with Path(file.name).open("rb") as written:
            file.write(hashlib.file_digest(written, "sha256").digest())


def _cause(error: BaseException) -> BaseException:
    """Return the file's error, such as a full disk, which torch reports as an unexpected position."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint without running code. Raises ValueError for a missing, damaged or other file."""
    return checkpoint_of(read_checkpoint(path), path)


def read_checkpoint(path: str | os.PathLike[str]) -> bytes:
    """Return the file's content. Raises ValueError if it cannot be read."""
    return read_regular(path, f"checkpoint {path}")


def checkpoint_of(content: bytes | bytearray, path: str | os.PathLike[str]) -> Checkpoint:
    """Parse a checkpoint file's content. path: for messages. Raises ValueError like `load_checkpoint`."""
    if hashlib.sha256(memoryview(content)[:-DIGEST_BYTES]).digest() != content[-DIGEST_BYTES:]:
        raise ValueError(f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version")
    try:
        parts = _parsed(content)
    except Exception as error:  # with the right hash, so the file was made on purpose
        raise ValueError(f"checkpoint {path}: cannot be read without running code, or in bounded memory") from error
    header = [parts.get(name) for name in ("format", "version")] if isinstance(parts, dict) else []
    if header != [FORMAT, VERSION] or not all(isinstance(parts.get(name), KINDS.get(name, dict)) for name in NAMES):
        raise ValueError(f"checkpoint {path}: was not written by this version of the program")
    return Checkpoint(**{name: parts[name] for name in NAMES})


def _parsed(content: bytes | bytearray) -> Any:
    """Parse without running code. Raises for results that need more memory than the file justifies."""
    file = io.BytesIO(content)
    if sum(info.file_size for info in ZipFile(file).infolist()) > len(content):  # torch.save does not compress
        raise BadZipFile("is larger than the file")
    file.seek(0)
    parts = torch.load(file, map_location="cpu", weights_only=True)
    waiting, num_values = [parts], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            size_bytes = value.numel() * value.element_size()
            if value.is_nested or value.is_meta or size_bytes > max(len(content), MAX_EXPANDED_BYTES):
                raise MemoryError("a tensor without its own numbers, or one that is much larger than the file")
        elif isinstance(value, dict | list | tuple):
            num_values += len(value)
            if num_values > len(content):  # lists that share lists
                raise MemoryError(f"more than {len(content)} values")
            waiting += value.values() if isinstance(value, dict) else value
    return parts


def seed_alike(seed: int) -> None:
    """Seed all generators equally on every rank, to draw the initial weights."""
    _seed(np.random.SeedSequence(seed))


def seed_apart(seed: int, step: int, rank: int) -> None:
    """Seed all generators differently for each rank and step, to train from `step` on."""
    _seed(np.random.SeedSequence(seed, spawn_key=(step, rank)))


def _seed(sequence: np.random.SeedSequence) -> None:
    words = sequence.generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # of CUDA's too
    random.seed(int(words[2]))
    np.random.seed(int(words[3]))


def random_state(device: str) -> RandomState:
    """Return the states of all generators of this process and its GPU."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    words_of_numpy = numpy_state["state"]["key"].astype(np.int64)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device != "cpu" else None,
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": torch.from_numpy(words_of_numpy)}},
    }


def set_random_state(state: RandomState, device: str) -> None:
    """Restore a `random_state`. Raises ValueError, TypeError, KeyError or RuntimeError for other values."""
    position = state["numpy"]["state"]["pos"]
    if not 0 <= position <= MT_WORDS:  # NumPy takes any, and would read beyond its words
        raise ValueError(f"random state of NumPy: the position {position} is not in 0 to {MT_WORDS}")
    if device != "cpu" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    torch.set_rng_state(state["torch"])
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    key = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
