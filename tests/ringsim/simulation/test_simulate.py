"""Virtual time: hand-worked cases, and a plain reading of the rule of execution."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import NEVER, Collective, Network, Schedule, Timeline, Transfer, predict_time, ring_all_reduce
from ringsim.registry import build
from ringsim.simulation import simulate
from tests.ringsim.strategies import schedules
from tests.ringsim.topologies import PrivateLinks

NETWORK = Network(
    latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=4e9, gap_s=1e-6, receive_overhead_s=2e-6
)


def plainly_simulated(
    schedule: Schedule, network: Network, size: int, in_order: bool
) -> list[tuple[float, float, float]]:
    """The rule of execution read aloud, with private links, one transfer at a time: (start, left, applied)."""
    chunk_bytes = schedule.chunk_bytes(size).tolist()
    done: list[tuple[int, Transfer, float, float, float]] = []  # step, transfer, start, left, applied
    for index, step in enumerate(schedule.steps):
        started = []
        for transfer, data_dependency in zip(step, step.data_dependency, strict=True):
            written = {s for s, t, *_ in done if (t.dst, t.chunk) == (transfer.src, transfer.chunk)}
            assert data_dependency == max(written, default=NEVER)
            to_src = [(t.chunk, a) for _, t, _, _, a in done if t.dst == transfer.src]
            ahead = [
                (t.dst, left)
                for _, t, _, left, _ in done + started
                if (t.src, t.channel) == (transfer.src, transfer.channel)
            ]
            needs_all = in_order and any(dst != transfer.dst for dst, _ in ahead[-1:])
            ready = max((a for chunk, a in to_src if needs_all or chunk == transfer.chunk), default=0.0)
            start = max([ready, *(left for _, left in ahead[-1:])])
            size_ = chunk_bytes[transfer.chunk]
            left = start + (network.gap_s + size_ / network.bandwidth_bytes_per_s)
            started.append((index, transfer, start, left, math.nan))
        finished = []
        for _, transfer, start, left, _ in started:
            waits = [x for _, t, _, x, _ in done + started if (t.src, t.chunk) == (transfer.dst, transfer.chunk)]
            before = [
                a
                for _, t, _, _, a in done + finished
                if t.dst == transfer.dst
                and (in_order or t.chunk == transfer.chunk or (t.src, t.channel) == (transfer.src, transfer.channel))
            ]
            begin = max([left + network.latency_s, *waits, *before])
            add = chunk_bytes[transfer.chunk] / network.reduce_bytes_per_s if transfer.reduce else 0.0
            finished.append((index, transfer, start, left, begin + (network.receive_overhead_s + add)))
        done += finished
    return [(start, left, applied) for _, _, start, left, applied in done]


@given(schedules(), st.integers(0, 10**5), st.booleans())
def test_vectors_give_what_the_rule_says(schedule: Schedule, size: int, in_order: bool) -> None:
    """On random schedules, with ranks that send and receive several chunks in one step: the same to the last bit."""
    network = PrivateLinks(**asdict(NETWORK))
    timeline = simulate(schedule, network, size, in_order=in_order)
    columns = (timeline.start_s, timeline.left_s, timeline.applied_s)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == plainly_simulated(
        schedule, network, size, in_order
    )
    assert predict_time(schedule, network, size, in_order=in_order) == timeline.time_s


@given(schedules(), st.integers(0, 10**4))
def test_in_order_a_rank_applies_in_step_order(schedule: Schedule, size: int) -> None:
    """Everything, and what it sends on one channel leaves in step order; nothing is earlier than it may be."""
    network = PrivateLinks(**asdict(NETWORK))
    timeline, permitted = simulate(schedule, network, size, in_order=True), simulate(schedule, network, size)
    assert (permitted.applied_s <= timeline.applied_s).all()
    for rank in range(schedule.num_ranks):
        order = timeline.applied_order(rank)
        assert [step for step, *_ in order] == sorted(step for step, *_ in order)
        for other in range(schedule.num_ranks):
            sent = [step for step, _ in timeline.sent_order(rank, other)]
            assert sent == sorted(sent)


def test_steps_are_no_barrier() -> None:
    """A transfer of a later step starts at once if it waits for nothing in an earlier one."""
    rows = [[Transfer(0, 1, 0, True)], [Transfer(2, 3, 1, True)]]
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "two", 4, 2, rows)
    assert simulate(schedule, NETWORK, 2000).start_s.tolist() == [0.0, 0.0]


def test_uneven_chunks_cost_what_they_weigh() -> None:
    """Five bytes over two chunks: two and three, at 1 B/s."""
    schedule = build(Collective.ALL_GATHER, "ring", 2)
    timeline = simulate(schedule, Network(0.0, 1.0), 5)
    assert timeline.left_s.tolist() == [2.0, 3.0]
    assert simulate(schedule, Network(0.0, 1.0), 20, element_bytes=4).left_s.tolist() == [8.0, 12.0]


def test_pipelining_hides_the_reduction() -> None:
    """With two segments a rank, one travels while the other is added; so Gloo's ring beats the plain one here."""
    network = Network(latency_s=0.0, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=1e9)
    plain, gloo = (
        predict_time(build(Collective.ALL_REDUCE, name, 4), network, 8_000_000) for name in ("ring", "gloo_ring")
    )
    assert gloo < plain


def test_a_single_rank_does_nothing() -> None:
    """No transfers, no time."""
    timeline = simulate(ring_all_reduce(1), NETWORK, 1000)
    assert (len(timeline), timeline.time_s) == (0, 0.0)


def test_columns_are_ready_for_json() -> None:
    """Plain lists, one per column."""
    timeline = simulate(ring_all_reduce(2), NETWORK, 1000)
    assert isinstance(timeline, Timeline)
    assert timeline.columns()["src"] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size_bytes": 10, "element_bytes": 4}, "size 10 bytes: must be a multiple of the element size, 4 bytes"),
        ({"size_bytes": -4}, "num_elements -4: must not be negative"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, int], message: str) -> None:
    """The message names the value and the rule."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        predict_time(ring_all_reduce(2), NETWORK, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1e9), "latency_s -1.0: must be finite and not negative"),
        ((math.nan, 1e9), "latency_s nan: must be finite and not negative"),
        ((0.0, 0.0), "bandwidth_bytes_per_s 0.0: must be greater than 0"),
        ((0.0, 1e9, -1.0), "reduce_bytes_per_s -1.0: must be greater than 0"),
    ],
)
def test_impossible_networks_are_refused(arguments: tuple[float, ...], message: str) -> None:
    """The message names the field, the value and the rule."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        Network(*arguments)
