"""DDP's buckets, beside torch's own function and beside what a real DDP does."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim.training_step.ddp import DEFAULT_CAP_BYTES, MIB, BucketCaps, Phase, assign_buckets, fill_buckets
from ringsim.training_step.profile import Parameter, StepProfile
from tests.ranks import RankPool


def profile_of(elements: list[int], ready_s: list[float], dtypes: list[str] | None = None) -> StepProfile:
    """A step whose parameters are of these sizes."""
    dtypes = dtypes or ["float32"] * len(elements)
    columns = zip(elements, ready_s, dtypes, strict=True)
    parameters = tuple(Parameter(f"p{i}", size, at, dtype) for i, (size, at, dtype) in enumerate(columns))
    return StepProfile(parameters, 0.0, max(ready_s), 0.0)


def test_buckets_overshoot_and_are_never_split() -> None:
    """A bucket is closed once it has reached its cap; the first has a smaller one."""
    assert BucketCaps.from_mb(None) == BucketCaps(MIB, 25 * MIB)
    quarter = MIB // 4  # elements of 4 bytes: a whole MiB
    profile = profile_of([quarter // 2, 26 * quarter, quarter // 2, quarter, 1], [5, 4, 3, 2, 1])
    assert assign_buckets(profile, BucketCaps()) == [[4, 3], [2, 1], [0]]


def test_a_given_cap_holds_for_the_first_bucket_too() -> None:
    """In torch 2.13; bucket_cap_mb=25 is not the default."""
    assert BucketCaps.from_mb(25) == BucketCaps(DEFAULT_CAP_BYTES, DEFAULT_CAP_BYTES)
    assert BucketCaps.from_mb(0.5) == BucketCaps(MIB // 2, MIB // 2)
    assert (str(BucketCaps.from_mb(0.5)), str(BucketCaps())) == ("0.5", "25 (1 first)")


def test_before_the_rebuilding_nothing_overlaps() -> None:
    """One bucket for each dtype, in the order of registration, the one with the first parameter launched last."""
    profile = profile_of([MIB] * 4, [4, 3, 2, 1], ["float32", "float16", "float32", "float16"])
    assert assign_buckets(profile, BucketCaps(), Phase.FIRST) == [[1, 3], [0, 2]]


def test_with_unused_parameters_the_order_is_that_of_registration() -> None:
    """Reversed; and the small cap is the one of the bucket that is launched last."""
    profile = profile_of([MIB // 4] * 4, [1, 2, 3, 4])
    assert assign_buckets(profile, BucketCaps(MIB, 2 * MIB), Phase.UNUSED) == [[3], [1, 2], [0]]


@pytest.mark.parametrize("cap", [0, -1, float("nan"), float("inf"), 1e308])
def test_a_cap_must_be_positive(cap: float) -> None:
    """Torch does not look."""
    with pytest.raises(ValueError, match=rf"^bucket_cap_mb {re.escape(str(cap))}: must be finite and greater than 0$"):
        BucketCaps.from_mb(cap)
    with pytest.raises(ValueError, match="^caps of 1 and 0 bytes: must be at least 1 byte$"):
        BucketCaps(1, 0)


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


@pytest.mark.parametrize(("cap_mb", "find_unused"), [(None, False), (0.05, False), (0.001, True), (1, True)])
def test_as_a_real_ddp_uses_them(ranks: RankPool, cap_mb: float | None, find_unused: bool) -> None:
    """In the first step, and after its buckets have been rebuilt."""
    elements = [300 * 310, 310, 310 * 20, 20, 20 * 700, 700, 700 * 5, 5]
    later = Phase.UNUSED if find_unused else Phase.REBUILT
    for sizes, before_last_s in ranks.run(real_buckets, cap_mb, find_unused, num_ranks=2):
        profile = profile_of(elements, [max(before_last_s) - lead for lead in before_last_s])
        for phase, found in zip((Phase.UNUSED if find_unused else Phase.FIRST, later, later), sizes, strict=True):
            buckets = assign_buckets(profile, BucketCaps.from_mb(cap_mb), phase)
            assert [sum(profile.parameters[i].size_bytes for i in bucket) for bucket in buckets] == found
