"""`GroupState`: all objects that this package keeps for one process group; they end with the group.

This module names none of their classes: Transports, Sharing, PrepostedReceives, FingerprintCheck, FailureRecords,
CollectiveQueue, GroupRuntime and Chooser.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist
from torch.distributed import distributed_c10d

T = TypeVar("T")


class lazily(Generic[T]):  # noqa: N801  a decorator, named as functools.cached_property is
    """Make a method an attribute whose value is computed once per object.

    Until Python 3.12 `functools.cached_property` has one lock for all objects: a rank that waits for others in one
    group's attribute would hold up its other groups.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # to who asks the class
        # From now on Python finds the value in the object and does not call this method.
        value = instance.__dict__[self._name] = self._make(instance)
        return value


Part = TypeVar("Part")


class GroupState:
    """The parts of one group, each made at its first use. No part may keep the group alive."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = ref(group)
        self._parts: dict[Any, Any] = {}
        # Two threads that ask at once must get the same part, and making a part may need another one. The lock is per
        # group, since making a part may take as long as an answer of the group's store.
        self._making = threading.RLock()

    def part(self, kind: Callable[[dist.ProcessGroup], Part]) -> Part:
        """Return the group's only object of class `kind`, made by `kind(group)` at first use.

        Raises ValueError if it would be made after the group is gone.
        """
        part: Part | None = self._parts.get(kind)
        return self._make(kind) if part is None else part

    def pop(self, kind: Callable[[dist.ProcessGroup], Part]) -> Part | None:
        return self._parts.pop(kind, None)  # type: ignore[no-any-return]

    def _make(self, kind: Callable[[dist.ProcessGroup], Part]) -> Part:
        group = self._group()
        if group is None:
            raise ValueError("the process group has been destroyed")
        with self._making:
            if kind not in self._parts:
                self._parts[kind] = kind(group)
            part: Part = self._parts[kind]
        return part


_STATES: WeakKeyDictionary[dist.ProcessGroup, GroupState] = WeakKeyDictionary()
_ENTERING = threading.Lock()  # held for a moment only


def state_of(group: dist.ProcessGroup) -> GroupState:
    """Return the state of `group`, which lives as long as the group."""
    state = _STATES.get(group)
    if state is None:
        with _ENTERING:
            state = _STATES.setdefault(group, GroupState(group))
    return state


def resolve(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return `group`, or the default group if None.

    Raises ValueError if there is none, if this rank is not a member, or if the group has been destroyed.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialised: call dist.init_process_group first")
    if not isinstance(group, dist.ProcessGroup):  # torch's mark for it is a number
        raise ValueError("group: this rank is not a member; only members may call the collectives of a process group")
    if _is_destroyed(group):
        raise ValueError(
            "group: the process group has been destroyed; call its collectives before dist.destroy_process_group"
        )
    return group


def _is_destroyed(group: dist.ProcessGroup) -> bool:
    if type(group) is dist.ProcessGroup:
        return group not in distributed_c10d._world.pg_map
    # A group written in Python, such as the backend "ring"'s, may be unregistered but wrapped by a registered group:
    # torch makes such groups with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    return getattr(group, "is_shut_down", False)
