"""Algorithms by name: built-in ones, functions in Python files, and MSCCL files."""

from ringsim.algorithms import ALGORITHMS, NCCL_ALGORITHMS, Algorithm
from ringsim.registry.algorithms import (
    AlgorithmName,
    algorithm,
    base_name,
    build,
    build_proved,
    build_recorded,
    is_built_in,
    names_file,
    require_trusted,
    size_variant,
    summary_of,
)
