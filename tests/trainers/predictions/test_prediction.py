"""From what a strategy sends to how long it should take."""

import pytest

from ringsim import predict_time, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.network.cluster import Cluster
from ringsim.network.spec import Host, Link, Processor, Spec
from ringsim.simulation import GLOO
from ringsim.training_step import BucketCaps, DdpConfig, Parameter, StepProfile, predict_step
from trainers.predictions.model_parts import ModelParts
from trainers.predictions.prediction import can_overlap, predict_loss_sync_s, predict_strategy, predict_sync_s
from trainers.predictions.traffic import TRAFFIC, PredictedCall, Traffic
from trainers.strategy_names import SHARDED, STRATEGY_NAMES

HOST = Host(link=Link(latency_s=1e-3, bandwidth_bytes_per_s=1e6))
CALLING_S = 0.125
NETWORK = Cluster("two", Spec(host=HOST, processor=Processor(reduce_bytes_per_s=1e7)), "", "")
CALLED = Cluster("called", Spec(host=HOST, processor=Processor(call_s=CALLING_S, torch_call_s=2 * CALLING_S)), "", "")
RING = ring_all_reduce(2)
ONE_S = predict_time(RING, NETWORK, 1000)


def sync_s(traffic: Traffic) -> float:
    """Of two ranks, where calling costs nothing."""
    return predict_sync_s(traffic, NETWORK, 2)


def test_calls_follow_one_another() -> None:
    """Two take twice as long as one, and local work comes on top."""
    assert sync_s(Traffic([PredictedCall(RING, 1000, 4)], 0)) == pytest.approx(ONE_S)
    assert sync_s(Traffic([PredictedCall(RING, 1000, 4)] * 2, 500)) == pytest.approx(2 * ONE_S + 500 / 1e7)


def test_each_call_has_its_price() -> None:
    """One of ours another than one of torch's; ranks that share a core copy for as much longer."""
    free_s = predict_time(RING, CALLED, 1000)
    both = Traffic([PredictedCall(RING, 1000, 4), PredictedCall(RING, 1000, 4, runtime=GLOO)], 0)
    assert predict_sync_s(both, CALLED, 2) == pytest.approx(2 * free_s + 3 * CALLING_S)
    crowded = Cluster("one core", Spec(host=Host(cores=1), processor=Processor(reduce_bytes_per_s=1e7)), "", "")
    assert predict_sync_s(Traffic([], 500), crowded, 2) == pytest.approx(2 * 500 / 1e7)


def test_a_call_after_a_computation_takes_longer() -> None:
    """The first one, and those for which gradients had to be waited for; not one that could be made with the last."""
    processor = Processor(cold_call_s=CALLING_S, cold_torch_call_s=2 * CALLING_S)
    network = Cluster("cold", Spec(host=HOST, processor=processor), "", "")
    one_s = predict_time(RING, network, 1000)
    together = [PredictedCall(RING, 1000, 4), PredictedCall(RING, 1000, 4, runtime=GLOO)]
    assert predict_sync_s(Traffic(together, 0), network, 2) == pytest.approx(2 * one_s + CALLING_S)
    assert predict_sync_s(Traffic(together[::-1], 0), network, 2) == pytest.approx(2 * one_s + 2 * CALLING_S)
    apart = [PredictedCall(RING, 1000, 4, lead_s=lead_s) for lead_s in (1e-6, 0.0)]
    assert predict_sync_s(Traffic(apart, 0), network, 2) == pytest.approx(2 * one_s + 2 * CALLING_S, abs=1e-5)


def test_what_the_backward_pass_hides_is_free() -> None:
    """A call that starts early counts only with what is left of it, and not at all if it is done in time."""
    early = PredictedCall(RING, 1000, 4, lead_s=0.25 * ONE_S)
    assert sync_s(Traffic([early], 0)) == pytest.approx(0.75 * ONE_S)
    assert sync_s(Traffic([early, PredictedCall(RING, 1000, 4)], 0)) == pytest.approx(1.75 * ONE_S)
    assert sync_s(Traffic([PredictedCall(RING, 1000, 4, lead_s=5 * ONE_S)], 0)) == 0.0
    gap = [PredictedCall(RING, 1000, 4, lead_s=5 * ONE_S), PredictedCall(RING, 1000, 4, lead_s=0.5 * ONE_S)]
    assert sync_s(Traffic(gap, 0)) == pytest.approx(0.5 * ONE_S)


def test_nothing_to_send_takes_no_time() -> None:
    """One rank, or a model without gradients."""
    assert sync_s(Traffic([], 0)) == 0.0


def test_overlap_needs_a_core_to_spare() -> None:
    """Each rank computes on one core and sends on another."""
    assert can_overlap(ranks_per_host=2, cores=4)
    assert not can_overlap(ranks_per_host=2, cores=3)
    assert not can_overlap(ranks_per_host=1, cores=None)


PROFILE = StepProfile(
    tuple(Parameter(f"layer {n}", 250, ready_s=0.125 * (4 - n)) for n in range(4)), 0.25, 0.5, 0.125, buffer_bytes=40
)

PARTS = ModelParts([(25, 10)] * 4, layers=[(0,), (1, 2)], rest=(3,))


@pytest.mark.parametrize("name", [*STRATEGY_NAMES, "bucketed/0.001", "ddp/0.001", "diloco/3"])
def test_every_strategy_is_predicted(name: str) -> None:
    """A step takes at least what computing takes; with "none" no more than that and hearing of the losses."""
    prediction = predict_strategy(name, PROFILE, NETWORK, 2, PARTS)
    optimizer_s = PROFILE.optimizer_s / 2 if name in SHARDED else PROFILE.optimizer_s
    compute_s = PROFILE.forward_s + PROFILE.backward_s + optimizer_s
    rest_s = prediction.step_s - compute_s - prediction.sync_s - predict_loss_sync_s(NETWORK, 2)
    if name.startswith(("ddp", "zero3", "fsdp")):
        assert rest_s > 0  # the buffers; what is gathered within the passes
    else:
        assert rest_s == pytest.approx(0.0)
    assert (prediction.sync_s == 0) == name.startswith(("none", "fsdp"))


def test_ddp_is_predicted_by_ringsim() -> None:
    """Its step is the one that `ringsim ddp` tells of, and hearing of the losses comes on top."""
    step = predict_step(PROFILE, NETWORK, 2, DdpConfig(BucketCaps.from_mb(0.001)))
    prediction = predict_strategy("ddp/0.001", PROFILE, NETWORK, 2)
    assert (len(step.buckets), step.exposed_s > 0) == (2, True)
    assert prediction.sync_s == pytest.approx(step.copy_s + step.exposed_s)
    assert prediction.step_s == pytest.approx(step.step_s + predict_loss_sync_s(NETWORK, 2))


def test_one_rank_hears_of_its_loss_at_once() -> None:
    """Two need a message."""
    assert predict_loss_sync_s(NETWORK, 1) == 0.0
    assert predict_loss_sync_s(NETWORK, 2) == pytest.approx(1e-3 + 16 / 1e6)


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_where_copying_costs_nothing_it_is_free(name: str) -> None:
    """As on one rank, which has nobody to be probed with."""
    free = Cluster("free", Spec(host=HOST), "", "")
    assert predict_strategy(name, PROFILE, free, 1, PARTS).sync_s == 0.0


def test_what_comes_every_few_steps_is_shared_among_them() -> None:
    """An average of all parameters, of which a step has an eighth."""
    one, eight = (predict_strategy(name, PROFILE, NETWORK, 2) for name in ("local_sgd/1", "local_sgd/8"))
    assert one.sync_s == pytest.approx(8 * eight.sync_s)
    assert one.step_s - eight.step_s == pytest.approx(7 * eight.sync_s)


def test_factors_have_the_shapes_of_parameters() -> None:
    """Which a profile does not tell; of a lower rank they are smaller."""
    with pytest.raises(ValueError, match="^powersgd: 0 shapes of parameters: must be 4$"):
        predict_strategy("powersgd", PROFILE, NETWORK, 2)
    one, two = (predict_strategy(f"powersgd/{rank}", PROFILE, NETWORK, 2, PARTS).sync_s for rank in (1, 2))
    assert one < two


def test_passes_wait_for_layers() -> None:
    """Twice for the parameters of a layer, once for the rest, and for all gradients but those that come last."""
    traffic = TRAFFIC["zero3"](PROFILE, 2, parts=PARTS)
    layers = predict_time(ring_all_gather(2), NETWORK, 1000) + predict_time(ring_all_gather(2), NETWORK, 2000)
    scattered = predict_time(ring_reduce_scatter(2), NETWORK, 1000) + predict_time(
        ring_reduce_scatter(2), NETWORK, 2000
    )
    rest = predict_time(ring_all_gather(2), NETWORK, 1000)
    prediction = predict_strategy("zero3", PROFILE, NETWORK, 2, PARTS)
    compute_s = PROFILE.forward_s + PROFILE.backward_s + PROFILE.optimizer_s / 2
    within_s = prediction.step_s - compute_s - prediction.sync_s - predict_loss_sync_s(NETWORK, 2)
    walked_s = (3000 + 3000) / 1e7  # packed, and the share taken and divided
    assert within_s == pytest.approx(2 * layers + rest + scattered + walked_s)
    last_s = predict_time(ring_reduce_scatter(2), NETWORK, 1000) + predict_time(ring_all_gather(2), NETWORK, 16)
    assert prediction.sync_s == pytest.approx(last_s + 2000 / 1e7)
    assert len(traffic.within) == 2 + 2 + 1 + 2


@pytest.mark.parametrize("layers", [((0,), (1,)), ((0, 1), (1, 2)), ()])
def test_layers_have_every_parameter_once(layers: tuple[tuple[int, ...], ...]) -> None:
    """Beside the rest."""
    for name in ("zero3", "fsdp"):
        with pytest.raises(ValueError, match="^. parameters in layers: must be all 4, once$"):
            predict_strategy(name, PROFILE, NETWORK, 2, PARTS._replace(layers=layers, rest=(3,)))
