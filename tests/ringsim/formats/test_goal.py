"""GOAL text, read back by a tiny reader and timed by a tiny simulator that knows nothing of schedules."""

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given

from ringsim import Collective, Schedule, goal_lines
from ringsim.algorithms import NCCL_ALGORITHMS
from ringsim.registry import build
from ringsim.simulation import has_contention, simulate
from tests.ringsim.strategies import every_algorithm, schedules
from tests.ringsim.topologies import PrivateLinks

LINE = re.compile(
    r"(?P<label>[a-z]\d+): (?:(?P<kind>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)"
    r"(?: nic (?P<nic>\d+))?|calc (?P<ns>\d+))|(?P<later>[a-z]\d+) requires (?P<earlier>[a-z]\d+)"
)
LATENCY_NS, BYTE_NS = 5000.0, 8.0
REDUCE = 0.5e9  # bytes a second: 2 ns a byte, so that calc needs no rounding
NETWORK = PrivateLinks.uniform(LATENCY_NS * 1e-9, 1e9 / BYTE_NS, REDUCE)


@dataclass
class Op:
    """One operation of a rank, and the labels that it requires."""

    rank: int
    kind: str
    size: int = 0
    peer: int = 0
    tag: int = 0
    nic: int = 0
    ns: int = 0
    requires: list[str] = field(default_factory=list)


def parsed(text: str) -> dict[tuple[int, str], Op]:
    """All operations by rank and label; every line must be one that txt2bin takes."""
    ops: dict[tuple[int, str], Op] = {}
    header, *lines = text.splitlines()
    assert re.fullmatch(r"num_ranks \d+", header)
    rank = -1
    for line in lines:
        if match := re.fullmatch(r"rank (\d+) {", line):
            rank = int(match[1])
        elif line != "}":
            match = LINE.fullmatch(line)
            assert match, line
            if match["later"]:
                ops[rank, match["later"]].requires.append(match["earlier"])
            else:
                numbers = {name: int(match[name] or 0) for name in ("size", "peer", "tag", "nic", "ns")}
                assert (rank, match["label"]) not in ops
                ops[rank, match["label"]] = Op(rank, match["kind"] or "calc", **numbers)
    return ops


def finished_ns(ops: dict[tuple[int, str], Op]) -> float:
    """When the last operation is done: a message holds its link a time a byte and arrives a latency after that."""
    sends = {(op.rank, op.peer, op.tag): key for key, op in ops.items() if op.kind == "send"}
    assert len(sends) == sum(op.kind == "send" for op in ops.values()) == sum(op.kind == "recv" for op in ops.values())
    done: dict[tuple[int, str], float] = {}

    def finish(key: tuple[int, str]) -> float:
        if key not in done:
            op = ops[key]
            begin = max((finish((op.rank, label)) for label in op.requires), default=0.0)
            if op.kind == "recv":
                send = sends[op.peer, op.rank, op.tag]
                assert (ops[send].size, ops[send].nic) == (op.size, op.nic)
                begin = max(begin, finish(send) + LATENCY_NS)
            done[key] = begin + (op.ns if op.kind == "calc" else op.size * BYTE_NS if op.kind == "send" else 0)
        return done[key]

    return max((finish(key) for key in ops), default=0.0)


def assert_agrees(schedule: Schedule, size_bytes: int) -> None:
    """The tiny simulator finishes when ours does."""
    ops = parsed("".join(goal_lines(schedule, size_bytes, REDUCE)))
    assert finished_ns(ops) * 1e-9 == pytest.approx(simulate(schedule, NETWORK, size_bytes).time_s, rel=1e-9)


@every_algorithm
@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_another_simulator_finishes_at_the_same_time(collective: Collective, algorithm: str, num_ranks: int) -> None:
    """Every algorithm: the operations and what they require are all there is to know."""
    schedule = build(collective, algorithm, num_ranks)
    if has_contention(schedule, NETWORK.topology(num_ranks)):
        two_channels_share_a_link = ("double_binary_tree", *NCCL_ALGORITHMS)  # there one has it first
        assert num_ranks <= 3 or algorithm in two_channels_share_a_link
    else:
        assert_agrees(schedule, 12_345)


@given(schedules())
def test_so_it_does_for_random_schedules(schedule: Schedule) -> None:
    """Exchanges, chunks overwritten while they leave, several transfers of a pair in a step."""
    assert_agrees(schedule, 12_345)


def test_without_a_rate_nothing_is_calculated() -> None:
    """And an empty chunk is one byte, since LogGOPSim takes one off; the two directions use two nics."""
    ops = parsed("".join(goal_lines(build(Collective.ALL_REDUCE, "bidirectional_ring", 3), 2)))
    assert {op.kind for op in ops.values()} == {"send", "recv"}
    assert {op.size for op in ops.values()} == {1}
    assert {op.nic for op in ops.values()} == {0, 1}


def test_ranks_are_written_one_after_the_other() -> None:
    """Each transfer is told once, with the rank that receives it, and only when the lines of that rank are taken."""
    schedule = build(Collective.ALL_REDUCE, "hierarchical", 12)
    told: list[int] = []
    lines = goal_lines(schedule, 12_345, REDUCE, told.append)
    ranks_told = {line: len(told) for line in lines if line.startswith("rank ")}
    assert ranks_told == {f"rank {rank} {{\n": rank for rank in range(12)}
    received = [0] * 12
    for step in schedule.steps:
        for transfer in step:
            received[transfer.dst] += 1
    assert told == received
