"""`MemoryWatch`: the peak and the final memory of a step, and what `CachingAllocator` reserves for its storages.

torch's `MemTracker` refuses a model that is called twice in a step, and counts the recording's own tensors.
"""

import gc
import weakref
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage, distributed, nn
from torch._guards import active_fake_mode
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from collectives.recording.placement import device_of
from collectives.recording.recorder import Recorder
from ringsim.traces import HeldBytes, StepMemory

_KINDS = ("parameters", "gradients", "optimizer")
_REST = "rest"
MIB = 2**20
# Of torch's default allocator (PyTorch's notes on CUDA semantics, c10/cuda/CUDACachingAllocator.cpp), which cuts blocks
# from segments: it asks CUDA for these and, while memory is left, never gives them back.
_GRAIN = 512  # bytes
_SMALL = MIB  # largest block in a small segment; a rest of a larger block is cut off if it is larger than that
_SMALL_SEGMENT, _LARGE_SEGMENT = 2 * MIB, 20 * MIB
_OWN_SEGMENT = 10 * MIB  # smallest block that gets a segment of its own size
_SEGMENT_GRAIN = 2 * MIB
# In torch's allocator: cuBLAS on an H100 has one for the thread of the program and one for that of backward passes.
_WORKSPACES = [32 * MIB] * 2


@dataclass(slots=True, eq=False)
class _Storage:
    """A storage in use.

    stream: on which it is made. reference: its callback notes the end of the storage.
    is_lent: whether another stream uses it (`Tensor.record_stream`).
    """

    device: str
    size_bytes: int
    stream: Hashable
    reference: "weakref.ref[UntypedStorage]"
    is_lent: bool = False


class _Change(NamedTuple):
    """The bytes by which a storage grows. issued, over: commands of the GPU by then."""

    storage: _Storage
    size_bytes: int
    issued: int = 0
    over: int = 0


class MemoryWatch:
    """Records the creation, resizing and end of storages, from `start` to `stop`.

    Tensors known to Python exist at the start. So do storages that an operator reads before any has returned them, such
    as DDP's buckets in C++.

    memory: of the watched step; None until it ends. is_on_gpu: whether any storage is.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.memory: StepMemory | None = None
        self._known: dict[int, _Storage] = {}  # by address
        self._at_start: list[_Change] = []
        self._changes: list[_Change] = []  # is only appended to, since a storage may end in any thread
        self._patches = (
            patch.object(UntypedStorage, "resize_", self._noting(UntypedStorage.resize_)),
            patch.object(Tensor, "record_stream", lambda tensor, *_: self._lend(tensor)),
        )
        self.is_watching = self.is_on_gpu = False

    def start(self) -> None:
        self.is_watching = True
        for replacement in self._patches:
            replacement.start()
        gradients = (parameter.grad for parameter in _parameters() if parameter.grad is not None)
        tensors = (tensor for tensor in (*all_of(Tensor), *gradients) if _has_own_storage(tensor))
        mode = active_fake_mode()  # then tensors of none are constants, and those of others a compiler's
        self.read(tensor for tensor in tensors if mode is None or getattr(tensor, "fake_mode", None) is mode)

    def stop(self) -> None:
        """End the step, if watched, while its gradients still exist."""
        if not self.is_watching:
            return
        self.is_watching = False
        for replacement in self._patches:
            replacement.stop()
        kinds, changes = self._kinds(), [*self._at_start, *self._changes]
        # A computation on a GPU needs the GPU's memory; tensors on the CPU then need the host's.
        device = next((change.storage.device for change in changes if change.storage.device != "cpu"), "cpu")
        changes = [change for change in changes if change.storage.device == device]
        totals = list(accumulate((change.size_bytes for change in changes), initial=0))
        until_peak = changes[: totals.index(max(totals))]
        self.memory = StepMemory(_held(until_peak, kinds), _held(changes, kinds), _reserved_bytes(changes))
        self._known.clear()

    def read(self, tensors: Iterable[Tensor]) -> None:
        self._see(tensors, self._at_start)

    def made(self, tensors: Iterable[Tensor]) -> None:
        self._see(tensors, self._changes)

    def _see(self, tensors: Iterable[Tensor], changes: list[_Change]) -> None:
        for tensor in tensors:
            storage, device = tensor.untyped_storage(), device_of(tensor).type
            self.is_on_gpu |= device == "cuda"
            if (known := self._note_size(storage)) is None:
                if self.is_watching and tensor.device.type != "meta":
                    self._append(self._new(storage, device), storage.nbytes(), changes)
            elif device == "cuda":  # C++ makes DDP's buckets on the CPU
                known.device = device

    def _append(self, storage: _Storage, size_bytes: int, changes: list[_Change] | None = None) -> None:
        of_step = self._changes if changes is None else changes
        of_step.append(_Change(storage, size_bytes, self._recorder.issued, self._recorder.over))

    def _lend(self, tensor: Tensor) -> None:
        if (known := self._known.get(tensor.untyped_storage()._cdata)) is not None:
            known.is_lent = True

    def _new(self, storage: UntypedStorage, device: str) -> _Storage:
        address = storage._cdata

        def ended(_: object) -> None:
            if (known := self._known.pop(address, None)) is not None:  # else the step is over
                self._recorder.issued += known.is_lent  # an event on the other stream
                self._append(known, -known.size_bytes)

        stream = self._recorder.current_stream
        self._known[address] = _Storage(device, storage.nbytes(), stream, weakref.ref(storage, ended))
        return self._known[address]

    def _note_size(self, storage: UntypedStorage) -> _Storage | None:
        known = self._known.get(storage._cdata)
        if known is not None and (grown := storage.nbytes() - known.size_bytes):
            known.size_bytes += grown
            self._append(known, grown)
        return known

    def _noting(self, resize: Any) -> Any:
        """Return a `UntypedStorage.resize_` that is noted; FSDP2 frees gathered parameters by it."""

        @wraps(resize)
        def resize_(storage: UntypedStorage, size: int) -> Any:
            resized = resize(storage, size)
            self._note_size(storage)
            return resized

        return resize_

    def _kinds(self) -> dict[_Storage, str]:
        parameters = list(_parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        dense = [part for gradient in gradients for part in parts_of(gradient)]
        states = _tensors_held_by([list(optimizer.state.values()) for optimizer in all_of(Optimizer)], set())
        kinds: dict[_Storage, str] = {}
        for kind, tensors in zip(_KINDS, (parameters, dense, states), strict=True):
            for storage in (storage for tensor in tensors for storage in get_untyped_storages(tensor)):
                known = self._known.get(storage._cdata)
                if known is not None and known.size_bytes:  # FSDP2's gathered parameters are there for a while only
                    kinds.setdefault(known, kind)
        return kinds


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a sparse tensor's indices and values, as it has no storage, or the tensor."""
    is_sparse = tensor.layout is torch.sparse_coo
    return (tensor._indices(), tensor._values()) if is_sparse else (tensor,)


def _tensors_held_by(value: Any, seen: set[int]) -> list[Tensor]:
    """Return the tensors in an optimizer's state, also in its objects, such as the factors of Shampoo."""
    if isinstance(value, Tensor):
        return [value]
    if id(value) in seen or isinstance(value, nn.Module | type | distributed.ProcessGroup):
        return []
    seen.add(id(value))
    given = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts = value if isinstance(value, list | tuple) else given.values()
    return [tensor for part in parts for tensor in _tensors_held_by(part, seen)]


def all_of(kind: type[Any]) -> list[Any]:
    """Return all objects of a class, also those frozen by `gc.freeze`, as referrers of the class.

    `gc.get_objects` would also return tuples that other threads are making; with another reference, CPython raises
    SystemError there, which ends a data loader's thread.
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
    return (tensor for tensor in all_of(Tensor) if isinstance(tensor, nn.Parameter))


def _has_own_storage(tensor: Tensor) -> bool:
    return not is_traceable_wrapper_subclass(tensor) and tensor.layout is torch.strided


def _held(changes: list[_Change], kinds: dict[_Storage, str]) -> HeldBytes:
    held: Counter[str] = Counter()
    for change in changes:
        held[kinds.get(change.storage, _REST)] += change.size_bytes
    return HeldBytes(*(held[kind] for kind in (*_KINDS, _REST)))


def _reserved_bytes(changes: list[_Change]) -> int:
    """Return the memory that torch's allocator has reserved after the step, if it begins with full segments only.

    A storage lent to another stream is free once the GPU has done what had been issued.
    """
    allocator = CachingAllocator()
    blocks: dict[_Storage, MemoryBlock] = {}
    sizes: Counter[_Storage] = Counter()
    lent: deque[tuple[int, MemoryBlock]] = deque()
    for size_bytes in _WORKSPACES:
        allocator.allocate(size_bytes)
    for storage, size_bytes, issued, over in changes:
        while lent and lent[0][0] <= over:
            allocator.free(lent.popleft()[1])
        block = blocks.pop(storage, None)
        if block and storage.is_lent:
            lent.append((issued, block))
        elif block:
            allocator.free(block)
        sizes[storage] += size_bytes
        if sizes[storage]:
            blocks[storage] = allocator.allocate(sizes[storage], storage.stream)
    return allocator.reserved_bytes


class MemoryBlock(NamedTuple):
    """A part of a segment. pool: the free blocks to which it returns."""

    size_bytes: int
    address: int
    pool: list[tuple[int, int]]


class CachingAllocator:
    """The memory that torch reserves on a GPU for a program's tensors. reserved_bytes: never decreases."""

    def __init__(self) -> None:
        self.reserved_bytes = self._next_address = 0
        # Free blocks: size and address, sorted; the sizes by address; and the addresses by what follows the block.
        self._pools: defaultdict[tuple[Hashable, bool], list[tuple[int, int]]] = defaultdict(list)
        self._sizes: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def allocate(self, size_bytes: int, stream: Hashable = None) -> MemoryBlock:
        """Return the smallest sufficient free block, or a part of it; streams share no blocks."""
        size_bytes = max(_GRAIN, _rounded(size_bytes, _GRAIN))
        is_small = size_bytes <= _SMALL
        pool = self._pools[stream, is_small]
        index = bisect_left(pool, (size_bytes,))
        if index == len(pool):
            own_bytes = _LARGE_SEGMENT if size_bytes < _OWN_SEGMENT else _rounded(size_bytes, _SEGMENT_GRAIN)
            segment_bytes = _SMALL_SEGMENT if is_small else own_bytes
            self._add(MemoryBlock(segment_bytes, self._next_address, pool))
            self.reserved_bytes += segment_bytes
            self._next_address += segment_bytes + _GRAIN  # segments are no neighbours
        block = self._take(pool[index][1], pool)
        if (rest := block.size_bytes - size_bytes) > (0 if is_small else _SMALL):
            self._add(MemoryBlock(rest, block.address + size_bytes, pool))
            return block._replace(size_bytes=size_bytes)
        return block

    def free(self, block: MemoryBlock) -> None:
        size_bytes, address, pool = block
        if (after := address + size_bytes) in self._sizes:
            size_bytes += self._take(after, pool).size_bytes
        if address in self._before:
            before = self._take(self._before[address], pool)
            size_bytes, address = before.size_bytes + size_bytes, before.address
        self._add(MemoryBlock(size_bytes, address, pool))

    def _add(self, block: MemoryBlock) -> None:
        insort(block.pool, block[:2])
        self._sizes[block.address] = block.size_bytes
        self._before[block.address + block.size_bytes] = block.address

    def _take(self, address: int, pool: list[tuple[int, int]]) -> MemoryBlock:
        size_bytes = self._sizes.pop(address)
        del self._before[address + size_bytes], pool[bisect_left(pool, (size_bytes, address))]
        return MemoryBlock(size_bytes, address, pool)


def _rounded(size_bytes: int, grain: int) -> int:
    return -(-size_bytes // grain) * grain
