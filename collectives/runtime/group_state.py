"""`GroupState`: all that this package keeps for one process group, with one life: it ends when the group does.

It stands below the modules whose objects it holds, and so names none of them. These are its parts:

    Transports           how tensors of each device travel (transport)
    CommunicatorStart    whether the ranks have started their communicator together, as NCCL asks for (transport)
    PrepostedReceives    the buffers of short messages, and the receives that are posted for them (preposted)
    FingerprintCheck     the calls that all ranks are known to have made alike (fingerprint)
    FailureRecords       which rank failed first (failure_records)
    CollectiveQueue      the collectives under way, their thread, buffers and streams (queue)
    Executors            the executors of the algorithms in use (calls.call)
    Chooser              what "auto" has chosen, and on which network (calls.algorithm_choice)
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

Part = TypeVar("Part")


class GroupState:
    """The parts of one group, each made when it is first asked for. None of them may keep the group alive."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = ref(group)
        self._parts: dict[Any, Any] = {}

    def part(self, kind: Callable[[dist.ProcessGroup], Part]) -> Part:
        """The group's only object of the class `kind`, made by `kind(group)` if there is none yet.

        Raises ValueError if there is none and the group is gone.
        """
        part: Part | None = self._parts.get(kind)
        return self._make(kind) if part is None else part

    def has(self, kind: type) -> bool:
        """Whether the group has an object of the class `kind` already."""
        return kind in self._parts

    def put(self, part: object) -> None:
        """Let `part` take the place of the object of its class."""
        self._parts[type(part)] = part

    def pop(self, kind: type[Part]) -> Part | None:
        """Take the object of the class `kind` out; None if there is none."""
        part: Part | None = self._parts.pop(kind, None)
        return part

    def _make(self, kind: Callable[[dist.ProcessGroup], Part]) -> Part:
        group = self._group()
        if group is None:
            raise ValueError("the process group has been destroyed")
        with _MAKING:
            if kind not in self._parts:
                self._parts[kind] = kind(group)
            part: Part = self._parts[kind]
        return part


_STATES: WeakKeyDictionary[dist.ProcessGroup, GroupState] = WeakKeyDictionary()
_MAKING = threading.RLock()  # two threads that ask at once must get the same; and a part may ask for another one


def state_of(group: dist.ProcessGroup) -> GroupState:
    """The state of `group`, which lives as long as the group."""
    state = _STATES.get(group)
    if state is None:
        with _MAKING:
            state = _STATES.setdefault(group, GroupState(group))
    return state
