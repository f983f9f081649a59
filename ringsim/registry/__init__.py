"""Algorithms by name: built-in ones, a function in a Python file, or an MSCCL file."""

from ringsim.registry.algorithms import (
    ALGORITHMS,
    Algorithm,
    algorithm,
    build,
    build_proved,
    build_recorded,
    is_built_in,
    size_variant,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "algorithm",
    "build",
    "build_proved",
    "build_recorded",
    "is_built_in",
    "size_variant",
]
