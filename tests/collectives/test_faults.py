"""A peer that dies or stalls: an error on every other rank, in time, that says who waits for whom."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.ranks import RankPool

PEER_TIMEOUT_S = 3.0


def reduce_for_ever(group: dist.ProcessGroup) -> None:
    """All-reduce until something goes wrong, which it will."""
    while True:
        collectives.all_reduce(torch.ones(100_000), group=group)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "stalls"])
def test_the_others_are_told(tmp_path: Path, how: signal.Signals) -> None:
    """Rank 1 of three dies or stalls in the middle; ranks 0 and 2 raise within the timeout, naming step and peer."""
    with RankPool(3, tmp_path, PEER_TIMEOUT_S) as pool:
        pool.start(reduce_for_ever)
        time.sleep(0.5)  # not to wait for a result: to let the collectives get going before the fault
        victim = pool.processes[1].pid
        os.kill(victim, how)
        try:
            answers = pool.answers([0, 2], timeout_s=4 * PEER_TIMEOUT_S)
        finally:
            os.kill(victim, signal.SIGKILL)
    assert sorted(answers) == [0, 2], "a rank hangs"
    for rank, (good, text) in answers.items():
        assert not good
        last = [line for line in text.splitlines() if "CollectiveError: " in line][-1]
        assert f"rank {rank}: all_reduce ring over 3 ranks: step " in last
        assert "chunk " in last
        assert re.search(r"(receiving chunk \d from|sending chunk \d to) rank \d failed: ", last)
    assert any("rank 1 failed: " in text for _, text in answers.values())
