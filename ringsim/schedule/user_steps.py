"""Check the steps and numbers of a user.

NumPy's errors do not name the step, and NumPy would accept 0.5 for chunk 0.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ringsim.files import quoted
from ringsim.limits import require_memory
from ringsim.schedule.steps import BYTES_LISTED, ScheduleError, Steps, Transfer, TransferTable

ArrayColumns = tuple[npt.NDArray[np.integer | np.bool_], ...]  # one for each field of a transfer
LARGEST = 2**63 - 1  # that fits into a column
REDUCE = Transfer._fields.index("reduce")
MAX_CHANNELS = 2**20  # more than a rank has peers, or a schedule rings
MAX_CHUNKS = 2**31 - 1  # that fit into the table of a schedule
LARGE_STEP = 2**16  # transfers; smaller ones come one by one, and memory is not looked at for each


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} {quoted(value)}: must be a whole number")
    if value < least:
        raise ValueError(f"{name} {value}: must be at least {least}")


def whole_numbers(name: str, values: object) -> npt.NDArray[np.int64]:
    """Return the values as an array. Raises ValueError for fractions, text, ragged lists and non-lists."""
    array = _as_whole(values)
    if array is None:
        raise ValueError(f"{name} {quoted(values)}: must be whole numbers, in a list or an array")
    return array.astype(np.int64)


def listed_steps(num_ranks: int, num_chunks: int, steps: Iterable[ArrayColumns]) -> Steps:
    """Return steps from the columns of each step, which are broadcast to one shape and read row by row.

    Raises ScheduleError for a rank, chunk or channel out of range, and ValueError if there is no memory for a step.
    """
    listed = [_in_range(index, columns, num_ranks, num_chunks) for index, columns in enumerate(steps)]
    return Steps.listed(len(listed), TransferTable.of_steps(listed))


def _in_range(step: int, columns: ArrayColumns, num_ranks: int, num_chunks: int) -> list[npt.NDArray[Any]]:
    same_length = np.broadcast_arrays(*columns)
    if (num_transfers := same_length[0].size) > LARGE_STEP:
        require_memory(f"a step of {num_transfers:,} transfers", num_transfers * BYTES_LISTED)
    src, dst, chunk, reduce, channel = (np.ravel(column).astype(np.int64) for column in same_length)
    limits = (num_ranks, num_ranks, min(num_chunks, MAX_CHUNKS), MAX_CHANNELS)
    named = list(zip(("src", "dst", "chunk", "channel"), (src, dst, chunk, channel), limits, strict=True))
    wrong = src == dst
    for _, values, limit in named:
        wrong = wrong | (values < 0) | (values >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        for name, values, limit in named:
            if not 0 <= values[row] < limit:
                raise ScheduleError(f"step {step}: {name} {values[row]} is not in 0..{limit - 1}")
        raise ScheduleError(f"step {step}, rank {src[row]}: chunk {chunk[row]} is sent to itself")
    return [src, dst, chunk, reduce, channel]


def transfers_by_step(steps: Any) -> Iterator[ArrayColumns]:
    """Return the transfers of each step as columns.

    Raises ValueError for anything but a list of transfers, and ScheduleError for anything but a transfer in it.
    """
    for index, rows in enumerate(_each(steps)):
        if isinstance(rows, tuple) and hasattr(rows, "_fields"):
            raise ValueError(f"step {index}: {rows} is a transfer: a step must be a list of transfers")
        if not _is_list(rows):
            raise ValueError(f"step {index}: {quoted(rows)} is no list of transfers")
        table = np.array([_transfer(index, row) for row in rows], dtype=np.int64)
        yield tuple(table.reshape(-1, len(Transfer._fields)).T)


def _transfer(step: int, row: Any) -> Transfer:
    names = Transfer._fields
    if not (isinstance(row, tuple) or _is_list(row)):
        raise ValueError(
            f"step {step}: {quoted(row)} is no transfer, which has {', '.join(names)}; a step is a list of transfers"
        )
    values = tuple(row)
    for place, value in enumerate(values):
        if value is True or value is False:
            continue  # most often, and the quickest to tell
        if type(value) is int and not -LARGEST <= value <= LARGEST:
            raise ValueError(f"step {step}: {quoted(row, 120)}: a number does not fit 64 bits")
        if place == REDUCE and not (isinstance(value, int | np.integer | np.bool_) and value in (0, 1)):
            raise ValueError(f"step {step}: reduce {quoted(value)}: must be True or False")
    if not len(names) - 1 <= len(values) <= len(names):
        raise ScheduleError(
            f"step {step}: {values} is no transfer: it must have {', '.join(names[:-1])}, and may have {names[-1]}"
        )
    for name, value in zip(names, values, strict=False):
        if not isinstance(value, int | np.integer | np.bool_):
            raise ScheduleError(f"step {step}: {name} {value!r} is not a whole number")
    return Transfer(*values)


def columns_by_step(steps: Any) -> Iterator[ArrayColumns]:
    """Return the columns of each step as arrays that broadcast; the last column may be left out.

    Raises ScheduleError for a wrong number of columns, and ValueError for anything else.
    """
    names = Transfer._fields
    for index, columns in enumerate(_each(steps)):
        if not isinstance(columns, tuple | list | np.ndarray):
            raise ValueError(f"step {index}: {quoted(columns)}: must be the columns {', '.join(names)}")
        if not len(names) - 1 <= len(columns) <= len(names):
            raise ScheduleError(
                f"step {index}: it has {len(columns)} columns: must have {', '.join(names[:-1])}, and may have "
                f"{names[-1]}"
            )
        arrays = tuple(_column(index, name, values) for name, values in zip(names, columns, strict=False))
        try:
            np.broadcast_shapes(*(array.shape for array in arrays))
        except ValueError:
            counts = ", ".join(str(array.size) for array in arrays)
            raise ValueError(
                f"step {index}: its columns have {counts} values: each must have as many as the others, or one"
            ) from None
        yield arrays if len(arrays) == len(names) else (*arrays, np.zeros((), np.int64))


def _column(step: int, name: str, values: object) -> npt.NDArray[np.integer | np.bool_]:
    array = _as_whole(values)
    if array is None:
        raise ValueError(f"step {step}: {name} {quoted(values)}: must be whole numbers")
    if name == "reduce" and array.dtype.kind != "b" and ((array != 0) & (array != 1)).any():
        raise ValueError(f"step {step}: reduce {quoted(values)}: must be True or False")
    return array


def _as_whole(values: object) -> npt.NDArray[np.integer | np.bool_] | None:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):  # such as lists of different lengths
        return None
    if array.size == 0 and array.dtype.kind == "f":
        return array.astype(np.int64)  # an empty list
    return array if array.dtype.kind in "iub" else None


def _each(steps: Any) -> Iterator[Any]:
    if not _is_list(steps):
        raise ValueError(f"steps {quoted(steps)}: must be a list, with a list of transfers for each step")
    return iter(steps)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict | set)
