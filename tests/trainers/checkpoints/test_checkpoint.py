"""A checkpoint gives back what was saved, is refused when damaged, and never replaces a good one by half a file."""

import hashlib
import io
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from tests.refusals import refused
from trainers.checkpoints import checkpoint as checkpoints
from trainers.checkpoints.checkpoint import Checkpoint, load_checkpoint, random_state, save_checkpoint


def trained_state(step: int = 7) -> Checkpoint:
    """A small layer after one AdamW step: the optimizer then has moments to save."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.25)
    layer(torch.arange(3.0)).sum().backward()
    optimizer.step()
    config = {"d_model": 128, "learning_rate": 0.25, "data": "topics", "clip_norm": None}
    states = layer.state_dict(), optimizer.state_dict()
    return Checkpoint(*states, config, step, [random_state("cpu")], notes={"losses": [0.1, 2.5]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A saved checkpoint of `trained_state`, alone in its directory."""
    path = tmp_path / "run.pt"
    save_checkpoint(path, trained_state())
    return path


def test_a_checkpoint_comes_back_equal(path: Path) -> None:
    """Weights, both moments of the optimizer, configuration, step and notes; nothing else is left in the directory."""
    saved, loaded = trained_state(), load_checkpoint(path)
    assert (loaded.config, loaded.step, loaded.notes) == (saved.config, 7, saved.notes)
    torch.testing.assert_close(loaded.model_state, dict(saved.model_state), rtol=0, atol=0)
    assert loaded.optimizer_state["param_groups"] == saved.optimizer_state["param_groups"]
    torch.testing.assert_close(loaded.optimizer_state["state"], saved.optimizer_state["state"], rtol=0, atol=0)
    assert list(path.parent.iterdir()) == [path]


DAMAGED = "is truncated, damaged or not a checkpoint of this version"
UNSAFE = "cannot be read without running code, or in bounded memory"
OF_ANOTHER_VERSION = "was not written by this version of the program"


def with_hash(content: bytes) -> bytes:
    """Return the content of a file that somebody has made with care."""
    return content + hashlib.sha256(content).digest()


def flipped(content: bytes) -> bytes:
    """Change a bit of a weight, as a bad disk does: torch.load alone would take it."""
    weight = trained_state().model_state["weight"].numpy().tobytes()
    assert content.count(weight) == 1
    return content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:])


def saved(value: object) -> bytes:
    """Save anything as torch does."""
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


def edited(field: str, make: Callable[[], object], content: bytes) -> bytes:
    """Let a field of a checkpoint hold something else, with the right hash."""
    return with_hash(saved(torch.load(io.BytesIO(content), weights_only=True) | {field: {"w": make()}}))


def compressed(content: bytes) -> bytes:
    """Compress the parts of a file, which then could be of any size."""
    file = io.BytesIO()
    with ZipFile(io.BytesIO(content)) as plain, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    return with_hash(file.getvalue())


def in_many_lists() -> list[Any]:
    """One number in 2 ** 40 places."""
    value: list[Any] = [0]
    for _ in range(40):
        value = [value, value]
    return value


class Touch:
    """Would make a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("touched",)


HEADER = {"format": "ringsim checkpoint", "version": 4}
BAD: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": (DAMAGED, lambda _: b""),
    "one byte": (DAMAGED, lambda content: content[:1]),
    "half": (DAMAGED, lambda content: content[: len(content) // 2]),
    "a byte short": (DAMAGED, lambda content: content[:-1]),
    "flipped": (DAMAGED, flipped),
    "text": (DAMAGED, lambda _: b"hello\n"),
    "of another program": (DAMAGED, lambda _: saved({"model_state": {}})),
    "no dict": (OF_ANOTHER_VERSION, lambda _: with_hash(saved([1, 2]))),
    "older": (OF_ANOTHER_VERSION, lambda _: with_hash(saved(HEADER | {"version": 3}))),
    "in part": (OF_ANOTHER_VERSION, lambda _: with_hash(saved(HEADER | {"model_state": {}, "config": {}, "step": 1}))),
    "of other types": (OF_ANOTHER_VERSION, lambda _: with_hash(saved(HEADER | dict.fromkeys(checkpoints.NAMES, "7")))),
    "with code": (UNSAFE, lambda _: with_hash(saved(HEADER | {"config": Touch()}))),
    "expanded": (UNSAFE, partial(edited, "model_state", lambda: torch.zeros(1).expand(10**6, 10**6))),
    "sparse": (UNSAFE, partial(edited, "model_state", partial(torch.sparse_coo_tensor, size=(10**6, 10**6)))),
    "meta": (UNSAFE, partial(edited, "optimizer_state", lambda: torch.zeros(3, device="meta"))),
    "nested": (UNSAFE, partial(edited, "model_state", lambda: [torch.nested.nested_tensor([torch.zeros(2)])])),
    "in many lists": (UNSAFE, partial(edited, "notes", in_many_lists)),
    "compressed": (UNSAFE, compressed),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_checkpoint_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Wherever it was cut off or changed, and though the hash may be right; it runs no code and takes no memory."""
    monkeypatch.chdir(path.parent)
    reason, damage = BAD[name]
    path.write_bytes(damage(path.read_bytes()))
    with refused(f"checkpoint {path}: {reason}"):
        load_checkpoint(path)
    assert list(path.parent.iterdir()) == [path]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A file that is missing, a directory, and what would never end."""
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with refused(f"checkpoint {path}: cannot be read: not a regular file"):
            load_checkpoint(path)
    with refused(f"checkpoint {tmp_path}/missing.pt: cannot be read: No such file or directory"):
        load_checkpoint(tmp_path / "missing.pt")


@pytest.mark.parametrize("failing", ["fsync", "replace", ""])
def test_a_failed_write_keeps_the_old_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A full disk, before or at the renaming, costs the new checkpoint only, and leaves no temporary file."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if failing:
        monkeypatch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space left on device"):
            save_checkpoint(path, trained_state(step=8))
        monkeypatch.undo()
    else:
        save_checkpoint(path, trained_state(step=8))
    assert load_checkpoint(path).step == (7 if failing else 8)
    assert list(path.parent.iterdir()) == [path]


def drawn() -> tuple[float, ...]:
    """A few numbers of each generator; the normal ones come in pairs, of which the second is kept."""
    normal = random.gauss(0, 1), np.random.normal(), torch.randn(()).item()
    return (*normal, random.random(), np.random.random(), torch.rand(()).item())


def test_random_states_come_back(path: Path) -> None:
    """Out of a checkpoint, in the middle of a pair of normal numbers, for all three generators."""
    checkpoints.seed_apart(3, 0, 1)
    drawn()
    save_checkpoint(path, replace(trained_state(), random_states=[random_state("cpu")]))
    expected = [drawn(), drawn()]
    checkpoints.seed_alike(0)
    checkpoints.set_random_state(load_checkpoint(path).random_states[0], "cpu")
    assert [drawn(), drawn()] == expected


def test_no_two_ranks_or_steps_draw_the_same() -> None:
    """Nor do they draw what the weights were drawn from."""
    places = [(seed, step, rank) for seed in (0, 1) for step in (0, 1, 2) for rank in (0, 1, 2)]

    def all_drawn() -> Iterable[tuple[float, ...]]:
        for place in places:
            checkpoints.seed_apart(*place)
            yield drawn()
        for seed in (0, 1):
            checkpoints.seed_alike(seed)
            yield drawn()

    found = list(all_drawn())
    assert all(len({*of_one_generator}) == len(found) for of_one_generator in zip(*found, strict=True))
    assert found == list(all_drawn())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0).expand(1000, 3), torch.eye(4).to_sparse(), torch.arange(4.0).view(2, 2).t(),
        torch.tensor([1j, 2]).conj(), torch.zeros(0, 3), torch.tensor([1j, 2]).conj().imag, torch.tensor(2.0),
    ],
)  # fmt: skip
def test_tensors_of_all_layouts_come_back(path: Path, tensor: torch.Tensor) -> None:
    """A model may have such a buffer."""
    save_checkpoint(path, replace(trained_state(), model_state={"buffer": tensor}))
    found = load_checkpoint(path).model_state["buffer"]
    torch.testing.assert_close(found.to_dense(), tensor.to_dense(), rtol=0, atol=0)
