"""A step of DDP: its buckets beside torch's own function and a real DDP, hand-solved cases, and laws."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim.libraries import LIBRARIES
from ringsim.network import Network, Processor
from ringsim.training_step import BucketCaps, DdpStep, Parameter, Phase, StepProfile, predict_ddp, recommend
from ringsim.training_step.ddp import MIB, DdpConfig, assign_buckets, fill_buckets, sweep_caps
from tests.ranks import RankPool
from tests.ringsim.topologies import with_costs

SLOW = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=2.0)  # of 2 ranks, an all_reduce of 2m bytes takes m s
EACH = BucketCaps(1, 1)  # a bucket for each parameter
ONE = DdpConfig(EACH, algorithm="ring", workers=1)
COPYING = replace(ONE, copy_bytes_per_s=8.0)


def profile_of(elements: list[int], ready_s: list[float], buffer_bytes: int = 0) -> StepProfile:
    """A step with a forward pass of 3 s and an optimizer of 1 s; the backward pass ends with the last gradient."""
    parameters = tuple(Parameter(f"p{i}", *each) for i, each in enumerate(zip(elements, ready_s, strict=True)))
    return StepProfile(parameters, 3.0, max(ready_s), 1.0, buffer_bytes)


# Ready in the order of their numbers from the last: 8 bytes after 2 s, 16 bytes after 5 s.
TWO_BUCKETS = profile_of([4, 2], [5.0, 2.0])


def calls_of(step: DdpStep) -> list[tuple[float, ...]]:
    """The bytes of each all_reduce, and from the start of the backward pass when it is ready, begins and ends."""
    timeline = step.prediction.timeline
    made = zip(timeline.step.calls, timeline.calls, strict=True)
    return [
        (call.size_bytes, *(time_s - 3 for time_s in (span.ready_s, span.begin_s, span.end_s))) for call, span in made
    ]


@pytest.mark.parametrize(
    ("config", "calls", "exposed_s", "step_s"),
    [
        # The first goes on from 2 s to 6 s, the second from then to 14; the backward pass ends at 5.
        (ONE, [(8, 2, 2, 6), (16, 5, 6, 14)], 9, 18),
        # From 5 s on both go at half the rate: the quarter that the first has left is done at 7, the second at 14.
        (replace(ONE, workers=2), [(8, 2, 2, 7), (16, 5, 5, 14)], 9, 18),
        # A single bucket is ready with its last gradient, when the backward pass is over; so it is in the first step.
        (replace(ONE, caps=BucketCaps(2**40, 2**40)), [(24, 5, 5, 17)], 12, 21),
        (replace(ONE, phase=Phase.FIRST), [(24, 5, 5, 17)], 12, 21),
        (replace(ONE, overlap=False), [(8, 5, 5, 9), (16, 5, 9, 17)], 12, 21),
        (replace(ONE, wire_dtype="bfloat16"), [(4, 2, 2, 4), (8, 5, 5, 9)], 4, 13),
        # Gradients are copied for 1 s and 2 s on the way in and back, the latter while waiting: the backward pass ends
        # at 8, the first is copied back at 9, then 7 s are waited for the second, which is copied back until 18.
        (COPYING, [(8, 3, 3, 7), (16, 8, 8, 16)], 7, 22),
        (replace(COPYING, bucket_view=True), [(8, 3, 3, 7), (16, 8, 8, 16)], 8, 20),
    ],
)
def test_two_buckets(config: DdpConfig, calls: list[tuple[float, ...]], exposed_s: float, step_s: float) -> None:
    """With each of the settings: the calls, and the wait for them."""
    step = predict_ddp(TWO_BUCKETS, SLOW, 2, config)
    assert calls_of(step) == calls
    assert (step.exposed_s, step.step_s, step.num_buckets) == (exposed_s, step_s, len(calls))
    assert step.efficiency == 9 / step_s


def test_buckets_are_launched_in_their_order() -> None:
    """With find_unused_parameters one that is ready early waits for those before it; the map of the used comes last.

    Gradients are copied at the rate of adding, and buffers sent before the forward pass, along the backend's broadcast.
    """
    step = predict_ddp(profile_of([2, 4], [2.0, 5.0]), SLOW, 2, replace(ONE, phase=Phase.UNUSED))
    assert calls_of(step) == [(16, 5, 5, 13), (8, 5, 13, 17), (8, 5, 17, 21)]  # an int32 for each
    adding = with_costs(SLOW, reduce_bytes_per_s=8.0)
    assert predict_ddp(TWO_BUCKETS, adding, 2, ONE).prediction.mean.compute_s == 9 + 6
    sent = predict_ddp(profile_of([2], [2.0], buffer_bytes=6), SLOW, 2, ONE)
    assert (sent.step_s, sent.num_buckets) == (3 + 3 + 2 + 4 + 1, 1)


@pytest.mark.parametrize("num_buckets", [1, 3, 8, 9, 16, 21])
def test_the_typical_step_counts_where_calls_are_late(num_buckets: int) -> None:
    """The last bucket is late in one step of ten, the others are hidden: sweeps of caps compare like with like."""
    late = SLOW.with_spec(processor=Processor(torch_late_share=0.1, torch_late_s=5.0))
    profile = profile_of([1] * num_buckets, [10.0 * (num_buckets - index) for index in range(num_buckets)])
    usual, typical = (predict_ddp(profile, network, 2, replace(ONE, workers=2)).step_s for network in (SLOW, late))
    assert typical == usual


PROFILES = st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1e-2)), min_size=1, max_size=6).map(
    lambda columns: profile_of([size for size, _ in columns], [at for _, at in columns])
)
CONFIGS = st.builds(
    DdpConfig,
    st.builds(BucketCaps, st.integers(1, 2**19), st.integers(1, 2**19)),
    st.sampled_from(list(LIBRARIES)),
    phase=st.sampled_from(list(Phase)),
    bucket_view=st.booleans(),
    overlap=st.booleans(),
)


@given(profile=PROFILES, config=CONFIGS, num_ranks=st.integers(1, 4), reduce=st.sampled_from([1e9, float("inf")]))
def test_laws(profile: StepProfile, config: DdpConfig, num_ranks: int, reduce: float) -> None:
    """Never faster than computing alone, nor than communicating alone; all gradients are sent.

    Where communicating takes no time, and on one rank, the step is that of one process alone.
    """
    step = predict_ddp(profile, Network.uniform(1e-5, 1e9, reduce), num_ranks, config)
    mean = step.prediction.mean
    assert step.step_s >= max(profile.step_s, mean.communication_s) * (1 - 1e-12)
    assert -1e-12 <= step.exposed_s <= mean.communication_s * (1 + 1e-9) + 1e-12
    assert mean.communication_s - step.exposed_s <= mean.compute_s - 4.0 + 1e-12
    assert sum(size_bytes for size_bytes, *_ in calls_of(step)) == profile.gradient_bytes + (
        4 * len(profile.parameters) if config.phase is Phase.UNUSED else 0
    )
    assert 0 < step.efficiency <= 1 + 1e-12
    for network, ranks in ((Network.uniform(0.0, math.inf), 4), (SLOW, 1)):
        assert predict_ddp(profile, network, ranks, config).step_s == pytest.approx(profile.step_s)


@given(profile=PROFILES, config=CONFIGS)
def test_the_recommended_cap_is_the_least(profile: StepProfile, config: DdpConfig) -> None:
    """Of the sweep; of equals it is the one with the fewest buckets."""
    network, caps = Network.uniform(1e-5, 1e9), [BucketCaps(2**k, 2**k) for k in range(10, 20, 3)]
    steps = sweep_caps(profile, network, 4, config, caps)
    best = recommend(steps)
    assert best.step_s == pytest.approx(min(step.step_s for step in steps))
    assert [step.config.caps for step in steps] == caps
    assert [step.step_s for step in steps] == [
        predict_ddp(profile, network, 4, replace(config, caps=cap)).step_s for cap in caps
    ]
    equals = [step.num_buckets for step in steps if step.step_s == best.step_s]
    assert best.num_buckets == min(equals)


def test_a_given_cap_holds_for_the_first_bucket_too() -> None:
    """In torch 2.13; bucket_cap_mb=25 is not the default."""
    caps = [BucketCaps.from_mb(cap_mb) for cap_mb in (None, 25, 0.5)]
    assert caps == [BucketCaps(MIB, 25 * MIB), BucketCaps(25 * MIB, 25 * MIB), BucketCaps(MIB // 2, MIB // 2)]
    assert [str(some) for some in caps] == ["25 (1 first)", "25", "0.5"]


PARAMETERS = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from(["float32", "float16", "float64"])), min_size=1, max_size=30
)


@given(parameters=PARAMETERS, first=st.integers(1, 500), rest=st.integers(1, 1500), data=st.data())
def test_as_torch_assigns_them(parameters: list[tuple[int, str]], first: int, rest: int, data: st.DataObject) -> None:
    """In an order of readiness as the reducer rebuilds, and in that of registration as DDP begins."""
    import torch
    import torch.distributed as dist

    tensors = [torch.empty(size, dtype=getattr(torch, dtype)) for size, dtype in parameters]
    ours = [Parameter(f"p{i}", size, 0.0, dtype) for i, (size, dtype) in enumerate(parameters)]
    order = data.draw(st.permutations(range(len(parameters))))
    caps = BucketCaps(first, rest)
    dense = [False] * len(tensors)
    rebuilt, _ = dist._compute_bucket_assignment_by_size([tensors[i] for i in order], [first, rest], dense, order)
    assert fill_buckets(order, ours, caps) == rebuilt
    profile = StepProfile(tuple(ours), 0.0, 0.0, 0.0)
    for phase, limits in ((Phase.FIRST, [2**62]), (Phase.UNUSED, [first, rest])):
        initial, _ = dist._compute_bucket_assignment_by_size(tensors, limits, dense)
        assert assign_buckets(profile, caps, phase) == list(reversed(initial))


def real_buckets(group: object, cap_mb: float | None, find_unused: bool) -> tuple[list[list[int]], list[float]]:
    """The sizes of the buckets of each of three backward passes of a real DDP, and when gradients were ready."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from trainers.loop.train_step import GradientClock

    assert isinstance(group, dist.ProcessGroup)
    torch.manual_seed(0)
    layers = [nn.Linear(300, 310), nn.Tanh(), nn.Linear(310, 20), nn.Linear(20, 700), nn.Tanh(), nn.Linear(700, 5)]
    model = nn.Sequential(*layers)
    clock = GradientClock(model)
    module = nn.parallel.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=cap_mb, find_unused_parameters=find_unused
    )
    sizes: list[list[int]] = []

    def noting(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sizes[-1].append(bucket.buffer().nbytes)
        return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda f: f.value()[0])

    module.register_comm_hook(None, noting)
    for _ in range(3):
        sizes.append([])
        module(torch.ones(2, 300)).sum().backward()
    return sizes, clock.before_last_s()


REAL = [(None, False), (0.05, False), (0.001, True), (1, True)]  # bucket_cap_mb, find_unused_parameters


@pytest.fixture(scope="module")
def real(ranks: RankPool) -> dict[Any, Any]:
    """The answers of `real_buckets` for each case on two ranks."""
    return {case: ranks.run(real_buckets, *case, num_ranks=2) for case in REAL}


@pytest.mark.parametrize(("cap_mb", "find_unused"), REAL)
def test_as_a_real_ddp_uses_them(real: dict[Any, Any], cap_mb: float | None, find_unused: bool) -> None:
    """In the first step, and after its buckets have been rebuilt."""
    elements = [300 * 310, 310, 310 * 20, 20, 20 * 700, 700, 700 * 5, 5]
    later = Phase.UNUSED if find_unused else Phase.REBUILT
    for sizes, before_last_s in real[cap_mb, find_unused]:
        ready_s = [max(before_last_s) - lead for lead in before_last_s]
        parameters = tuple(Parameter(str(i), *pair) for i, pair in enumerate(zip(elements, ready_s, strict=True)))
        profile = StepProfile(parameters, 0.0, max(ready_s), 0.0)
        for phase, found in zip((Phase.UNUSED if find_unused else Phase.FIRST, later, later), sizes, strict=True):
            buckets = assign_buckets(profile, BucketCaps.from_mb(cap_mb), phase)
            assert [sum(profile.parameters[i].size_bytes for i in bucket) for bucket in buckets] == found
