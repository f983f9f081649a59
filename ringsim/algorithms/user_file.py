"""A user's own algorithm: a function in a Python file, named as `FILE.py:FUNCTION`."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from ringsim.collective import Collective
from ringsim.schedule import Schedule


def build_from_file(collective: Collective, algorithm: str, num_ranks: int) -> Schedule:
    """What the function makes for `num_ranks`; the file is run anew at each call.

    Raises ValueError, in one line, if there is no such file or function, if either raises, and if what is
    returned is not a Schedule of that collective and number of ranks.
    """
    file, _, function = algorithm.rpartition(":")
    made = _call(algorithm, _function(algorithm, Path(file), function), num_ranks)
    if not isinstance(made, Schedule):
        raise ValueError(f"algorithm {algorithm!r}: it returned {type(made).__name__}, not a Schedule")
    if (made.collective, made.num_ranks) != (collective, num_ranks):
        raise ValueError(
            f"algorithm {algorithm!r}: it returned {made}; needed is {collective.value} over {num_ranks} ranks"
        )
    return made


def _function(algorithm: str, path: Path, name: str) -> Any:
    if not path.is_file():
        raise ValueError(f"algorithm {algorithm!r}: there is no file {str(path)!r}")
    loader = SourceFileLoader(f"ringsim_user_file_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None  # there is a loader
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # where dataclasses look for the module they are in
    _call(algorithm, loader.exec_module, module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"algorithm {algorithm!r}: there is no function {name!r} in {str(path)!r}")
    return function


def _call(algorithm: str, function: Any, argument: int | ModuleType) -> Any:
    try:
        return function(argument)
    except Exception as error:
        message = " ".join(str(error).split())
        raise ValueError(f"algorithm {algorithm!r}: it raised {type(error).__name__}: {message}") from error
