"""`build`: from the name of an algorithm to its `Schedule`: a built-in one, a function in a Python file, or MSCCL's."""

import ast
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from ringsim.algorithms import ALGORITHMS, BY_SIZE, TWO_LEVEL, built_in
from ringsim.files import quoted
from ringsim.formats import read_msccl
from ringsim.limits import PROVED_COUNTS
from ringsim.schedule import Collective, Schedule, ScheduleError, require_count, split, verify
from ringsim.suggestions import suggestion
from ringsim.units import whole_number

MAX_SEGMENTS = 2**16
MAX_RANKS_PER_HOST = 2**16


@dataclass(frozen=True, slots=True)
class AlgorithmName:
    """`hierarchical@4/2`: the algorithm for hosts of 4 ranks, with every chunk in 2 segments."""

    base: str
    ranks_per_host: int | None = None
    segments: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of a name. Raises ValueError unless numbers in range follow an `@` or a slash."""
        whole, slash, segments = text.partition("/")
        base, at, per_host = whole.partition("@")
        if slash and not _is_count(segments, MAX_SEGMENTS):
            raise _error(text, f"after the slash must come a number of segments, 1..{MAX_SEGMENTS}")
        if at and not _is_count(per_host, MAX_RANKS_PER_HOST):
            raise _error(text, f"after the @ must come the number of ranks of a host, 1..{MAX_RANKS_PER_HOST}")
        return cls(base, int(per_host) if at else None, int(segments or 1))

    @property
    def whole(self) -> str:
        return self.base if self.ranks_per_host is None else f"{self.base}@{self.ranks_per_host}"


def _error(algorithm: str, fault: str, kind: type[Exception] = ValueError) -> Exception:
    return kind(f"algorithm {algorithm!r}: {fault}")


def base_name(algorithm: str) -> str:
    """Return the name up to its first `@` or `/`: `hierarchical` of `hierarchical@4/2`."""
    return algorithm.partition("/")[0].partition("@")[0]


def _is_count(text: str, most: int) -> bool:
    return 1 <= (whole_number(text) or 0) <= most


_COUNTS = re.compile("[:;] (?=[^:;]*(?:step|round))")  # where a docstring begins to count


def algorithm(
    name: str, num_ranks: int, collective: Collective | str = Collective.ALL_REDUCE, size_bytes: int | None = None
) -> Schedule:
    """Return the schedule of the algorithm `name` for `num_ranks` ranks.

    name: a built-in one, see ALGORITHMS; `ring/4` has every chunk in 4 segments, `hierarchical@4`, or another of
    TWO_LEVEL, 4 ranks per host. Or FILE.py:FUNCTION, which takes the number of ranks and returns a Schedule; or MSCCL's
    FILE.xml.
    size_bytes: of the whole tensor, for schedules that depend on it, such as `gloo_ring`; None: a small one.

    Raises ValueError for a name that the collective does not have, for less than one rank, and for mistakes in a file;
    ScheduleError for a user's schedule that `verify` refuses; beyond about 160 ranks it is not proved here.

        >>> from ringsim import algorithm
        >>> algorithm("ring", num_ranks=8)
        Schedule(all_reduce ring over 8 ranks, 8 chunks, 14 steps)
        >>> algorithm("binomial_tree", 8, "broadcast")
        Schedule(broadcast binomial_tree over 8 ranks, 1 chunk, 3 steps)
    """
    if not isinstance(name, str):
        raise ValueError(f"algorithm {quoted(name)}: must be a name, such as 'ring'")
    return build(Collective(collective), name, num_ranks, size_bytes)


def build(collective: Collective | None, algorithm: str, num_ranks: int, size_bytes: int | None = None) -> Schedule:
    """Return the schedule of `algorithm`, with its errors. collective: None: the file's."""
    schedule = _build(collective, algorithm, num_ranks, size_bytes)
    if not is_built_in(collective, algorithm) and num_ranks**2 * schedule.num_chunks <= PROVED_COUNTS:
        verify(schedule)
    return schedule


def build_proved(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int | None = None) -> Schedule:
    """Return the schedule of `build`, proved at any size: on real ranks a wrong one gives wrong sums."""
    schedule = _build(collective, algorithm, num_ranks, size_bytes)
    if not is_built_in(collective, algorithm):
        verify(schedule)
    return schedule


def _build(collective: Collective | None, algorithm: str, num_ranks: int, size_bytes: int | None) -> Schedule:
    require_count("num_ranks", num_ranks)
    if names_file(algorithm):
        is_msccl = algorithm.endswith(".xml")
        if is_msccl and not Path(algorithm).is_file():
            raise _error(algorithm, "there is no such file")
        schedule = read_msccl(algorithm) if is_msccl else build_from_file(algorithm, num_ranks)
        _require_asked_for(schedule, collective, algorithm, num_ranks)
        return schedule
    assert collective is not None
    name = _parsed(collective, algorithm)
    hosts = _hosts_keyword(name)
    schedule = built_in(collective, name.base, num_ranks, size_bytes, **hosts)
    if hosts:
        schedule = replace(schedule, algorithm=name.whole)
    return split(schedule, name.segments)


def _require_asked_for(schedule: Schedule, collective: Collective | None, algorithm: str, num_ranks: int) -> None:
    asked = collective or schedule.collective
    if (schedule.collective, schedule.num_ranks) != (asked, num_ranks):
        own = schedule.collective.value
        remedy = "" if asked is schedule.collective else f": give the collective {own} (--collective {own})"
        reason = f"it is {own} over {schedule.num_ranks} ranks; asked for is {asked.value} over {num_ranks}"
        raise _error(algorithm, f"{reason}{remedy}")


def _parsed(collective: Collective, algorithm: str) -> AlgorithmName:
    if not is_built_in(collective, algorithm):
        known = [name for owner, name in ALGORITHMS if owner is collective]
        own = f"or give your own as FILE.py:FUNCTION or FILE.xml{suggestion(base_name(algorithm), known)}"
        raise _error(algorithm, f"{collective.value} has {', '.join(known)}; {own}")
    name = AlgorithmName.parse(algorithm)
    if name.ranks_per_host is not None and name.base not in TWO_LEVEL:
        only = f"only {', '.join(TWO_LEVEL)} take an @"
        raise _error(algorithm, f"{name.base} is the same however many ranks a host has; {only}")
    return name


def _hosts_keyword(name: AlgorithmName) -> dict[str, int]:
    return {} if name.ranks_per_host is None else {"ranks_per_host": name.ranks_per_host}


def build_recorded(
    collective: Collective, algorithm: str, num_ranks: int, size_bytes: int, trusted: Collection[str] = ()
) -> Schedule:
    """Build a schedule by a name from measurements, whose author could otherwise run a Python file as the user.

    trusted: names, FILE.py:FUNCTION, whose files may be run. Raises ValueError for other files, and as `build`.
    """
    require_trusted("the measurements name", algorithm, trusted)
    return build(collective, algorithm, num_ranks, size_bytes)


def require_trusted(named: str, algorithm: str, trusted: Collection[str]) -> None:
    """Raise ValueError for a function of an untrusted Python file. named: such as "the measurements name"."""
    if ":" in algorithm and not algorithm.endswith(".xml") and algorithm not in trusted:
        rule = f"which is run only if you trust it: give --trust {algorithm}"
        raise _error(algorithm, f"{named} a Python file, {rule}")


def is_built_in(collective: Collective | None, algorithm: str) -> bool:
    """Return whether the algorithm is built in, and therefore proved by our tests."""
    return not names_file(algorithm) and (collective, base_name(algorithm)) in ALGORITHMS


def names_file(algorithm: str) -> bool:
    """Return whether the name is a file's."""
    return ":" in algorithm or algorithm.endswith((".xml", ".py"))


def summary_of(collective: Collective, algorithm: str) -> str:
    """Return a built-in algorithm's docstring up to the number of its steps."""
    line = (ALGORITHMS[collective, algorithm].__doc__ or "").partition("\n")[0].removeprefix("Return ")
    summary = _COUNTS.split(line)[0].rstrip(".").replace("`", "")
    return summary[:1].upper() + summary[1:]


@lru_cache  # every call of a collective asks
def size_variant(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int) -> int:
    """Return a number that is equal for sizes with the same schedule.

    It is the number of segments of Gloo's ring and of NCCL's trees and NVLS, and 0 for other algorithms.
    """
    key = collective, base_name(algorithm)
    if key not in BY_SIZE:
        return 0
    return BY_SIZE[key][0](num_ranks, size_bytes, **_hosts_keyword(AlgorithmName.parse(algorithm)))


def build_from_file(algorithm: str, num_ranks: int) -> Schedule:
    """Return the schedule that the function makes for `num_ranks`; each call runs the file anew.

    Raises ValueError if there is no such file or function, if either raises, and for another result.
    """
    if algorithm.endswith(".py"):
        raise _error(algorithm, _functions(algorithm, Path(algorithm)))
    file, _, function = algorithm.rpartition(":")
    schedule = _call(algorithm, _function(algorithm, Path(file), function), num_ranks)
    if not isinstance(schedule, Schedule):
        raise _error(algorithm, f"it returned {type(schedule).__name__}, not a Schedule")
    return replace(schedule, algorithm=f"{Path(file).name}:{function}")  # so that whatever is said of it names the file


def _functions(algorithm: str, path: Path) -> str:
    _require_file(algorithm, path)
    tree: ast.Module = _call(algorithm, ast.parse, path.read_bytes())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return f"name a function of the file: {' or '.join(f'{path}:{name}' for name in names) or 'it has none'}"


def _require_file(algorithm: str, path: Path) -> None:
    if not path.is_file():
        raise _error(algorithm, f"there is no file {str(path)!r}")


def _function(algorithm: str, path: Path, name: str) -> Any:
    _require_file(algorithm, path)
    module = ModuleType(f"ringsim_user_file_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the module they are in
    _call(algorithm, _run, module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = _functions(algorithm, path)
        raise _error(algorithm, f"there is no function {name!r} in {str(path)!r}: {functions}")
    return function


def _run(module: ModuleType) -> None:
    # No import: it might use the bytecode of an older file, and would write bytecode next to the file.
    path = Path(str(module.__file__))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # an error must be one line
        code = compile(path.read_bytes(), path, "exec")
    exec(code, vars(module))


def _call(algorithm: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except (Exception, SystemExit) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        kind = ScheduleError if isinstance(error, ScheduleError) else ValueError
        raise _error(algorithm, f"{_place(algorithm, error)}it raised {message}", kind) from error


def _place(algorithm: str, error: BaseException) -> str:
    file = algorithm.rpartition(":")[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(Path(file))]
    return f"line {lines[-1]}: " if lines else ""
