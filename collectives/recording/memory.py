"""`MemoryWatch`: the peak and the final memory of a step, from its storages.

torch's `MemTracker` refuses a model that is called twice in a step, as in gradient accumulation, and counts the tensors
of the recording.
"""

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import wraps
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ringsim.traces import HeldBytes, StepMemory

_KINDS = ("parameters", "gradients", "optimizer")
_REST = "rest"


class _Known(NamedTuple):
    """A storage in use, with a unique number. reference: its callback notes the end of the storage."""

    number: int
    size_bytes: int
    reference: "weakref.ref[UntypedStorage]"


class _Change(NamedTuple):
    number: int
    size_bytes: int


class MemoryWatch:
    """Records the creation, resizing and end of storages, from `start` to `stop`.

    Tensors known to Python exist at the start. So do storages that an operator reads before any operator has returned
    them, such as the buckets of DistributedDataParallel, which C++ holds.

    memory: of the watched step; None until it ends.
    """

    def __init__(self) -> None:
        self.memory: StepMemory | None = None
        self._known: dict[int, _Known] = {}  # by address
        self._devices: list[str] = []  # of each storage, by its number
        self._at_start: list[_Change] = []
        self._changes: list[_Change] = []  # is only appended to, since a storage may end in any thread
        self._resizing = patch.object(UntypedStorage, "resize_", self._noting(UntypedStorage.resize_))
        self.is_watching = False

    def start(self) -> None:
        self.is_watching = True
        self._resizing.start()
        gradients = (parameter.grad for parameter in _parameters() if parameter.grad is not None)
        tensors = (tensor for tensor in (*_all(Tensor), *gradients) if _has_own_storage(tensor))
        is_fake = active_fake_mode() is not None  # then those with data are constants, beside the program's own
        self.read(tensor for tensor in tensors if isinstance(tensor, FakeTensor) or not is_fake)

    def stop(self) -> None:
        """End the step, if one is watched, while its gradients still exist."""
        if not self.is_watching:
            return
        self.is_watching = False
        self._resizing.stop()
        kinds, changes = self._kinds(), [*self._at_start, *self._changes]
        # A computation on a GPU needs the GPU's memory; tensors on the CPU then need the host's.
        device = next((device for device in self._devices if device != "cpu"), "cpu")
        changes = [change for change in changes if self._devices[change.number] == device]
        self.memory = StepMemory(peak=_held(changes[: _peak(changes)], kinds), end=_held(changes, kinds))
        self._known.clear()

    def read(self, tensors: Iterable[Tensor]) -> None:
        self._see(tensors, self._at_start)

    def made(self, tensors: Iterable[Tensor]) -> None:
        self._see(tensors, self._changes)

    def _see(self, tensors: Iterable[Tensor], changes: list[_Change]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if not self._note_size(storage) and self.is_watching and tensor.device.type != "meta":
                changes.append(_Change(len(self._devices), storage.nbytes()))
                self._known[storage._cdata] = self._new(storage)
                self._devices.append(tensor.device.type)

    def _new(self, storage: UntypedStorage) -> _Known:
        address = storage._cdata

        def ended(_: object) -> None:
            known = self._known.pop(address)
            self._changes.append(_Change(known.number, -known.size_bytes))

        return _Known(len(self._devices), storage.nbytes(), weakref.ref(storage, ended))

    def _note_size(self, storage: UntypedStorage) -> bool:
        """Update the size of a known storage; return whether it is known."""
        known = self._known.get(storage._cdata)
        if known is not None and (size_bytes := storage.nbytes()) != known.size_bytes:
            self._known[storage._cdata] = known._replace(size_bytes=size_bytes)
            self._changes.append(_Change(known.number, size_bytes - known.size_bytes))
        return known is not None

    def _noting(self, resize: Any) -> Any:
        """Return a `UntypedStorage.resize_` that is noted; FSDP2 frees gathered parameters by it."""

        @wraps(resize)
        def resize_(storage: UntypedStorage, size: int) -> Any:
            resized = resize(storage, size)
            self._note_size(storage)
            return resized

        return resize_

    def _kinds(self) -> dict[int, str]:
        parameters = list(_parameters())
        states = [state for optimizer in _all(Optimizer) for state in optimizer.state.values()]
        held = (
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [value for state in states for value in state.values() if isinstance(value, Tensor)],
        )
        kinds: dict[int, str] = {}
        for kind, tensors in zip(_KINDS, held, strict=True):
            for storage in (storage for tensor in tensors for storage in get_untyped_storages(tensor)):
                known = self._known.get(storage._cdata)
                if known is not None and known.size_bytes:  # FSDP2's gathered parameters are there for a while only
                    kinds.setdefault(known.number, kind)
        return kinds


def _all(kind: type[Any]) -> list[Any]:
    """Return all objects of a class, including objects frozen by `gc.freeze`, as referrers of the class.

    `gc.get_objects` would also return tuples that other threads are making; CPython raises SystemError in a thread that
    finishes a tuple with another reference, which ends a data loader's thread.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    things = [thing for thing in gc.get_referrers(*_classes(kind)) if issubclass(type(thing), kind)]
    if is_frozen:
        gc.freeze()
    return things


def _classes(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*map(_classes, type.__subclasses__(kind)))


def _parameters() -> Iterator[Tensor]:
    return (tensor for tensor in _all(Tensor) if isinstance(tensor, nn.Parameter))


def _has_own_storage(tensor: Tensor) -> bool:
    return not is_traceable_wrapper_subclass(tensor) and tensor.layout is torch.strided


def _peak(changes: list[_Change]) -> int:
    held = list(accumulate((change.size_bytes for change in changes), initial=0))
    return held.index(max(held))


def _held(changes: list[_Change], kinds: dict[int, str]) -> HeldBytes:
    held: Counter[str] = Counter()
    for change in changes:
        held[kinds.get(change.number, _REST)] += change.size_bytes
    return HeldBytes(*(held[kind] for kind in (*_KINDS, _REST)))
