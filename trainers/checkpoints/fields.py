"""`mismatch`: whether a field that was read has the form that it should have; if not, what it has, and should have."""

from typing import Any

import torch


def mismatch(place: str, got: Any, want: Any, inside: bool = True) -> str | None:
    """None if `got` has the form of `want`: the same keys, lengths and types, of tensors dtype and shape.

    place: how to name it. inside: whether to look into dicts and lists as well.

    Where `want` is None anything will do; where it is a number, any number; values are not compared.
    """
    if want is None:
        return None
    if not _is_alike(got, want):
        return f"{place}: is {described(got)}, must be {described(want, value=False)}"
    if not inside:
        return None
    if isinstance(want, dict):
        return _of_dict(place, got, want)
    if isinstance(want, list | tuple):
        return _of_list(place, got, want)
    return None


def _is_alike(got: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return isinstance(got, torch.Tensor) and (got.dtype, got.shape) == (want.dtype, want.shape)
    if isinstance(want, float):
        return isinstance(got, int | float) and not isinstance(got, bool)
    kinds = (dict, list, tuple, str, bool, int)
    kind = next((kind for kind in kinds if isinstance(want, kind)), type(want))
    return isinstance(got, kind) and isinstance(got, bool) == isinstance(want, bool)


def _of_dict(place: str, got: dict[Any, Any], want: dict[Any, Any]) -> str | None:
    if missing := [key for key in want if key not in got]:
        return f"{place}: lacks {_listed(missing)}"
    if more := [key for key in got if key not in want]:
        return f"{place}: has {_listed(more)}, which must not be there"
    return next((fault for key in want if (fault := mismatch(f"{place}.{key}", got[key], want[key]))), None)


def _of_list(place: str, got: Any, want: Any) -> str | None:
    if len(got) != len(want):
        return f"{place}: has {len(got)} entries, must have {len(want)}"
    pairs = enumerate(zip(got, want, strict=True))
    return next((fault for index, (g, w) in pairs if (fault := mismatch(f"{place}[{index}]", g, w))), None)


def _listed(keys: list[Any]) -> str:
    shown = ", ".join(str(key) for key in keys[:3])
    return f"{shown} and {len(keys) - 3} more" if len(keys) > 3 else shown


def described(thing: Any, value: bool = True) -> str:
    """Its type, for a tensor dtype and shape, and its value if that is short. value: whether that matters."""
    if isinstance(thing, torch.Tensor):
        return f"a tensor of {str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}"
    kinds = {dict: "a dict", list: "a list", tuple: "a tuple", str: "a text", int: "a whole number", float: "a number"}
    if isinstance(thing, bool) and not value:
        return "True or False"
    if thing is None or isinstance(thing, bool):
        return str(thing)
    other = f"of the type {type(thing).__name__}"
    named = next((name for kind, name in kinds.items() if isinstance(thing, kind)), other)
    if value and isinstance(thing, str | int | float) and len(text := repr(thing)) <= 40:
        return f"{named}, {text}" if isinstance(thing, str) else text
    return named
