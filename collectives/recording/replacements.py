"""`replaced`: attributes of torch that are others while a program is recorded."""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from typing import Any
from unittest.mock import patch

Replacement = tuple[Any, str, Any]  # an object, the name of its attribute, and the value in its place


@contextmanager
def replaced(replacements: Iterable[Replacement], extended: Container[Any] = ()) -> Iterator[None]:
    """Replace attributes within the block; all values are made before the first one is in place.

    extended: objects that may get attributes that they lack.
    """
    with ExitStack() as stack:
        for owner, name, value in list(replacements):
            stack.enter_context(patch.object(owner, name, value, create=owner in extended))
        yield


def returning(value: Any) -> Callable[..., Any]:
    """Return a new function that returns the value; torch.compile needs distinct functions."""
    return lambda *_, **__: value


def within(make_context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs `function` in a context."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with make_context():
            return function(*args, **options)

    return called


def by_names(function: Callable[..., Any], instead: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a function that calls `instead` with all arguments of `function` by their names."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        bound = signature(function).bind(*args, **options)
        bound.apply_defaults()
        return instead(bound.arguments)

    return called


def fixing(owner: Any, name: str, **fixed: Any) -> Replacement:
    """Return a replacement of a function by itself with some arguments as given here."""
    function = getattr(owner, name)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        bound = signature(function).bind(*args, **options)
        bound.arguments.update(fixed)
        return function(*bound.args, **bound.kwargs)

    return owner, name, called
