"""`memory_limit`: the results of all ranks of a collective, computed by the threads of one process.

It reads every input and writes every result once, without sending or waiting: the limit of ranks that share the memory
of a host.
"""

import math
import statistics
import timeit
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise, product

import numpy as np
import numpy.typing as npt
import torch

from collectives.benchmark.case import BenchmarkCase, Buffers
from ringsim.limits import available_cores
from ringsim.schedule import held_at_end, held_at_start

Operation = Callable[[], object]
BLOCKS_BYTES = 2**16, 2**18, 2**20  # so that a block stays in a cache between its additions and copies
FOR_ONE_THREAD = 2**20  # bytes; up to here waking a second thread may take longer than its work
TRIES = 3


def memory_limit(case: BenchmarkCase, buffers: Sequence[Buffers]) -> Operation:
    """Return the operation that does `case` on the buffers of all ranks, in the fastest of several sizes of blocks.

    It has as many threads as ranks or cores, whichever are fewer, or one if that is faster. In place, sums of sums grow
    to infinity, which takes no longer.
    """
    num_threads = min(case.num_ranks, math.ceil(available_cores()))
    pool = ThreadPoolExecutor(num_threads)  # its threads end when the operation is freed
    whole = math.ceil(case.size_bytes / num_threads)
    sizes = {min(size, whole) for size in (*BLOCKS_BYTES, whole)}
    threads = {num_threads, 1 if case.size_bytes <= FOR_ONE_THREAD else num_threads}
    ways = (
        partial(_in_threads, _parts(blocks_of(case, buffers, size), count), pool)
        for size, count in product(sizes, threads)
    )
    return min(ways, key=lambda way: statistics.median(timeit.repeat(way, number=1, repeat=TRIES)))


def blocks_of(case: BenchmarkCase, buffers: Sequence[Buffers], block_bytes: int) -> list[list[Operation]]:
    """Return for each block the operations, in order, that compute it on all ranks that must hold it."""
    num_chunks = case.collective.num_shares(case.num_ranks)
    sources = _by_chunk([own.input for own in buffers], held_at_start(case.collective, case.num_ranks, num_chunks))
    targets = _by_chunk([own.output for own in buffers], held_at_end(case.collective, case.num_ranks, num_chunks))
    length = max(block_bytes // case.torch_dtype.itemsize, 1)
    return [
        _operations(block[: len(chunk_sources)], block[len(chunk_sources) :])
        for chunk_sources, chunk_targets in zip(sources, targets, strict=True)
        for block in zip(*(chunk.split(length) for chunk in (*chunk_sources, *chunk_targets)), strict=True)
    ]


def _by_chunk(tensors: Sequence[torch.Tensor], held: npt.NDArray[np.bool_]) -> list[list[torch.Tensor]]:
    """Return the places of each chunk, by rank; a rank's tensor is its chunks, in order."""
    places: list[list[torch.Tensor]] = [[] for _ in held.T]
    for tensor, chunks in zip(tensors, map(np.flatnonzero, held), strict=True):
        for chunk, place in zip(chunks, tensor.tensor_split(len(chunks)) if len(chunks) else (), strict=True):
            places[chunk].append(place)
    return places


def _operations(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> list[Operation]:
    """Return the operations that write the sum of `sources` to all `targets`. In place, one may be the other."""
    total = targets[0]
    # Written first, so it must be read first.
    first, *others = sorted(sources, key=lambda source: not source.is_set_to(total))
    additions = [partial(torch.add, total if index else first, other, out=total) for index, other in enumerate(others)]
    result = total if others else first
    return [*additions, *(partial(target.copy_, result) for target in targets if not target.is_set_to(result))]


def _parts(blocks: Sequence[Sequence[Operation]], count: int) -> list[list[Operation]]:
    ends = [len(blocks) * index // count for index in range(count + 1)]
    return [list(chain(*blocks[begin:end])) for begin, end in pairwise(ends)]


def _in_threads(parts: Sequence[Sequence[Operation]], pool: ThreadPoolExecutor) -> None:
    own, *others = parts
    waiting = [pool.submit(_do, part) for part in others]
    _do(own)
    for part in waiting:
        part.result()


def _do(operations: Sequence[Operation]) -> None:
    for operation in operations:
        operation()
