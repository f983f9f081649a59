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
    """Seed all generators from `seed`, on every rank the same: for drawing the initial weights."""
    _seed(np.random.SeedSequence(seed))


def seed_apart(seed: int, step: int, rank: int) -> None:
    """Seed all generators so that no two ranks and no two steps draw the same numbers: for training from `step` on."""
    _seed(np.random.SeedSequence(seed, spawn_key=(step, rank)))


def _seed(sequence: np.random.SeedSequence) -> None:
    words = sequence.generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # of CUDA's too
    random.seed(int(words[2]))
    np.random.seed(int(words[3]))


def random_state(device: str) -> RandomState:
    """Return the states of all generators of this process, and of its GPU if it has one."""
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
    """Go on from what `random_state` gave. Raises ValueError, TypeError, KeyError or RuntimeError for anything else."""
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
