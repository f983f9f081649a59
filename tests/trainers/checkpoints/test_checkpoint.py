"""A checkpoint gives back what was saved, is refused when damaged, and never replaces a good one by half a file."""

import hashlib
import io
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from trainers.checkpoints.checkpoint import (
    NAMES,
    Checkpoint,
    load_checkpoint,
    random_state,
    save_checkpoint,
    seed_alike,
    seed_apart,
    set_random_state,
)

UNSAFE = "cannot be read without running code, or in bounded memory"


def trained_state(step: int = 7) -> Checkpoint:
    """A small layer after one AdamW step: the optimizer then has moments to save."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.25)
    layer(torch.arange(3.0)).sum().backward()
    optimizer.step()
    return Checkpoint(
        model_state=layer.state_dict(),
        optimizer_state=optimizer.state_dict(),
        config={"d_model": 128, "learning_rate": 0.25, "data": "topics", "clip_norm": None},
        step=step,
        random_states=[random_state("cpu")],
        notes={"losses": [0.1, 2.5]},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A saved checkpoint of `trained_state`, alone in its directory."""
    path = tmp_path / "run.pt"
    save_checkpoint(path, trained_state())
    return path


def refusal(path: Path) -> str:
    """The message with which `load_checkpoint` refuses."""
    with pytest.raises(ValueError, match=r"^checkpoint ") as caught:
        load_checkpoint(path)
    return str(caught.value)


def test_a_checkpoint_comes_back_equal(path: Path) -> None:
    """Weights, both moments of the optimizer, configuration, step and notes; nothing else is left in the directory."""
    saved = trained_state()
    loaded = load_checkpoint(path)
    assert (loaded.config, loaded.step, loaded.notes) == (saved.config, 7, saved.notes)
    torch.testing.assert_close(loaded.model_state, dict(saved.model_state), rtol=0, atol=0)
    assert loaded.optimizer_state["param_groups"] == saved.optimizer_state["param_groups"]
    torch.testing.assert_close(loaded.optimizer_state["state"], saved.optimizer_state["state"], rtol=0, atol=0)
    assert list(path.parent.iterdir()) == [path]


def test_a_truncated_checkpoint_is_refused_by_name(path: Path) -> None:
    """Wherever it was cut off, the message is one line with the file's name."""
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refusal(path) == f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version"


def test_a_changed_bit_is_refused(path: Path) -> None:
    """Weights that a bad disk has altered are not trained on, though torch.load alone would take them."""
    content = path.read_bytes()
    weight = trained_state().model_state["weight"].numpy().tobytes()
    assert content.count(weight) == 1
    changed = bytearray(content)
    changed[content.index(weight)] ^= 1
    path.write_bytes(changed)
    assert refusal(path) == f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version"


def test_other_files_are_refused(path: Path) -> None:
    """A file that is missing, no torch file, another program's or of another version is refused as that."""
    missing = path.with_name("missing.pt")
    assert refusal(missing) == f"checkpoint {missing}: cannot be read: No such file or directory"
    os.mkfifo(path.with_name("pipe"))  # which nobody writes to: opening it would never end
    for other in (path.parent, path.with_name("pipe"), Path("/dev/zero")):
        assert refusal(other) == f"checkpoint {other}: cannot be read: not a regular file"
    path.write_text("hello\n")
    assert refusal(path) == f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version"
    torch.save({"model_state": {}}, path)
    assert refusal(path) == f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version"


def save_with_hash(path: Path, content: object) -> None:
    """Save anything as `save_checkpoint` would, with the right hash."""
    torch.save(content, path)
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"format": "ringsim checkpoint", "version": 3},
        {"format": "ringsim checkpoint", "version": 4, "model_state": {}, "config": {}, "step": 1},
        {"format": "ringsim checkpoint", "version": 4, **dict.fromkeys(NAMES, "7")},
    ],
)
def test_what_is_no_checkpoint_is_refused_though_the_hash_is_right(path: Path, content: object) -> None:
    """As of another version, or made by somebody."""
    save_with_hash(path, content)
    assert refusal(path) == f"checkpoint {path}: was not written by this version of the program"


def test_what_was_saved_again_is_refused(path: Path) -> None:
    """By somebody who has torch, and changed a field: it is not what this program has saved."""
    parts = torch.load(path, weights_only=True)
    parts["config"]["learning_rate"] = 0.5
    torch.save(parts, path)
    assert refusal(path) == f"checkpoint {path}: is truncated, damaged or not a checkpoint of this version"


def test_a_checkpoint_runs_no_code(path: Path) -> None:
    """A pickle that would call a function when loaded is refused, and does not call it."""
    victim = path.with_name("victim")
    victim.mkdir()

    class Remove:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.rmdir, (str(victim),)

    save_with_hash(path, {"format": "ringsim checkpoint", "version": 4, "config": Remove()})
    assert refusal(path) == f"checkpoint {path}: {UNSAFE}"
    assert victim.is_dir()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A full disk, before or at the renaming, costs the new checkpoint only, and leaves no temporary file."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left on device"):
        save_checkpoint(path, trained_state(step=8))
    monkeypatch.undo()
    assert load_checkpoint(path).step == 7
    assert list(path.parent.iterdir()) == [path]


def test_the_next_checkpoint_replaces_the_last(path: Path) -> None:
    """Saving again under the same name leaves the newer one."""
    save_checkpoint(path, trained_state(step=8))
    assert load_checkpoint(path).step == 8


def drawn() -> list[float]:
    """A few numbers of each generator; the normal ones come in pairs, of which the second is kept."""
    normal = [random.gauss(0, 1), np.random.normal(), torch.randn(()).item()]
    return [*normal, random.random(), np.random.random(), torch.rand(()).item()]


def test_random_states_come_back(path: Path) -> None:
    """Out of a checkpoint, in the middle of a pair of normal numbers, for all three generators."""
    seed_apart(3, 0, 1)
    drawn()
    save_checkpoint(path, replace(trained_state(), random_states=[random_state("cpu")]))
    expected = [drawn(), drawn()]
    seed_alike(0)
    set_random_state(load_checkpoint(path).random_states[0], "cpu")
    assert [drawn(), drawn()] == expected


def test_no_two_ranks_or_steps_draw_the_same() -> None:
    """Nor do they draw what the weights were drawn from."""

    def first(seed: Any, *place: int) -> tuple[float, ...]:
        seed(*place)
        return tuple(drawn())

    places = [(seed, step, rank) for seed in (0, 1) for step in (0, 1, 2) for rank in (0, 1, 2)]
    found = [first(seed_apart, *place) for place in places] + [first(seed_alike, 0), first(seed_alike, 1)]
    for of_one_generator in zip(*found, strict=True):
        assert len(set(of_one_generator)) == len(found)
    assert first(seed_apart, 1, 2, 2) == found[places.index((1, 2, 2))]


def in_many_lists() -> list[Any]:
    """One number in 2 ** 40 places."""
    value: list[Any] = [0]
    for _ in range(40):
        value = [value, value]
    return value


def huge_sparse() -> torch.Tensor:
    """No number of a million by a million."""
    return torch.sparse_coo_tensor(size=(10**6, 10**6), check_invariants=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("model_state", lambda: torch.zeros(1).expand(10**6, 10**6)),
        ("model_state", huge_sparse),
        ("optimizer_state", lambda: torch.zeros(3, device="meta")),
        ("model_state", lambda: [torch.nested.nested_tensor([torch.zeros(2)])]),
        ("notes", in_many_lists),
    ],
)
def test_what_is_larger_than_its_file_is_refused(path: Path, field: str, make: Callable[[], Any]) -> None:
    """Before anything is made of it that would take all memory."""
    content = torch.load(path, weights_only=True)
    content[field] = {"w": make()}
    save_with_hash(path, content)
    assert refusal(path) == f"checkpoint {path}: {UNSAFE}"


def test_a_compressed_file_is_refused(path: Path) -> None:
    """As it could be of any size."""
    content = path.read_bytes()
    with ZipFile(io.BytesIO(content)) as plain, ZipFile(path, "w", ZIP_DEFLATED) as compressed:
        for name in plain.namelist():
            compressed.writestr(name, plain.read(name))
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())
    assert refusal(path) == f"checkpoint {path}: {UNSAFE}"


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
