"""`lazily`: an attribute that is made when it is first asked for, without a lock."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazily(Generic[T]):  # noqa: N801  a decorator, named as functools.cached_property is
    """Make a method an attribute whose value is worked out once for each object.

    `functools.cached_property` has one lock for all objects of a class until Python 3.12. A rank that waits for others
    while it makes the attribute of one group's object would keep its other groups waiting, and so the other ranks.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "lazily[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> "T | lazily[T]":
        if instance is None:
            return self
        # From now on Python finds the value in the object and does not come here any more.
        value = instance.__dict__[self._name] = self._make(instance)
        return value
