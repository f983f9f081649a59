"""`replay`: run a schedule step by step on arrays in one process, with the result that any execution must have."""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ringsim.schedule.schedule import Schedule


def replay(
    schedule: Schedule,
    buffers: Sequence[Any],
    *,
    sent: Callable[[Any], Any] | None = None,
    combine: Callable[[Any, Any], object] = operator.iadd,
) -> None:
    """Run `schedule` on one buffer per rank, in place.

    buffers: num_ranks one-dimensional arrays of equal length and dtype; NumPy arrays and torch tensors both
    will do, since only slicing, copying and `+=` are asked of them. The additions happen in the order that
    the rule of execution fixes, so a real run on the same data must give the same bits.

    sent: what being sent does to a chunk, such as rounding it; its sender goes on with the same.
    combine: called with a chunk and what arrived for it, to change the chunk in place.

    Raises ValueError if there is not one buffer of the same length per rank.

        >>> import numpy as np
        >>> from ringsim import replay, ring_all_reduce
        >>> buffers = [np.arange(4) + 10 * rank for rank in range(3)]
        >>> replay(ring_all_reduce(3), buffers)
        >>> buffers[0]
        array([30, 33, 36, 39])
    """
    lengths = {len(buffer) for buffer in buffers}
    if len(buffers) != schedule.num_ranks or len(lengths) != 1:
        raise ValueError(
            f"{schedule}: got {len(buffers)} buffers of lengths {sorted(lengths)}; needs one of equal length per rank"
        )
    bounds = schedule.bounds(lengths.pop()).tolist()
    for step in schedule.steps:
        # Everything is read before anything is written: rules 1 and 4.
        messages = []
        for src, _, chunk, *_ in step:
            source = buffers[src][bounds[chunk] : bounds[chunk + 1]]
            if sent is not None:
                source[:] = sent(source)
            messages.append(copy.deepcopy(source))
        for (_, dst, chunk, reduce, _), data in zip(step, messages, strict=True):
            target = buffers[dst][bounds[chunk] : bounds[chunk + 1]]
            if reduce:
                combine(target, data)
            else:
                target[:] = data
