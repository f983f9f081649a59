"""`replaced`: attributes of torch that are others while a program is recorded."""

import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib.util import find_spec
from inspect import signature
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

# The name of an attribute, with those of its module and class, and the value in its place.
Replacement = tuple[str, Any]


@contextmanager
def replaced(replacements: Iterable[Replacement], extended: Container[str] = ()) -> Iterator[None]:
    """Replace attributes within the block; all are looked up before the first one is replaced.

    extended: names of modules and classes that may get new attributes.
    """
    attributes = [(name.rpartition("."), value) for name, value in replacements]
    owners = {name: resolve_name(name) for (name, _, _), _ in attributes}
    with ExitStack() as stack:
        for (owner, _, name), value in attributes:
            stack.enter_context(patch.object(owners[owner], name, value, create=owner in extended))
        yield


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a folder of that name without modules, as a program may have, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def warn(message: str, file: str = "ringsim trace", line: int = 0) -> None:
    """Warn of the recording, also if the program ignores warnings."""
    place = f"{file}:{line}" if line else file
    told = patch.object(warnings, "formatwarning", returning(f"{place}: warning: {message}\n"))
    with warnings.catch_warnings(action="always"), told:
        warnings.warn_explicit(message, UserWarning, file, line)


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


def run_within(make_context: Callable[[], Any], *names: str) -> Iterator[Replacement]:
    """Yield replacements that run functions in a context."""
    return ((name, within(make_context, resolve_name(name))) for name in names)


def changed(name: str, change: Callable[..., tuple[Any, Any]]) -> Replacement:
    """Return a replacement that changes a function's arguments. change: gets, and returns, args and kwargs."""
    function = resolve_name(name)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        args, options = change(args, options)
        return function(*args, **options)

    return name, called


def by_names(function: Callable[..., Any], instead: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a function that calls `instead` with all arguments of `function` by their names."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        bound = signature(function).bind(*args, **options)
        bound.apply_defaults()
        return instead(bound.arguments)

    return called


def fixing(name: str, **fixed: Any) -> Replacement:
    """Return a replacement that fixes some arguments of a function, whose warnings name the caller's line."""
    function = resolve_name(name)

    def called(given: dict[str, Any]) -> Any:
        with warnings.catch_warnings(action="always", record=True) as told:
            result = function(**{**given, **fixed})
        for warning in told:
            if warning.filename == __file__:
                warnings.warn(warning.message, warning.category, stacklevel=3)
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return result

    return name, by_names(function, called)
