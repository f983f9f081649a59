"""A step of DDP: hand-solved cases, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Network, predict_time, ring_all_reduce
from ringsim.native import BACKENDS, Backend
from ringsim.network import read_network
from ringsim.network.spec import Processor
from ringsim.simulation import GLOO, IN_ORDER
from ringsim.training_step.buckets import BucketCaps, Phase
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.prediction import reason, recommend
from ringsim.training_step.profile import Parameter, StepProfile
from ringsim.training_step.step import DdpConfig, predict_step, scale, sweep_caps
from tests.ringsim.traces.made_trace import call_of

SLOW = Network(latency_s=0.0, bandwidth_bytes_per_s=2.0)  # of 2 ranks, an all_reduce of 2m bytes takes m s
ONE = Backend(IN_ORDER, "ring", "ring")
TWO = Backend(GLOO, "ring", "ring")
EACH = BucketCaps(1, 1)  # a bucket for each parameter
ALL = BucketCaps(2**40, 2**40)


def profile_of(elements: list[int], ready_s: list[float], buffer_bytes: int = 0) -> StepProfile:
    """A step with a forward pass of 3 s and an optimizer of 1 s; the backward pass ends with the last gradient."""
    parameters = tuple(Parameter(f"p{i}", *each) for i, each in enumerate(zip(elements, ready_s, strict=True)))
    return StepProfile(parameters, 3.0, max(ready_s), 1.0, buffer_bytes)


# Ready in the order of their numbers from the last: 8 bytes after 2 s, 16 bytes after 5 s.
TWO_BUCKETS = profile_of([4, 2], [5.0, 2.0])


def test_two_buckets() -> None:
    """The first, 8 bytes, goes on from 2 s to 6 s, the second, 16, from then to 14; the backward pass ends at 5."""
    step = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE))
    times = [(b.parameters, b.size_bytes, b.ready_s, b.begin_s, b.end_s) for b in step.buckets]
    assert times == [((1,), 8, 2.0, 2.0, 6.0), ((0,), 16, 5.0, 6.0, 14.0)]
    assert (step.exposed_s, step.communication_s, step.copy_s) == (9.0, 12.0, 0.0)
    assert step.step_s == 3 + 14 + 1
    assert step.efficiency == 9 / 18


def test_two_workers() -> None:
    """From 5 s on both go at half the rate: the quarter that the first has left is done at 7, the second at 14."""
    step = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, TWO))
    assert [(b.begin_s, b.end_s) for b in step.buckets] == [(2.0, 7.0), (5.0, 14.0)]
    assert (step.exposed_s, step.communication_s) == (9.0, 12.0)


def test_one_bucket_does_not_overlap() -> None:
    """It is ready with its last gradient, when the backward pass is over; so it is in the first step."""
    step = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(ALL, ONE))
    assert [(b.parameters, b.begin_s, b.end_s) for b in step.buckets] == [((1, 0), 5.0, 17.0)]
    first = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE, Phase.FIRST))
    assert first.exposed_s == step.exposed_s == step.communication_s == 12.0
    alone = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE, overlap=False))
    assert (alone.exposed_s, alone.buckets[0].begin_s) == (12.0, 5.0)


def test_copying() -> None:
    """At 8 bytes a second: 1 s for the first and 2 s for the second, on the way in and back, the latter while waiting.

    The buckets are ready at 3 and 8; the first is done at 7, the second at 16; the first is copied back at 9 (the
    backward pass ends at 8), then 7 s are waited for the second, which is copied back until 18.
    """
    network = replace(SLOW, reduce_bytes_per_s=8.0)
    free = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE, copy_bytes_per_s=8.0))
    assert [(b.ready_s, b.end_s) for b in free.buckets] == [(3.0, 7.0), (8.0, 16.0)]
    assert (free.copy_s, free.exposed_s, free.step_s) == (6.0, 7.0, 3 + 18 + 1)
    assert predict_step(TWO_BUCKETS, network, 2, DdpConfig(EACH, ONE)).copy_s == 6.0  # at the rate of adding
    view = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE, copy_bytes_per_s=8.0, bucket_view=True))
    assert (view.copy_s, view.exposed_s) == (3.0, 8.0)


def test_buckets_are_launched_in_their_order() -> None:
    """With find_unused_parameters one that is ready early waits for those before it; the map of the used comes last."""
    profile = profile_of([2, 4], [2.0, 5.0])
    step = predict_step(profile, SLOW, 2, DdpConfig(EACH, ONE, Phase.UNUSED))
    assert [(b.parameters, b.ready_s, b.end_s) for b in step.buckets] == [((1,), 5, 13), ((0,), 5, 17), ((), 5, 21)]
    assert step.buckets[-1].size_bytes == 8  # an int32 each


def test_buffers_are_sent_before_the_forward_pass() -> None:
    """Along the backend's broadcast."""
    step = predict_step(profile_of([2], [2.0], buffer_bytes=6), SLOW, 2, DdpConfig(EACH, ONE))
    assert step.broadcast_s == 3.0
    assert step.step_s == 3 + 3 + 2 + 4 + 1


@pytest.mark.parametrize("num_buckets", [1, 3, 8, 9, 16, 21])
def test_the_typical_step_counts_where_calls_are_late(num_buckets: int) -> None:
    """The last bucket is late in one step of ten, the others are hidden: sweeps of caps compare like with like."""
    late = SLOW.with_spec(processor=Processor(torch_late_share=0.1, torch_late_s=5.0))
    profile = profile_of([1] * num_buckets, [10.0 * (num_buckets - index) for index in range(num_buckets)])
    usual, typical = (predict_step(profile, network, 2, DdpConfig(EACH, TWO)).step_s for network in (SLOW, late))
    assert typical == usual


def test_a_narrow_wire() -> None:
    """Half the bytes."""
    step = predict_step(TWO_BUCKETS, SLOW, 2, DdpConfig(EACH, ONE, wire_dtype="bfloat16"))
    assert [bucket.size_bytes for bucket in step.buckets] == [4, 8]


def test_gloos_ring_cuts_by_size() -> None:
    """Segments of at most 1 MiB."""
    group = GroupCalls(SLOW, 2, BACKENDS["gloo"])
    small, less_small, large = (
        group.call(call_of("all_reduce", size, 4)).call.schedule for size in (1000, 2000, 16 * 2**20)
    )
    assert (small.num_chunks, large.num_chunks) == (4, 16)
    assert small is less_small


PROFILES = st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1e-2)), min_size=1, max_size=6).map(
    lambda columns: profile_of([size for size, _ in columns], [at for _, at in columns])
)
CONFIGS = st.builds(
    DdpConfig,
    st.builds(BucketCaps, st.integers(1, 2**19), st.integers(1, 2**19)),
    st.sampled_from(list(BACKENDS.values())),
    st.sampled_from(list(Phase)),
    bucket_view=st.booleans(),
    overlap=st.booleans(),
)


@given(profile=PROFILES, config=CONFIGS, num_ranks=st.integers(1, 4), reduce=st.sampled_from([1e9, float("inf")]))
def test_laws(profile: StepProfile, config: DdpConfig, num_ranks: int, reduce: float) -> None:
    """Never faster than computing alone, nor than communicating alone; what is hidden is within the backward pass."""
    step = predict_step(profile, Network(1e-5, 1e9, reduce), num_ranks, config)
    assert step.step_s >= profile.step_s * (1 - 1e-12)
    assert step.step_s >= step.communication_s * (1 - 1e-12)
    assert 0 <= step.exposed_s <= step.communication_s * (1 + 1e-9)
    assert step.communication_s - step.exposed_s <= profile.backward_s + step.copy_s + 1e-12
    assert sorted(index for bucket in step.buckets for index in bucket.parameters) == list(
        range(len(profile.parameters))
    )
    assert 0 < step.efficiency <= 1 + 1e-12


@given(profile=PROFILES, config=CONFIGS)
def test_where_communicating_takes_no_time_nothing_is_exposed(profile: StepProfile, config: DdpConfig) -> None:
    """The step is that of one process alone; so it is on one rank."""
    free = Network(0.0, float("inf"))
    assert predict_step(profile, free, 4, config).step_s == pytest.approx(profile.step_s)
    assert predict_step(profile, SLOW, 1, config).step_s == pytest.approx(profile.step_s)


@given(profile=PROFILES, config=CONFIGS)
def test_the_recommended_cap_is_the_least(profile: StepProfile, config: DdpConfig) -> None:
    """Of the sweep, and its reason is one line."""
    caps = [BucketCaps(2**k, 2**k) for k in range(10, 20, 3)]
    steps = sweep_caps(profile, Network(1e-5, 1e9), 4, config, caps)
    best = recommend(steps)
    assert best.step_s <= min(step.step_s for step in steps) * (1 + 1e-9)
    assert "\n" not in reason(steps, best)


def test_scaling_is_that_of_single_steps() -> None:
    """Efficiency falls as a ring's time rises."""
    steps = scale(TWO_BUCKETS, SLOW, [1, 2, 4], DdpConfig(ALL, ONE))
    assert [step.num_ranks for step in steps] == [1, 2, 4]
    assert [step.exposed_s for step in steps] == [
        0,
        *(predict_time(ring_all_reduce(n), SLOW, 24, element_bytes=4) for n in (2, 4)),
    ]
    assert steps[0].efficiency == 1 > steps[1].efficiency > steps[2].efficiency


def test_scaling_to_too_many_ranks_is_refused_at_once() -> None:
    """Before minutes were spent on the smaller numbers of ranks."""
    two_hosts = read_network('[host]\nranks = 1\ncount = 2\n[host.nic]\nbandwidth = "1GB/s"\n', "two.toml")
    simulated: list[int] = []
    with pytest.raises(ValueError, match="its hosts have 2 ranks: 16 were asked for"):
        scale(TWO_BUCKETS, two_hosts, [1, 2, 16], DdpConfig(ALL, ONE), simulated.append)
    assert simulated == []
