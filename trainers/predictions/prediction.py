"""`predict_strategy`: the time that a strategy's synchronisation, and a whole training step, should take."""

import math
from dataclasses import replace
from typing import NamedTuple

from ringsim.algorithms import direct_all_gather
from ringsim.native import BACKENDS, LocalWork, local_s
from ringsim.network import Cluster
from ringsim.simulation import IN_ORDER, time_queue
from ringsim.training_step import BucketCaps, DdpConfig, StepProfile, predict_step
from trainers.predictions.model_parts import ModelParts
from trainers.predictions.traffic import NO_PARTS, TRAFFIC, WITH_PARTS, PredictedCall, Traffic
from trainers.strategy_names import parse_strategy

DDP: dict[str, DdpConfig] = {
    "ddp": DdpConfig(backend=BACKENDS["gloo"]),
    "ddp_ring": DdpConfig(backend=BACKENDS["ring"]),
    "ddp_ring_bf16": DdpConfig(backend=BACKENDS["ring"], wire_dtype="bfloat16"),
    "ddp_on_ring": DdpConfig(backend=BACKENDS["ring"]),
}
LOSS_BYTES = 8  # `exchange_losses` gathers two float64 of each rank


class StepPrediction(NamedTuple):
    """sync_s: from the last gradient's being ready, with what gathers parameters. step_s: the whole step.

    Of strategies that communicate every few steps only, the mean of these steps.
    """

    sync_s: float
    step_s: float


def predict_strategy(
    name: str, profile: StepProfile, network: Cluster, num_ranks: int, parts: ModelParts = NO_PARTS
) -> StepPrediction:
    """Return what a step with that strategy takes on `num_ranks` ranks that each do what the profile says.

    name: as `make_strategy` takes it, such as "ring" or "ddp/4". parts: of the model, which WITH_PARTS need.
    """
    plain, number = parse_strategy(name)
    if plain in DDP:
        prediction = _predict_ddp(DDP[plain], number.get("bucket_cap_mb"), profile, network, num_ranks)
    else:
        traffic = traffic_of(name, profile, num_ranks, parts)
        prediction = _predict_by_traffic(traffic, profile, network, num_ranks)
    return prediction._replace(step_s=prediction.step_s + predict_loss_sync_s(network, num_ranks))


def traffic_of(name: str, profile: StepProfile, num_ranks: int, parts: ModelParts = NO_PARTS) -> Traffic:
    """Return what a strategy other than DDP sends; the arguments are those of `predict_strategy`."""
    plain, number = parse_strategy(name)
    keywords = {**number, "parts": parts} if plain in WITH_PARTS else number
    return TRAFFIC[plain](profile, num_ranks, **keywords)


def _predict_ddp(
    config: DdpConfig, bucket_cap_mb: float | None, profile: StepProfile, network: Cluster, num_ranks: int
) -> StepPrediction:
    s_per_byte = local_s(LocalWork(1.0), network, num_ranks)
    copy_bytes_per_s = 1 / s_per_byte if s_per_byte else math.inf
    caps = BucketCaps.from_mb(bucket_cap_mb)
    step = predict_step(profile, network, num_ranks, replace(config, caps=caps, copy_bytes_per_s=copy_bytes_per_s))
    return StepPrediction(step.copy_s + step.exposed_s, step.step_s)


def _predict_by_traffic(traffic: Traffic, profile: StepProfile, network: Cluster, num_ranks: int) -> StepPrediction:
    sync_s = predict_sync_s(traffic, network, num_ranks) / traffic.every
    compute_s = profile.forward_s + profile.backward_s + profile.optimizer_s * traffic.optimizer_share
    within_s = sum(_alone_s(call, network) for call in traffic.within)
    within_s += local_s(LocalWork(traffic.within_bytes), network, num_ranks)
    return StepPrediction(sync_s, compute_s + within_s + sync_s)


def predict_sync_s(traffic: Traffic, network: Cluster, num_ranks: int) -> float:
    """Seconds from the last gradient's being ready until the calls, one after the other, are done.

    What runs before that moment is hidden by the backward pass and not counted. A local walk is taken to be as
    fast as a reduction: both are bound by memory.
    """
    first_s = max((call.lead_s for call in traffic.calls), default=0.0)
    # A call follows a computation unless it could have been made together with the one before.
    before_s = [math.inf, *(call.lead_s for call in traffic.calls)]
    calls = [
        call.queued(first_s, network, cold=call.lead_s < last_s)
        for call, last_s in zip(traffic.calls, before_s, strict=False)
    ]
    spans = time_queue(calls, network, IN_ORDER)
    end_s = max((span.end_s for span in spans), default=0.0) - first_s
    return max(end_s, 0.0) + local_s(LocalWork(traffic.local_bytes), network, num_ranks)


def predict_loss_sync_s(network: Cluster, num_ranks: int) -> float:
    """Seconds in which the ranks tell each other their losses, before the backward pass."""
    if num_ranks == 1:
        return 0.0
    call = PredictedCall(direct_all_gather(num_ranks), 2 * LOSS_BYTES * num_ranks, LOSS_BYTES)
    return _alone_s(call, network)


def _alone_s(call: PredictedCall, network: Cluster) -> float:
    """Seconds of a call that a rank waits for, and has computed before."""
    return time_queue([call.queued(0.0, network, cold=True)], network, IN_ORDER)[0].end_s


def can_overlap(ranks_per_host: int, cores: int | None) -> bool:
    """Whether communication on the CPU can go on beside the backward pass: each rank needs a second core for it."""
    return cores is not None and cores >= 2 * ranks_per_host
