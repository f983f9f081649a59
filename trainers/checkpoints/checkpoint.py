"""Checkpoints: a training run on disk, written so that a crash leaves either the old one or the new one whole."""

import hashlib
import io
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import BadZipFile, ZipFile

import torch

from ringsim.files import atomic_file
from trainers.checkpoints.fields import described, mismatch

FORMAT = "ringsim checkpoint"
VERSION = 3
MAX_EXPANDED_BYTES = 2**26  # of a tensor of which the file has less than all elements, as it is sparse or expanded
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run after `step` steps; read back, its tensors are on the CPU.

    config: numbers, strings and dicts of them, such as `dataclasses.asdict` gives.
    random_states: of each rank, as `random_state` gives them; empty if nobody means to go on from here.
    notes: what else the run must know to go on as if it had never stopped; as `config`.
    strategy_states: of each rank, what only it holds with a strategy that keeps a state; empty with others.
    """

    model_state: dict[str, Any]
    optimizer_state: dict[str, Any]
    config: dict[str, Any]
    step: int
    random_states: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    strategy_states: list[dict[str, Any]] = field(default_factory=list)


NAMES = tuple(part.name for part in fields(Checkpoint))
LATER: dict[str, Any] = {"strategy_states": []}  # what older files of this version do not have


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write `checkpoint`, replacing the one at `path` only once the new one is safely on disk.

    Raises OSError if it cannot be written; the old checkpoint, if any, is then untouched.
    """
    parts = {name: getattr(checkpoint, name) for name in NAMES}
    seals = {name: seal(value) for name, value in parts.items()}
    with atomic_file(path) as file:
        try:
            torch.save({"format": FORMAT, "version": VERSION, "seals": seals, **parts}, file)
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
    parts = {**LATER, **parts}
    if missing := [name for name in (*NAMES, "seals") if name not in parts]:
        raise ValueError(f"checkpoint {path}: lacks {', '.join(missing)}")
    for name in NAMES:
        if fault := _fault(name, parts[name]) or _excess(name, parts[name], len(content)):
            raise ValueError(f"checkpoint {path}: {fault}")
    seals = parts["seals"]
    for name in NAMES:
        if name in LATER and not parts[name]:
            continue
        if not isinstance(seals, dict) or seal(parts[name]) != seals.get(name):
            raise ValueError(f"checkpoint {path}: {name}: is not what was saved: somebody has changed it since")
    return Checkpoint(**{name: parts[name] for name in NAMES})


FORMS = {"model_state": {}, "optimizer_state": {}, "config": {}, "step": 0, "random_states": [], "notes": {}} | LATER


def _fault(name: str, value: Any) -> str | None:
    """What is wrong with a field, as far as can be said without knowing what is trained."""
    if fault := mismatch(name, value, FORMS[name], inside=False):
        return fault
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return f"{name}: has keys that are not names"
    if name == "step" and value < 0:
        return f"step: is {value}, must be at least 0"
    return None


def _excess(name: str, value: Any, file_bytes: int) -> str | None:
    """Return what is so large, though the file is not, that to look at it would take all memory, or for ever."""
    kinds = (torch.Tensor, dict, list, tuple)
    waiting, num_values = [(name, value, 0)] if isinstance(value, kinds) else [], 0
    while waiting:
        place, value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            if fault := _excess_of_tensor(place, value, file_bytes):
                return fault
            continue
        inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        num_values += len(inner)
        if num_values > file_bytes:  # lists that are in many lists, which are in many lists
            return f"{name}: has more than {file_bytes} values, which are more than the file has bytes"
        if depth > MAX_DEPTH:
            return f"{place[:80]}: is nested more than {MAX_DEPTH} deep"
        waiting += [(f"{place}.{key}", inside, depth + 1) for key, inside in inner if isinstance(inside, kinds)]
        waiting += [(place, key, depth + 1) for key, _ in inner if isinstance(key, tuple)]
    return None


def _excess_of_tensor(place: str, tensor: torch.Tensor, file_bytes: int) -> str | None:
    if tensor.is_nested or tensor.is_meta:
        return (
            f"{place}: is a {'nested' if tensor.is_nested else 'meta'} tensor: must be one with a number each element"
        )
    size_bytes, limit_bytes = tensor.numel() * tensor.element_size(), max(file_bytes, MAX_EXPANDED_BYTES)
    if size_bytes > limit_bytes:
        return f"{place}: is {described(tensor)}, which takes {size_bytes} bytes: must take at most {limit_bytes}"
    return None


def seal(value: Any) -> str:
    """A hash of all there is in a field, tensors bit for bit: what was changed later does not have it."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        dense = value if value.layout is torch.strided else value.to_dense()
        data = dense.detach().cpu().resolve_conj().contiguous().view(-1)
        digest.update(data.view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)};".encode())
        for key, inner in value.items():
            _feed(digest, key)
            _feed(digest, inner)
    elif isinstance(value, list | tuple):
        digest.update(f"{'list' if isinstance(value, list) else 'tuple'} {len(value)};".encode())
        for inner in value:
            _feed(digest, inner)
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())


def _parse(content: bytes | bytearray, path: str | os.PathLike[str]) -> object:
    file = cast(BinaryIO, io.BytesIO(content))
    try:
        # torch.save writes a zip file with checksums, but torch.load does not look at them.
        zipped = ZipFile(file)
        if sum(info.file_size for info in zipped.infolist()) > len(content):  # compressed, which torch.save does not do
            raise BadZipFile("is larger than the file")
        if damaged := zipped.testzip():
            raise BadZipFile(damaged)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what is raised for a damaged file depends on where the damage is
        raise ValueError(f"checkpoint {path}: is truncated, damaged or not a checkpoint") from error
