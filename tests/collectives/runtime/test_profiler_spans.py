"""Transfers have names on a profiler's time line: those of the schedule, each as often as it happens."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime import transport_in_use
from collectives.runtime.schedule_run import NAMES, profiling
from ringsim.registry import build
from ringsim.schedule import Collective, rank_program
from tests.collectives.shared_groups import finish
from tests.ranks import RankPool

NUM_RANKS = 3


def profiled_names(group: dist.ProcessGroup, folder: Path, async_op: bool) -> tuple[list[str], str]:
    """The names in the trace of one all_reduce, which a thread of its own carries out if `async_op`; the transport."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    tensor = torch.arange(7.0) + group.rank()
    collectives.all_reduce(tensor, group=group)  # unnamed: no profiler yet
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as profiler:
        assert profiling()
        finish(collectives.all_reduce(tensor, group=group, async_op=async_op))
    assert not profiling()
    collectives.all_reduce(tensor, group=group)
    path = folder / f"trace-{group.rank()}.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return names, transport_in_use(group)


@pytest.mark.parametrize("async_op", [False, True])
def test_every_transfer_is_named_once(ranks: RankPool, tmp_path: Path, async_op: bool) -> None:
    """With step, chunk and peer, whichever thread is at it; nobody waits for what leaves through shared memory."""
    found = ranks.run(profiled_names, tmp_path, async_op, num_ranks=NUM_RANKS)
    schedule = build(Collective.ALL_REDUCE, "ring", NUM_RANKS)
    for rank, (names, transport) in enumerate(found):
        program = rank_program(schedule, rank)
        received = [f"step {r.step}, receive chunk {r.chunk} from rank {r.peer}" for r in program.receives]
        applied = [each.replace("receive", "apply") for each in received]
        sent = [f"step {s.step}, send chunk {s.chunk} to rank {s.peer}" for s in program.sends]
        left = [re.sub(r"send (.*) to", r"wait until \1 has left for", each) for each in sent]
        waits = left if transport == "gloo" else []
        wanted = [f"ring all_reduce: {each}" for each in (*received, *applied, *sent, *waits)]
        assert len(wanted) + len(left) - len(waits) == len(NAMES) * len(program.receives)
        assert Counter(name for name in names if name.startswith("ring ")) == Counter(wanted)
