"""Laws that every simulated time obeys, whatever the schedule and the network.

Every time is a maximum of earlier times plus costs. So what grows with each cost grows with all, also when rounded:
where a law says "never less" or "the same" it is meant to the last bit.
"""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import assume, given
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, Timeline, permute_ranks, predict_time
from ringsim.analysis.candidates import busbw_bytes_per_s
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.schedule.collective import owners
from ringsim.schedule.dependencies import dependencies
from ringsim.schedule.flow import NO_ROW
from ringsim.simulation import IN_ORDER, RULE, has_contention, simulate
from tests.ringsim.strategies import build_key, built_in_schedules, networks, schedules, uniform_networks
from tests.ringsim.topologies import PrivateLinks

TIMES = ("start_s", "sent_s", "arrived_s", "apply_s", "applied_s")
ROUNDING = 1 + 1e-12
COSTS = [field.name for field in fields(Network)]
OWNED = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
OF_SHARES = (Collective.GATHER, Collective.SCATTER)  # the root alone needs all, and only it has, or gets, them
ONE_LINK = ("ring", "gloo_ring")  # a rank sends to one other only

any_schedules = schedules() | built_in_schedules()
sizes = st.integers(0, 300)


def times_of(timeline: Timeline) -> npt.NDArray[np.float64]:
    """All times, (5, num_transfers)."""
    return np.stack([getattr(timeline, name) for name in TIMES])


def senders(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Of each transfer a number for its channel of its rank."""
    parts = [step.channel * schedule.num_ranks + step.src for step in schedule.steps]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def transfer_bytes(schedule: Schedule, timeline: Timeline, size: int) -> npt.NDArray[np.int64]:
    """The bytes of each transfer."""
    return schedule.chunk_bytes(size)[timeline.chunk]


def shares_of(schedule: Schedule, size: int) -> npt.NDArray[np.float64]:
    """The bytes of each rank's share of the data, (num_ranks,)."""
    owner = owners(schedule.num_ranks, schedule.num_chunks)
    return np.bincount(owner, schedule.chunk_bytes(size), schedule.num_ranks)


# Monotone: nothing that gets worse makes anything happen earlier.


@given(any_schedules, sizes, uniform_networks(PrivateLinks), uniform_networks(PrivateLinks), st.sampled_from(COSTS))
def test_a_worse_network_is_never_faster(
    schedule: Schedule, size: int, network: Network, other: Network, name: str
) -> None:
    """In latency, 1/bandwidth, 1/reduce rate and each overhead: no transfer starts, leaves or is applied earlier."""
    assume(not has_contention(schedule, network.topology(schedule.num_ranks)))  # as channels between two ranks do
    worse = (min if name.endswith("_per_s") else max)(getattr(network, name), getattr(other, name))
    slower = simulate(schedule, replace(network, **{name: worse}), size)
    assert (times_of(slower) >= times_of(simulate(schedule, network, size))).all()


@given(any_schedules, sizes, st.integers(0, 300), uniform_networks(PrivateLinks))
def test_larger_chunks_are_never_faster(schedule: Schedule, size: int, more: int, network: Network) -> None:
    """From the next multiple of the number of chunks on, no chunk is smaller than before, but as Gloo cuts."""
    larger = -(-size // schedule.num_chunks) * schedule.num_chunks + more
    assume(not has_contention(schedule, network.topology(schedule.num_ranks)))
    assume((schedule.chunk_bytes(larger) >= schedule.chunk_bytes(size)).all())
    assert (times_of(simulate(schedule, network, larger)) >= times_of(simulate(schedule, network, size))).all()


@given(st.sampled_from((*OWNED, Collective.ALL_REDUCE)), st.integers(2, 12), sizes, st.integers(0, 300), networks())
def test_more_bytes_are_never_faster_on_a_ring(
    collective: Collective, num_ranks: int, size: int, more: int, network: Network
) -> None:
    """Also where the chunks are uneven. Not proved, but no exception is known."""
    ring = build_key((collective, "ring"), num_ranks)
    assert predict_time(ring, network, size) <= predict_time(ring, network, size + more) * ROUNDING


def test_elsewhere_a_byte_more_can_be_faster() -> None:
    """Since it moves the bounds of the chunks: of six, with 2 bytes 2 and 5 are not empty, with 3 bytes 1, 3 and 5."""
    rings = build_key((Collective.ALL_REDUCE, "bidirectional_ring"), 3)
    network = PrivateLinks(0.0, 1.0, reduce_bytes_per_s=0.5)
    assert [predict_time(rings, network, size, runtime=IN_ORDER) for size in (2, 3)] == [10.0, 8.0]


# Never below the lower bounds.


@given(any_schedules, sizes, networks())
def test_never_faster_than_any_link_or_rank(schedule: Schedule, size: int, network: Network) -> None:
    """A channel sends one message at a time, the last of which is then to be applied; in order, a rank applies one."""
    timeline = simulate(schedule, network, size, runtime=IN_ORDER)
    bytes_ = transfer_bytes(schedule, timeline, size)
    send = network.gap_s + bytes_ / network.bandwidth_bytes_per_s
    apply = network.receive_overhead_s + np.where(timeline.reduce, bytes_ / network.reduce_bytes_per_s, 0)
    of_channel = np.bincount(np.unique(senders(schedule), return_inverse=True)[1], send)
    of_rank = np.bincount(timeline.dst, apply)
    for busy_s, other_end_s in ((of_channel, network.receive_overhead_s), (of_rank, network.gap_s)):
        bound = busy_s[busy_s > 0] + network.latency_s + other_end_s
        assert timeline.time_s * ROUNDING >= bound.max(initial=0)


@given(any_schedules, sizes, networks())
def test_never_faster_than_its_hops(schedule: Schedule, size: int, network: Network) -> None:
    """Each costs the latency and both overheads, in the longest chain of sends of what was just received.

    ceil(log2(n)) hops are no bound here: a rank may send to many at once.
    """
    hop_s = network.latency_s + network.gap_s + network.receive_overhead_s
    assert predict_time(schedule, network, size) * ROUNDING >= hops(schedule) * hop_s


def hops(schedule: Schedule) -> int:
    """The longest chain of transfers each of which waits for the one before it to be applied."""
    depth: list[int] = []
    for ready in dependencies(schedule).data_dependency.tolist():
        depth.append(1 if ready == NO_ROW else depth[ready] + 1)
    return max(depth, default=0)


@given(built_in_schedules(min_ranks=2), st.integers(1, 1000), networks())
def test_busbw_is_never_above_the_links(schedule: Schedule, size: int, network: Network) -> None:
    """On private links, all that are used, divided by the ranks that cannot do without: in a ring one; else one port.

    What all ranks send together is at least (n - 1)S, for all_reduce twice that (Patarasuk and Yuan 2009), and for
    gather and scatter all but the share of the root.
    """
    timeline = simulate(schedule, network, size)
    num_links = len(set(zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)))
    links_each = 1.0
    if isinstance(network, PrivateLinks):
        needed = schedule.num_ranks - schedule.collective.has_root
        links_each = num_links / (1 if schedule.collective in OF_SHARES else needed)
    busbw = busbw_bytes_per_s(schedule.collective, schedule.num_ranks, size, timeline.time_s)
    assert busbw is not None
    assert busbw <= network.bandwidth_bytes_per_s * links_each * ROUNDING
    least = (schedule.num_ranks - 1) * size * (2 if schedule.collective is Collective.ALL_REDUCE else 1)
    if schedule.collective in OF_SHARES:
        least = size - shares_of(schedule, size)[0]
    assert transfer_bytes(schedule, timeline, size).sum() >= least
    assert links_each == 1 or schedule.algorithm not in ONE_LINK


# Names mean nothing.


@given(any_schedules, sizes, networks(), st.data())
def test_other_numbers_for_the_ranks_change_nothing(
    schedule: Schedule, size: int, network: Network, data: st.DataObject
) -> None:
    """All pairs are alike: every transfer happens when it did. Chunks that go with ranks must be equally large.

    To the last bit where nothing is shared; else rates are added up in another order.
    """
    if schedule.collective.num_shares(schedule.num_ranks) > 1:
        size *= schedule.num_chunks
    everyone = st.permutations(range(schedule.num_ranks))
    order = data.draw(everyone.filter(lambda order: order[0] == 0 or not schedule.collective.has_root))
    moved = simulate(permute_ranks(schedule, order), network, size)
    rtol = 0 if isinstance(network, PrivateLinks) else 1e-9
    np.testing.assert_allclose(times_of(moved), times_of(simulate(schedule, network, size)), rtol=rtol, atol=0)


# Conservation.


@given(any_schedules, sizes, networks())
def test_what_leaves_a_rank_enters_another(schedule: Schedule, size: int, network: Network) -> None:
    """Bytes sent, from the schedule, equal bytes received, from the timeline, rank by rank and chunk by chunk."""
    bytes_ = schedule.chunk_bytes(size)
    assert bytes_.sum() == size * schedule.collective.num_tensors(schedule.num_ranks)
    sent, received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for step in schedule.steps:
        for transfer in step:
            sent[transfer.src, transfer.chunk] += int(bytes_[transfer.chunk])
    timeline = simulate(schedule, network, size)
    rows = zip(timeline.src.tolist(), timeline.dst.tolist(), timeline.chunk.tolist(), strict=True)
    for (src, dst, chunk), num_bytes in zip(rows, transfer_bytes(schedule, timeline, size).tolist(), strict=True):
        assert src != dst
        received[src, chunk] += num_bytes
    assert sent == received


@given(built_in_schedules(min_ranks=2), sizes)
def test_every_rank_is_sent_what_it_must_end_with(schedule: Schedule, size: int) -> None:
    """A rank is sent all parts of its result that depend on others, but for those that it has or is not to have."""
    timeline = simulate(schedule, Network(0.0, 1.0), size)
    received = np.bincount(timeline.dst, transfer_bytes(schedule, timeline, size), schedule.num_ranks)
    own = shares_of(schedule, size)
    sender, receiver = np.divmod(owners(schedule.num_ranks**2, schedule.num_chunks), schedule.num_ranks)
    of_others = schedule.chunk_bytes(size) * (sender != receiver)
    root = np.arange(schedule.num_ranks) == 0
    least = {
        Collective.REDUCE_SCATTER: own,
        Collective.ALL_GATHER: size - own,
        Collective.BROADCAST: np.where(root, 0, size),
        Collective.REDUCE: np.where(root, size, 0),
        Collective.GATHER: np.where(root, size - own, 0),
        Collective.SCATTER: np.where(root, 0, own),
        Collective.ALL_TO_ALL: np.bincount(receiver, of_others, schedule.num_ranks),
    }.get(schedule.collective, np.full(schedule.num_ranks, size))
    assert (received >= least).all()


@given(any_schedules, sizes, networks())
def test_nothing_does_two_things_at_once(schedule: Schedule, size: int, network: Network) -> None:
    """A message starts, leaves, arrives and is applied in this order; what serves does so one after another.

    Channels, connections, and what is written to one chunk; in order each rank besides.
    """
    for runtime in (RULE, IN_ORDER):
        timeline = simulate(schedule, network, size, runtime=runtime)
        assert (np.diff(times_of(timeline), axis=0) >= 0).all()
        connection = senders(schedule) * schedule.num_ranks + timeline.dst
        chunk = timeline.dst * schedule.num_chunks + timeline.chunk
        keys = [(senders(schedule), "start_s", "sent_s")]
        applying = (connection, chunk, *([timeline.dst] if runtime.in_order else []))
        keys += [(key, "apply_s", "applied_s") for key in applying]
        for key, begin, end in keys:
            for value in np.unique(key):
                mine = key == value
                assert (getattr(timeline, begin)[mine][1:] >= getattr(timeline, end)[mine][:-1]).all()


# The same again, and in other units.


@given(any_schedules, sizes, networks(), st.integers(0, 20))
def test_larger_elements_on_faster_links_take_the_same_time(
    schedule: Schedule, elements: int, network: Network, doublings: int
) -> None:
    """All bytes and all rates times 2^k: not a bit changes."""
    k = 2**doublings
    faster = replace(
        network,
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * k,
        reduce_bytes_per_s=network.reduce_bytes_per_s * k,
    )
    large = simulate(schedule, faster, elements * k, element_bytes=k)
    assert (times_of(large) == times_of(simulate(schedule, network, elements))).all()


@given(any_schedules, sizes, networks(), st.integers(0, 20))
def test_times_are_in_the_unit_of_the_costs(schedule: Schedule, size: int, network: Network, doublings: int) -> None:
    """All costs times 2^k, the rates divided by it: all times times 2^k, to the last bit."""
    k = 2.0**doublings
    scaled = {name: getattr(network, name) * (1 / k if name.endswith("_per_s") else k) for name in COSTS}
    slower = replace(network, **scaled)
    assert (times_of(simulate(schedule, slower, size)) == times_of(simulate(schedule, network, size)) * k).all()


@given(any_schedules, sizes, networks())
def test_the_same_input_gives_the_same_output(schedule: Schedule, size: int, network: Network) -> None:
    """Called again, and without keeping the timeline."""
    timeline = simulate(schedule, network, size)
    assert timeline.columns() == simulate(schedule, network, size).columns()
    assert timeline.time_s == predict_time(schedule, network, size)


def digest() -> str:
    """All times of all algorithms, in one number."""
    network = Network(1e-5, 1.3e9, reduce_bytes_per_s=4.1e9, gap_s=1.1e-6, receive_overhead_s=2.3e-6)
    hashed = hashlib.sha256()
    for key in ALGORITHMS:
        hashed.update(times_of(simulate(build_key(key, 4), network, 1_000_003)).tobytes())
    return hashed.hexdigest()


def test_another_process_gives_the_same_output() -> None:
    """Whatever the order of sets there."""
    root = Path(__file__).parents[3]
    program = "from tests.ringsim.simulation.test_laws import digest; print(digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, env=environment, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == digest()
