"""A user's own algorithm: a function in a Python file, named as `FILE.py:FUNCTION`."""

import ast
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ringsim.schedule import Schedule, ScheduleError


def build_from_file(algorithm: str, num_ranks: int) -> Schedule:
    """Return what the function makes for `num_ranks`; the file is run anew at each call.

    Raises ValueError, in one line, if there is no such file or function, if either raises, and if what is
    returned is not a Schedule.
    """
    if algorithm.endswith(".py"):
        raise ValueError(f"algorithm {algorithm!r}: {_functions(algorithm, Path(algorithm))}")
    file, _, function = algorithm.rpartition(":")
    schedule = _call(algorithm, _function(algorithm, Path(file), function), num_ranks)
    if not isinstance(schedule, Schedule):
        raise ValueError(f"algorithm {algorithm!r}: it returned {type(schedule).__name__}, not a Schedule")
    return replace(schedule, algorithm=f"{Path(file).name}:{function}")  # so that whatever is said of it names the file


def _functions(algorithm: str, path: Path) -> str:
    """Return what to write for each function of a file, which is not run for that."""
    _require_file(algorithm, path)
    tree: ast.Module = _call(algorithm, ast.parse, path.read_bytes())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return f"name a function of the file: {' or '.join(f'{path}:{name}' for name in names) or 'it has none'}"


def _require_file(algorithm: str, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"algorithm {algorithm!r}: there is no file {str(path)!r}")


def _function(algorithm: str, path: Path, name: str) -> Any:
    _require_file(algorithm, path)
    module = ModuleType(f"ringsim_user_file_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the module they are in
    _call(algorithm, _run, module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(
            f"algorithm {algorithm!r}: there is no function {name!r} in {str(path)!r}: {_functions(algorithm, path)}"
        )
    return function


def _run(module: ModuleType) -> None:
    # Not by an import, which may take the bytecode of an older file for it, and leaves bytecode beside it.
    path = Path(str(module.__file__))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # an error is one line; what Python makes of it says the rest
        code = compile(path.read_bytes(), path, "exec")
    exec(code, vars(module))


def _call(algorithm: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except (Exception, SystemExit) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        kind = ScheduleError if isinstance(error, ScheduleError) else ValueError
        raise kind(f"algorithm {algorithm!r}: {_place(algorithm, error)}it raised {message}") from error


def _place(algorithm: str, error: BaseException) -> str:
    """Return the last line of the user's file that was being executed, for the message; "" where there is none."""
    file = algorithm.rpartition(":")[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(Path(file))]
    return f"line {lines[-1]}: " if lines else ""
