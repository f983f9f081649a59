"""Algorithms by name: built-in ones, a function in a Python file, or an MSCCL file."""

from ringsim.registry.algorithms import ALGORITHMS, Algorithm, algorithm, build, size_variant
from ringsim.registry.user_file import build_from_file

__all__ = ["ALGORITHMS", "Algorithm", "algorithm", "build", "build_from_file", "size_variant"]
