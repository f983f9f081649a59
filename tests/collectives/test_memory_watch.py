"""`MemoryWatch` in a process with other threads, such as that of a data loader."""

import gc
import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from collectives.recording.memory import MemoryWatch, _all


@pytest.mark.parametrize("is_frozen", [False, True])
def test_all_tensors_and_optimizers_are_found(is_frozen: bool) -> None:
    """Objects of derived classes are among them, and those that a program has put aside, where they then stay."""
    model = nn.Linear(2, 2)
    if is_frozen:
        gc.freeze()
    optimizer = torch.optim.AdamW(model.parameters())
    for kind, thing in ((Tensor, torch.ones(1)), (Tensor, model.weight), (Optimizer, optimizer)):
        found = {id(one) for one in _all(kind)}
        assert (gc.get_freeze_count() > 0) == is_frozen
        gc.unfreeze()
        assert id(thing) in found
        assert found == {id(one) for one in gc.get_objects() if issubclass(type(one), kind)}
        if is_frozen:
            gc.freeze()
    gc.unfreeze()


def test_other_threads_go_on() -> None:
    """CPython raises SystemError in a thread that finishes a tuple to which a list of all objects refers meanwhile."""
    errors: list[SystemError] = []
    is_over = threading.Event()

    def make_tuples() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(3))
            except SystemError as error:
                errors.append(error)

    thread, interval = threading.Thread(target=make_tuples), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        for _ in range(10):
            watch = MemoryWatch()
            watch.start()
            watch.stop()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert not errors
