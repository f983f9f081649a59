"""`DataFlow`: which event of a step wrote a storage last, and which calls' results are still unread.

Tensors are told apart by their storages, so that a view counts as its base.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

BEFORE_THE_STEP = -1


@dataclass(slots=True)
class _Contents:
    """The contents of a storage.

    reference: keeps the storage's address from being given to another one, not its memory.
    event: the index of the last event that wrote, copies looked through.
    calls: the indices of the calls whose results it holds.
    """

    reference: StorageWeakRef
    event: int = BEFORE_THE_STEP
    calls: set[int] = field(default_factory=set)


class DataFlow:
    """The data flow of one step; events and calls are given as their indices in the step."""

    def __init__(self) -> None:
        self._contents: dict[int, _Contents] = {}
        self._read: set[int] = set()

    def last_writer(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the last event that wrote one of the tensors; -1 if none of this step did."""
        return max((contents.event for contents in self._known(tensors)), default=BEFORE_THE_STEP)

    def take_unread(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Return the calls whose results are in the tensors and were not taken before, and mark them as read."""
        unread = sorted({call for contents in self._known(tensors) for call in contents.calls} - self._read)
        self._read.update(unread)
        return unread

    def write(self, tensors: Iterable[torch.Tensor], event: int) -> None:
        """Note that an event wrote the tensors."""
        for tensor in tensors:
            self._contents_of(tensor).event = event

    def copy(self, sources: Iterable[torch.Tensor], targets: Iterable[torch.Tensor]) -> None:
        """Note that the targets are as new as the sources, and hold the results that these hold.

        A target may get only a part that way; so it is never older than it was.
        """
        sources = list(sources)
        event = self.last_writer(sources)
        calls = {call for contents in self._known(sources) for call in contents.calls}
        for target in targets:
            contents = self._contents_of(target)
            contents.event = max(contents.event, event)
            contents.calls |= calls

    def leave_result(self, tensors: Iterable[torch.Tensor], event: int, call: int) -> None:
        """Note that a call, whose event is given, leaves its result in the tensors."""
        for tensor in tensors:
            contents = self._contents_of(tensor)
            contents.event = event
            contents.calls.add(call)

    def _known(self, tensors: Iterable[torch.Tensor]) -> Iterator[_Contents]:
        for tensor in tensors:
            contents = self._contents.get(tensor.untyped_storage()._cdata)
            if contents is not None:
                yield contents

    def _contents_of(self, tensor: torch.Tensor) -> _Contents:
        storage = tensor.untyped_storage()
        contents = self._contents.get(storage._cdata)
        if contents is None:
            contents = self._contents[storage._cdata] = _Contents(StorageWeakRef(storage))
        return contents
