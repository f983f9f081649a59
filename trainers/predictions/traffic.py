"""What each strategy of `trainers/strategies` sends in a step, as calls that `ringsim` can predict.

A function for each strategy, in `TRAFFIC`; those of DDP are not here, since `ringsim.training_step` knows DDP's step.
A vector of gradients has, behind them, a mark for each parameter (see `FlatGradients`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ringsim.algorithms import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.native import native_schedule
from ringsim.network import Cluster
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import GLOO, OURS, QueuedCall, Runtime
from ringsim.training_step import ELEMENT_BYTES, BucketCaps, StepProfile, fill_buckets
from trainers.predictions.model_parts import ModelParts
from trainers.strategy_names import EVERY, RANK

WITH_PARTS = ("zero3", "fsdp", "fsdp_on_ring", "powersgd")  # whose traffic a profile alone does not tell
NO_PARTS = ModelParts()
CHECKSUM_BYTES = 8  # an int64
WALKS_OF_POWERSGD = 5  # over a matrix: add the gradient to the error, three products, subtract the last


class PredictedCall(NamedTuple):
    """One collective of a synchronisation.

    size_bytes: of the whole tensor, elements of `element_bytes` each.
    lead_s: how long before the end of the backward pass it can start; 0: afterwards only.
    runtime: who is called.
    """

    schedule: Schedule
    size_bytes: int
    element_bytes: int
    lead_s: float = 0.0
    runtime: Runtime = OURS

    def queued(self, first_s: float, network: Cluster, cold: bool) -> QueuedCall:
        """For a queue that begins `first_s` before the end of the backward pass.

        cold: see `Runtime.call_s`.
        """
        call_s = self.runtime.call_s(network, cold=cold)
        ready_s, shared = first_s - self.lead_s, self.runtime.shared_memory(network)
        return QueuedCall(self.schedule, self.size_bytes, self.element_bytes, ready_s, call_s, shared)


class Traffic(NamedTuple):
    """All that one synchronisation moves: between the ranks, and within each.

    calls: one after the other. local_bytes: what a rank walks through by itself, packing, unpacking and dividing.
    optimizer_share: the part of the parameters that a rank's optimizer steps. every: all this is done once in so many
    steps. within: calls before the last gradient is ready, for which the passes wait. within_bytes: what a rank walks
    through for those.
    """

    calls: list[PredictedCall]
    local_bytes: int
    optimizer_share: float = 1.0
    every: int = 1
    within: Sequence[PredictedCall] = ()
    within_bytes: int = 0


class Vector(NamedTuple):
    """Gradients of one dtype, one after the other."""

    elements: int
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return self.elements * self.element_bytes


def none(_: StepProfile, __: int) -> Traffic:
    """Nothing."""
    return Traffic([], local_bytes=0)


def allreduce(profile: StepProfile, num_ranks: int) -> Traffic:
    """Who has a gradient, then one gradient after the other."""
    used = Vector(len(profile.parameters), ELEMENT_BYTES["float32"])
    gradients = [Vector(p.elements, ELEMENT_BYTES[p.dtype]) for p in profile.parameters]
    calls = [_gloo_all_reduce(num_ranks, vector) for vector in (used, *gradients)]
    return Traffic(calls, local_bytes=profile.gradient_bytes)  # the division


def flat(profile: StepProfile, num_ranks: int) -> Traffic:
    """One vector for each dtype, by torch's all_reduce."""
    vectors = vectors_of(profile)
    calls = [_gloo_all_reduce(num_ranks, vector) for vector in vectors]
    return Traffic(calls, local_bytes=2 * _size_bytes(vectors))  # pack, divide


def rs_ag(profile: StepProfile, num_ranks: int) -> Traffic:
    """Return the same in two halves."""
    vectors, calls = vectors_of(profile, multiple_of=num_ranks), []
    for vector in vectors:
        # Gloo has no reduce_scatter of its own: torch makes a copy and all-reduces it, twice the bytes needed.
        for half in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
            schedule = native_schedule(half, num_ranks, vector.size_bytes)
            calls.append(PredictedCall(schedule, *_sizes(vector), runtime=GLOO))
    size_bytes = _size_bytes(vectors)
    return Traffic(calls, 2 * size_bytes + 2 * size_bytes // num_ranks)  # pack, copy; take the share, divide


def ring(profile: StepProfile, num_ranks: int) -> Traffic:
    """One vector for each dtype, by our ring."""
    schedule, vectors = ring_all_reduce(num_ranks), vectors_of(profile)
    calls = [PredictedCall(schedule, *_sizes(vector)) for vector in vectors]
    return Traffic(calls, local_bytes=2 * _size_bytes(vectors))  # pack, divide


def bucketed(
    profile: StepProfile, num_ranks: int, bucket_cap_mb: float | None = None, wire: str | None = None
) -> Traffic:
    """Return a vector for each bucket, filled in the reverse of the order of registration.

    Wire: the dtype that travels.
    """
    schedule, parameters, calls, vectors = ring_all_reduce(num_ranks), profile.parameters, [], []
    order = range(len(parameters) - 1, -1, -1)
    for bucket in fill_buckets(order, parameters, BucketCaps.from_mb(bucket_cap_mb)):
        dtype = parameters[bucket[0]].dtype
        vector = Vector(sum(parameters[index].elements for index in bucket) + len(bucket), ELEMENT_BYTES[dtype])
        sent = vector._replace(element_bytes=ELEMENT_BYTES[wire or dtype])
        lead_s = profile.backward_s - max(parameters[index].ready_s for index in bucket)
        calls.append(PredictedCall(schedule, *_sizes(sent), lead_s))
        vectors.append(vector)
    return Traffic(calls, local_bytes=2 * _size_bytes(vectors))  # pack, divide


def zero1(profile: StepProfile, num_ranks: int) -> Traffic:
    """Return the gradients reduce-scattered, and the parameters all-gathered; no marks."""
    vectors, calls = vectors_of(profile, multiple_of=num_ranks, marked=False), []
    for vector in vectors:
        for schedule in (ring_reduce_scatter(num_ranks), ring_all_gather(num_ranks)):
            calls.append(PredictedCall(schedule, *_sizes(vector)))
    size_bytes = _size_bytes(vectors)
    local_bytes = size_bytes + 2 * size_bytes // num_ranks  # pack; take the share, divide
    return Traffic(calls, local_bytes, optimizer_share=1 / num_ranks)


def zero2(profile: StepProfile, num_ranks: int, bucket_cap_mb: float | None = None) -> Traffic:
    """Return a reduce-scatter for each bucket of gradients, then an all-gather for each of parameters; no marks."""
    parameters, scatters, gathers, size_bytes = profile.parameters, [], [], 0
    order = range(len(parameters) - 1, -1, -1)
    for bucket in fill_buckets(order, parameters, BucketCaps.from_mb(bucket_cap_mb)):
        held = [parameters[index] for index in bucket]
        vector = Vector(padded(sum(p.elements for p in held), num_ranks), ELEMENT_BYTES[held[0].dtype])
        lead_s = profile.backward_s - max(p.ready_s for p in held)
        scatters.append(PredictedCall(ring_reduce_scatter(num_ranks), *_sizes(vector), lead_s))
        gathers.append(PredictedCall(ring_all_gather(num_ranks), *_sizes(vector)))
        size_bytes += vector.size_bytes
    local_bytes = size_bytes + 2 * size_bytes // num_ranks  # pack; take the share, divide
    return Traffic([*scatters, *gathers], local_bytes, optimizer_share=1 / num_ranks)


def zero3(profile: StepProfile, num_ranks: int, parts: ModelParts) -> Traffic:
    """Parameters gathered for each pass of a layer, and its gradients reduce-scattered when all are there; no marks.

    The rest stays between the two passes. Raises ValueError if `parts` has not all parameters.
    """
    layers = layer_vectors(profile, num_ranks, parts)
    rest = layers.pop() if parts.rest else []
    gather, scatter = ring_all_gather(num_ranks), ring_reduce_scatter(num_ranks)
    calls = calls_of_layers(
        layers, rest, lambda v: PredictedCall(gather, *_sizes(v)), lambda v: PredictedCall(scatter, *_sizes(v))
    )
    last = rest or layers[0]  # whose gradients come last
    within, after = calls[: -len(last)], calls[-len(last) :]
    after.append(PredictedCall(gather, CHECKSUM_BYTES * num_ranks, CHECKSUM_BYTES))  # of the layers that were gathered
    walked, walked_last = (
        size_bytes + 2 * size_bytes // num_ranks  # pack; take the share, divide
        for size_bytes in (_size_bytes([v for vectors in [rest, *layers] for v in vectors]), _size_bytes(last))
    )
    return Traffic(after, walked_last, 1 / num_ranks, within=within, within_bytes=walked - walked_last)


def calls_of_layers(
    layers: Sequence[list[Vector]],
    rest: list[Vector],
    gather: Callable[[Vector], PredictedCall],
    scatter: Callable[[Vector], PredictedCall],
) -> list[PredictedCall]:
    """Return the calls of a forward and a backward pass, in order: the parameters of the rest are gathered once."""
    calls = [gather(vector) for vectors in [rest, *layers] for vector in vectors]
    for vectors in reversed(layers):
        calls += [gather(vector) for vector in vectors] + [scatter(vector) for vector in vectors]
    return calls + [scatter(vector) for vector in rest]


def fsdp(profile: StepProfile, num_ranks: int, parts: ModelParts, runtime: Runtime = GLOO) -> Traffic:
    """Return the same of torch's `fully_shard`: all of it within the passes, with parameters padded one by one.

    runtime: Gloo, which has no reduce_scatter (see `rs_ag`), or ours, of the backend "ring".
    """
    layers = fsdp_vectors(profile, num_ranks, parts)
    rest = layers.pop() if parts.rest else []
    own = {
        Collective.ALL_GATHER: ring_all_gather(num_ranks),
        Collective.REDUCE_SCATTER: ring_reduce_scatter(num_ranks),
    }

    def call(kind: Collective, vector: Vector) -> PredictedCall:
        schedule = native_schedule(kind, num_ranks, vector.size_bytes) if runtime.is_torch else own[kind]
        return PredictedCall(schedule, *_sizes(vector), runtime=runtime)

    within = calls_of_layers(layers, rest, *(partial(call, kind) for kind in own))
    size_bytes, rest_bytes = _size_bytes([v for vectors in [rest, *layers] for v in vectors]), _size_bytes(rest)
    gathered = 2 * size_bytes - rest_bytes  # what comes is copied to the parameters, as gradients are to what is sent
    return Traffic([], 0, 1 / num_ranks, within=within, within_bytes=gathered + (1 + runtime.is_torch) * size_bytes)


def fsdp_vectors(profile: StepProfile, num_ranks: int, parts: ModelParts) -> list[list[Vector]]:
    """As `layer_vectors`, of parameters of which every rank has as many rows, with what pads the last ones.

    Raises ValueError, too, if `parts` has not the shapes of all parameters.
    """
    if len(parts.shapes) != len(profile.parameters):
        raise ValueError(f"fsdp: {len(parts.shapes)} shapes of parameters: must be {len(profile.parameters)}")
    rows = [shape[0] if shape else 1 for shape in parts.shapes]
    padded_parameters = tuple(
        replace(parameter, elements=parameter.elements // max(count, 1) * padded(count, num_ranks))
        for parameter, count in zip(profile.parameters, rows, strict=True)
    )
    return layer_vectors(replace(profile, parameters=padded_parameters), num_ranks, parts)


def layer_vectors(profile: StepProfile, num_ranks: int, parts: ModelParts) -> list[list[Vector]]:
    """Of each layer, and then of the rest if there is any: a vector for each dtype, padded for that many ranks.

    Raises ValueError if a parameter is in none of them, or in several.
    """
    layers = [*parts.layers, *([parts.rest] if parts.rest else [])]
    numbers = sorted(number for layer in layers for number in layer)
    if numbers != list(range(len(profile.parameters))):
        raise ValueError(f"{len(numbers)} parameters in layers: must be all {len(profile.parameters)}, once")
    held = (replace(profile, parameters=tuple(profile.parameters[number] for number in layer)) for layer in layers)
    return [vectors_of(of_layer, num_ranks, marked=False) for of_layer in held]


def local_sgd(
    profile: StepProfile, num_ranks: int, every: int = EVERY.example, has_outer_momentum: bool = False
) -> Traffic:
    """Return the parameters themselves, one vector for each dtype, once in `every` steps; no marks."""
    schedule, vectors = ring_all_reduce(num_ranks), vectors_of(profile, marked=False)
    calls = [PredictedCall(schedule, *_sizes(vector)) for vector in vectors]
    walks = 3 + 8 * has_outer_momentum  # pack, divide, unpack; remember the start (pack, copy), and a step of momentum
    return Traffic(calls, walks * _size_bytes(vectors), every=every)


def powersgd(profile: StepProfile, num_ranks: int, rank: int = RANK.example, parts: ModelParts = NO_PARTS) -> Traffic:
    """Two vectors for each dtype: left factors with all that is sent as it is, and marks; then right factors.

    Raises ValueError if `parts` has not the shapes of all parameters, which a profile does not have.
    """
    factors = powersgd_parts(profile, rank, parts.shapes)
    sent = [vector for pair in factors.vectors for vector in pair if vector.elements]
    calls = [PredictedCall(ring_all_reduce(num_ranks), *_sizes(vector)) for vector in sent]
    return Traffic(calls, WALKS_OF_POWERSGD * factors.compressed_bytes + 2 * _size_bytes(sent))  # pack, divide


class PowerSgdParts(NamedTuple):
    """vectors: of each dtype that of left factors, and what is sent as it is, and that of right factors.

    compressed_bytes: of the gradients that are sent as factors.
    """

    vectors: list[tuple[Vector, Vector]]
    compressed_bytes: int


def powersgd_parts(profile: StepProfile, rank: int, shapes: Sequence[tuple[int, ...]]) -> PowerSgdParts:
    """Return what powersgd makes of parameters of these shapes. Raises ValueError for another number of shapes."""
    if len(shapes) != len(profile.parameters):
        raise ValueError(f"powersgd: {len(shapes)} shapes of parameters: must be {len(profile.parameters)}")
    elements: dict[str, list[int]] = {}
    compressed_bytes = 0
    for parameter, shape in zip(profile.parameters, shapes, strict=True):
        count, rows = parameter.elements, shape[0] if len(shape) > 1 else 0
        is_compressed = rows > 0 and (rows + count // rows) * rank < count
        lefts, rights = (rows * rank, count // rows * rank) if is_compressed else (count, 0)
        both = elements.setdefault(parameter.dtype, [0, 0])
        both[0] += lefts + 1  # the mark
        both[1] += rights
        compressed_bytes += is_compressed * parameter.size_bytes
    vectors = [
        (Vector(lefts, ELEMENT_BYTES[dtype]), Vector(rights, ELEMENT_BYTES[dtype]))
        for dtype, (lefts, rights) in elements.items()
    ]
    return PowerSgdParts(vectors, compressed_bytes)


MakeTraffic = Callable[..., Traffic]  # of a profile and the number of ranks; some take the number after a slash, too

TRAFFIC: dict[str, MakeTraffic] = {
    "none": none,
    "allreduce": allreduce,
    "flat": flat,
    "rs_ag": rs_ag,
    "ring": ring,
    "bucketed": bucketed,
    "bucketed_bf16": partial(bucketed, wire="bfloat16"),
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
    "fsdp": fsdp,
    "fsdp_on_ring": partial(fsdp, runtime=OURS),
    "local_sgd": local_sgd,
    "diloco": partial(local_sgd, has_outer_momentum=True),
    "powersgd": powersgd,
}


def _gloo_all_reduce(num_ranks: int, vector: Vector) -> PredictedCall:
    """Return what `dist.all_reduce` of it is on Gloo."""
    schedule = native_schedule(Collective.ALL_REDUCE, num_ranks, vector.size_bytes)
    return PredictedCall(schedule, *_sizes(vector), runtime=GLOO)


def _sizes(vector: Vector) -> tuple[int, int]:
    return vector.size_bytes, vector.element_bytes


def _size_bytes(vectors: list[Vector]) -> int:
    return sum(vector.size_bytes for vector in vectors)


def vectors_of(profile: StepProfile, multiple_of: int = 1, marked: bool = True) -> list[Vector]:
    """One for each dtype, padded to a multiple of that many elements."""
    elements: dict[str, int] = {}
    for parameter in profile.parameters:
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + parameter.elements + marked
    return [Vector(padded(count, multiple_of), ELEMENT_BYTES[dtype]) for dtype, count in elements.items()]


def padded(count: int, multiple_of: int) -> int:
    """Return the next multiple."""
    return math.ceil(count / multiple_of) * multiple_of
