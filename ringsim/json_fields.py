"""`require_fields`: what is read from JSON for a dataclass has its fields and no others."""

from dataclasses import fields
from typing import Any


def require_fields(kind: type[Any], data: Any) -> None:
    """Raise ValueError, in one line, unless `data` is an object with every field of `kind` and nothing else."""
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__}: must be an object with a field for each quantity")
    names = [field.name for field in fields(kind)]
    wrong = [name for name in names if name not in data] + [name for name in data if name not in names]
    if wrong:
        raise ValueError(f"a field is missing or unknown: {wrong[0]!r}")
