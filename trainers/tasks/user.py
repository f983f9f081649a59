"""A user's own task: a function in a Python module, `MODULE:FUNCTION`."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from trainers.tasks.base import Task

_PARTS = {name: part for name, part in vars(Task).items() if not name.startswith("_")}


def load_user_task(name: str, seed: int, options: dict[str, Any]) -> Task:
    """Call the user's function with seed=seed and the options; return its task.

    The module may be in the current directory. Raises ValueError, in one line, for any failure.
    """
    function = _function(name)
    task: Task = _call(name, "it", lambda: function(seed=seed, **options))
    if missing := [part for part in _PARTS if not _call(name, f"its {part}", partial(_has, task, part))]:
        raise ValueError(
            f"task {name!r}: it returned {_kind(task)}, which lacks {', '.join(missing)}, which a Task must have"
        )
    _check_values(name, task)
    return task


def _function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name) or module_name.startswith("."):
        raise ValueError(f"task {name!r}: give a module and a function: MODULE:FUNCTION")
    if module_name.endswith(".py"):
        raise ValueError(f"task {name!r}: give the module instead of its file: {module_name[:-3]}:{function_name}")
    function = getattr(_module(name, module_name), function_name, None)
    if function is None:
        raise ValueError(f"task {name!r}: there is no function {function_name!r} in the module {module_name!r}")
    if not callable(function):
        raise ValueError(f"task {name!r}: {function_name!r} is not a function, but {_kind(function)}")
    return function  # type: ignore[no-any-return]


def _module(name: str, module_name: str) -> Any:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"task {name!r}: there is no module {error.name!r}, neither in the current directory nor installed"
            ) from error
        raise ValueError(f"task {name!r}: importing it raised {_in_a_line(error)}") from error
    except Exception as error:
        raise ValueError(f"task {name!r}: importing it raised {_in_a_line(error)}") from error


def _has(task: Task, part: str) -> bool:
    """Whether the task itself defines a part; a subclass of Task inherits empty ones."""
    if getattr(type(task), part, None) is _PARTS[part]:
        return False
    return hasattr(task, part) if isinstance(_PARTS[part], property) else callable(getattr(task, part, None))


def _check_values(name: str, task: Task) -> None:
    if not isinstance(task.name, str):
        raise ValueError(f"task {name!r}: its name is {task.name!r}; it must be a string")
    for part in ("num_samples", "global_batch_size", "epochs"):
        value = getattr(task, part)
        if type(value) is not int or value < 1:
            raise ValueError(f"task {name!r}: its {part} is {value!r}; it must be an int of at least 1")
    config: Any = _call(name, "its config()", task.config)
    if not isinstance(config, dict):
        raise ValueError(f"task {name!r}: its config() returned {_kind(config)}, not a dict")
    for key, value in config.items():
        # It is in checkpoints, which are read without running code: no objects, not even NumPy's numbers.
        if type(key) is not str or type(value) not in (int, float, str, bool):
            raise ValueError(f"task {name!r}: its config() has {key!r}: {value!r}; values must be int, float or str")


def _call(name: str, action: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise ValueError(f"task {name!r}: {action} raised {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _kind(value: object) -> str:
    return f"an object of the class {type(value).__name__}" if value is not None else "None"
