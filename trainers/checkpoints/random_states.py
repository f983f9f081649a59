"""The states of all random generators of a rank: seeded, saved and put back.

They are made of tensors and numbers alone, so that a checkpoint with them can be read without running code.
"""

import random
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]

MT_WORDS = 624  # of the state of the Mersenne Twister, which NumPy and Python have


def seed_alike(seed: int) -> None:
    """All generators from `seed`, on every rank the same: for drawing the initial weights."""
    _seed(np.random.SeedSequence(seed))


def seed_apart(seed: int, step: int, rank: int) -> None:
    """All generators so that no two ranks, and no two steps, have the same numbers: for training from `step` on."""
    _seed(np.random.SeedSequence(seed, spawn_key=(step, rank)))


def _seed(sequence: np.random.SeedSequence) -> None:
    words = sequence.generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # of CUDA's too
    random.seed(int(words[2]))
    np.random.seed(int(words[3]))


def random_state(device: str) -> RandomState:
    """What all generators of this process, and of its GPU if it has one, will give next."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device != "cpu" else None,
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {**numpy_state, "state": _numbers(numpy_state["state"])},
    }


def _numbers(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "key": torch.from_numpy(state["key"].astype(np.int64))}


def set_random_state(state: RandomState, device: str) -> None:
    """Go on from what `random_state` gave."""
    if device != "cpu" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    for name in ("torch", "python", "numpy"):
        set_random_state_of(name, state, random, np.random, torch.default_generator)


def set_random_state_of(name: str, state: RandomState, python: Any, numpy: Any, generator: torch.Generator) -> None:
    """Of one of the generators "torch", "python" and "numpy", into the one given. Raises what that raises."""
    own = state[name]
    match name:
        case "torch":
            generator.set_state(own)
        case "python":
            python.setstate((own["version"], tuple(own["words"].tolist()), own["gauss"]))
        case "numpy":
            position = own["state"]["pos"]
            if not 0 <= position <= MT_WORDS:  # NumPy takes any, and would read beyond its words
                raise ValueError(f"the position {position} is not in 0 to {MT_WORDS}")
            key = own["state"]["key"].numpy().astype(np.uint32)
            numpy.set_state({**own, "state": {**own["state"], "key": key}})
