"""Each strategy sends what is predicted of it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import collectives
from ringsim.schedule import Collective
from ringsim.training_step import StepProfile
from tests.ranks import RankPool, group_on
from tests.trainers.models import inputs, small_model
from trainers.data_parallel import DataParallel
from trainers.loop.loss_sync import exchange_losses
from trainers.main_job.job import parts_of
from trainers.predictions.prediction import DDP, LOSS_BYTES, traffic_of
from trainers.predictions.traffic import TRAFFIC, Traffic
from trainers.strategies import plain
from trainers.strategies.ddp import Ddp
from trainers.strategies.flat_vector import described
from trainers.strategy_names import STRATEGY_NAMES

FSDP = ("fsdp", "fsdp_on_ring")
Sent = tuple[str, int, bool]  # the collective, its bytes, whether it is torch's

# What is called, by which name, and which of its arguments is the whole tensor.
CALLED = (
    (dist, "all_reduce", "all_reduce", 0),
    (plain, "REDUCE_SCATTER", "reduce_scatter", 1),
    (plain, "ALL_GATHER", "all_gather", 0),
    (dist, plain.ALL_GATHER.__name__, "all_gather", 0),  # as FSDP2 calls them
    (dist, plain.REDUCE_SCATTER.__name__, "reduce_scatter", 1),
    (collectives, "all_reduce", "all_reduce", 0),
    (collectives, "reduce_scatter_tensor", "reduce_scatter", 1),
    (collectives, "all_gather_into_tensor", "all_gather", 0),
)


@contextmanager
def noting(sent: list[Sent]) -> Iterator[None]:
    """Within it, the collectives that the strategies call are noted."""
    with ExitStack() as stack:
        for module, name, collective, whole in CALLED:
            called = getattr(module, name)

            def note(
                *given: Any,
                _called: Any = called,
                _collective: str = collective,
                _whole: int = whole,
                _is_native: bool = module is not collectives,
                **options: Any,
            ) -> Any:
                tensors = given or (options["output"], options["input"])
                element_bytes = (options.get("wire") or tensors[_whole].dtype).itemsize
                sent.append((_collective, tensors[_whole].numel() * element_bytes, _is_native))
                return _called(*given, **options)

            stack.enter_context(mock.patch.object(module, name, note))
        yield


def profile_of(model: nn.Module, ready_s: list[float] | None = None) -> StepProfile:
    """Of a step whose gradients become ready as is said."""
    parameters = described([p for p in model.parameters() if p.requires_grad], ready_s)
    return StepProfile(tuple(parameters), 0.0, max(ready_s, default=0.0) if ready_s else 0.0, 0.0)


def predicted(traffic: Traffic) -> list[Sent]:
    """The same of a prediction."""
    return [
        (call.schedule.collective.value, call.size_bytes, call.runtime.is_torch)
        for call in (*traffic.within, *traffic.calls)
    ]


def sent_and_predicted(group: dist.ProcessGroup, name: str) -> tuple[list[Sent], list[Sent]]:
    """By one step, after one that settles things; or as many as there are from one average to the next."""
    group = group_on("ring", group.size()) if name == "fsdp_on_ring" else group
    model = small_model()
    parts = parts_of(model)  # before it is changed
    parallel = DataParallel(model, name, group)
    optimizer = parallel.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    traffic = traffic_of(name, profile_of(small_model()), group.size(), parts)
    sent: list[Sent] = []
    for step in range(2 * traffic.every):
        if step == traffic.every:
            sent.clear()
        with noting(sent):
            optimizer.zero_grad()
            parallel(inputs(group.rank())).pow(2).mean().backward()
            optimizer.step()
    return sent, predicted(traffic)


@pytest.mark.parametrize("name", [*(name for name in TRAFFIC if name not in FSDP), "powersgd/1", "zero2/0.00002"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_is_predicted_is_what_is_sent(ranks: RankPool, name: str, num_ranks: int) -> None:
    """Call by call, in bytes, by ours or torch's; also where vectors must be padded."""
    for sent, expected in ranks.run(sent_and_predicted, name, num_ranks=num_ranks):
        if name == "rs_ag":  # whose reduce_scatter is predicted as what Gloo does for it
            assert sent[0][0] == "reduce_scatter"
            sent[0] = ("all_reduce", *sent[0][1:])
        assert sent == expected
        assert (len(sent) == 0) == (name == "none")


@pytest.mark.parametrize("name", FSDP)
def test_what_fsdp_sends(request: pytest.FixtureRequest, name: str) -> None:
    """The same, but for the order: torch gathers ahead."""
    pool: RankPool = request.getfixturevalue("ring_ranks" if name == "fsdp_on_ring" else "ranks")
    for sent, expected in pool.run(sent_and_predicted, name, num_ranks=3):
        called = [(collective, size_bytes) for collective, size_bytes, _ in sent]
        if name == "fsdp":  # whose reduce_scatter is predicted as what Gloo does for it
            called = [("all_reduce" if kind == "reduce_scatter" else kind, size_bytes) for kind, size_bytes in called]
        assert sorted(called) == sorted((collective, size_bytes) for collective, size_bytes, _ in expected)
        assert len(called) == 9
        assert {is_native for _, _, is_native in expected} == {name == "fsdp"}


def test_traffic_of_each_strategy() -> None:
    """29 float32 parameters over two ranks: 16 + 10 + 3 in layers; 6 tensors, each of which has a mark when flat."""
    profile = profile_of(small_model(), [0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    sizes = [24, 48, 16, 32, 8, 8, 4]  # the marks come first
    sent = {
        name: [
            (call.schedule.collective.value, call.schedule.algorithm, call.size_bytes, call.lead_s)
            for call in traffic_of(name, profile, 2, parts_of(small_model())).calls
        ]
        for name in (*TRAFFIC, "powersgd/1")
    }
    ring, gloo = ("all_reduce", "ring"), ("all_reduce", "gloo_ring")
    assert sent["none"] == []
    assert sent["allreduce"] == [(*gloo, size, 0.0) for size in sizes]
    assert sent["flat"] == [(*gloo, 140, 0.0)]
    assert sent["rs_ag"] == [(*gloo, 144, 0.0), ("all_gather", "gloo_ring", 144, 0.0)]
    assert sent["ring"] == sent["bucketed"] == [(*ring, 140, 0.0)]
    assert sent["bucketed_bf16"] == [(*ring, 70, 0.0)]
    assert sent["zero1"] == [("reduce_scatter", "ring", 120, 0.0), ("all_gather", "ring", 120, 0.0)]
    assert sent["zero2"] == sent["zero1"]
    # Of the first layer, whose gradients come last; and which layers were gathered is compared.
    assert sent["zero3"] == [("reduce_scatter", "ring", 64, 0.0), ("all_gather", "ring", 16, 0.0)]
    zero3 = traffic_of("zero3", profile, 2, parts_of(small_model()))
    gathers = [call.size_bytes for call in zero3.within if call.schedule.collective is Collective.ALL_GATHER]
    assert gathers == [64, 40, 16, 16, 40, 64]  # of 3 parameters 4, for two ranks
    assert [call.size_bytes for call in zero3.within if call.schedule.collective is not Collective.ALL_GATHER] == [
        16,
        40,
    ]
    assert TRAFFIC["zero1"](profile, 2).optimizer_share == 0.5
    # Of rank 4 no factors would be smaller; of rank 1 those of (4, 3) and (2, 4) are, but not of (1, 2).
    assert sent["powersgd"] == [(*ring, 140, 0.0)]
    assert sent["powersgd/1"] == [(*ring, 4 * (4 + 4 + 2 + 2 + 2 + 1 + 6), 0.0), (*ring, 4 * (3 + 4), 0.0)]
    assert sent["local_sgd"] == sent["diloco"] == [(*ring, 116, 0.0)]
    assert TRAFFIC["local_sgd"](profile, 2, every=5).every == 5


def test_every_strategy_has_a_prediction() -> None:
    """One of the two kinds."""
    assert sorted([*TRAFFIC, *DDP]) == sorted(STRATEGY_NAMES)


def ddp_buckets(group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """The sizes of the buckets that DDP has rebuilt after the first step, and those predicted of `bucketed`."""
    layers = [nn.Linear(300, 300, bias=False) for _ in range(9)]  # 0.36 MB each
    model = nn.Sequential(*layers)
    strategy = Ddp(model, group)
    for _ in range(3):
        strategy.module(torch.ones(1, 300)).sum().backward()
    theirs = strategy.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
    profile = profile_of(model, [float(8 - index) for index in range(9)])  # the last layer's gradient is ready first
    bucketed = TRAFFIC["bucketed"](profile, group.size()).calls
    return [int(size) for size in str(theirs).split(",")], [call.size_bytes for call in bucketed]


def test_buckets_are_those_of_ddp(ranks: RankPool) -> None:
    """Torch itself reports them; those of "bucketed" have a mark of 4 bytes for each of their 3 and 6 parameters."""
    for theirs, bucketed in ranks.run(ddp_buckets, num_ranks=2):
        assert len(theirs) == 2
        assert bucketed == [theirs[0] + 4 * 3, theirs[1] + 4 * 6]


def loss_sync(group: dist.ProcessGroup) -> list[Sent]:
    """Return the messages in which the ranks tell each other their losses."""
    sent: list[Sent] = []
    with noting(sent):
        exchange_losses(group, 1.0, stop=False)
    return sent


def test_the_losses_are_predicted_as_they_are_sent(ranks: RankPool) -> None:
    """Two numbers of each rank."""
    assert ranks.run(loss_sync, num_ranks=3)[1] == [("all_gather", 3 * 2 * LOSS_BYTES, False)]
