"""all_to_all, gather, scatter and uneven shares in recorded programs: ours, and torch's on Gloo and on "ring"."""

from pathlib import Path

import pytest

from ringsim import Network
from ringsim.training_step import Computing, predict_trace
from tests.collectives.test_recording import trace_of

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import collectives

calls = collectives if sys.argv[1] == "collectives" else dist
dist.init_process_group("gloo" if sys.argv[1] == "gloo" else "ring")
rank, size = dist.get_rank(), dist.get_world_size()
lengths = list(range(1, size + 1))  # of the blocks for each rank
mine = lengths[rank]
weights = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weights])


def exchange():
    equal, uneven = torch.empty(size), torch.empty(size * mine)
    calls.all_to_all_single(equal, torch.arange(float(size)))
    assert equal.tolist() == [rank] * size
    calls.all_to_all_single(uneven, torch.arange(float(sum(lengths))), [mine] * size, lengths, async_op=True).wait()
    assert uneven.tolist() == list(range(sum(lengths[:rank]), sum(lengths[: rank + 1]))) * size
    received = [torch.empty(mine) for _ in lengths]
    calls.all_to_all(received, [torch.full((length,), float(length)) for length in lengths])
    assert all(block.tolist() == [mine] * mine for block in received)


def share():
    gathered = [torch.empty(3) for _ in lengths] if rank == 1 else None
    calls.gather(torch.full((3,), 5.0), gathered, dst=1)
    assert gathered is None or gathered[2].tolist() == [5.0] * 3
    given = [torch.full((2,), float(length)) for length in lengths] if rank == 1 else None
    share = torch.zeros(2)
    calls.scatter(share, given, src=1)
    assert share.tolist() == ([mine] * 2 if rank == 1 else [0.0] * 2)
    parts = [torch.empty(length) for length in lengths]
    calls.all_gather(parts, torch.full((mine,), 5.0))
    assert all(part.tolist() == [5.0] * len(part) for part in parts)
    total = torch.empty(mine)
    calls.reduce_scatter(total, [torch.ones(length) for length in lengths])
    assert total.tolist() == [size] * mine


while True:
    exchange()
    share()
    weights.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_exchanges_are_recorded_alike_whoever_does_them(program: Path, rank: int) -> None:
    """The same calls of the same sizes, with the results that come if all ranks hold what this one holds.

    Ours and the backend's are also predicted alike.
    """
    traces = {way: trace_of(program, way, num_ranks=4, rank=rank) for way in ("gloo", "ring", "collectives")}
    calls = {
        way: [
            (call.collective, call.size_bytes, call.dtype, call.is_async, call.peer) for call in trace.steps[-1].calls
        ]
        for way, trace in traces.items()
    }
    assert [(name, size) for name, size, *_ in calls["gloo"]] == [
        ("all_to_all", 4 * 4),
        ("all_to_all", 4 * 10),
        ("all_to_all", 4 * 10),
        ("gather", 4 * 3 * 4),
        ("scatter", 4 * 2 * 4),
        ("all_gather", 4 * 10),
        ("reduce_scatter", 4 * 10),
    ]
    assert calls["gloo"] == calls["ring"] == calls["collectives"]
    network = Network(latency_s=1.0, bandwidth_bytes_per_s=100.0)  # so slow that what the program computes is nothing
    predicted_s = {way: predict_trace(trace, network, Computing()).timeline.step_s for way, trace in traces.items()}
    assert predicted_s["collectives"] == pytest.approx(predicted_s["ring"], rel=0.01)
    assert predicted_s["gloo"] > 0
