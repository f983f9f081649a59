"""`Memory`: the bytes of tensors that a rank holds with each strategy, predicted from a profile of the model.

It is what is held after the optimizer's step, and the activations that autograd saves in a forward pass. Not counted:
vectors that exist only while a collective is under way, buffers of the model, and counts such as an optimizer's steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ringsim.training_step import ELEMENT_BYTES, BucketCaps, StepProfile, fill_buckets
from trainers.predictions.vectors import (
    NO_PARTS,
    ModelParts,
    fsdp_vectors,
    layer_vectors,
    padded,
    powersgd_parts,
    vectors_of,
)
from trainers.strategy_names import RANK, SHARDED, parse_strategy


class Memory(NamedTuple):
    """Bytes of one rank; each storage counts once, in the first field that it fits.

    parameters: those that are trained, with what pads them. gradients: what a `grad` lies in, with marks and padding.
    optimizer: its state, one number or more for each element. vectors: of the strategy, no gradient lying in them.
    activations: saved by autograd in a forward pass, without parameters.
    """

    parameters: int
    gradients: int
    optimizer: int
    vectors: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def predict_memory(
    name: str,
    profile: StepProfile,
    num_ranks: int,
    states: int,
    activations: int,
    parts: ModelParts = NO_PARTS,
) -> Memory:
    """Return what a rank holds with that strategy.

    name: as `make_strategy` takes it. states: numbers that the optimizer keeps for each element, 2 for AdamW.
    activations: bytes that a forward pass saves; no strategy here changes them. parts: of the model, which
    "zero3", "fsdp" and "powersgd" need.
    """
    plain, number = parse_strategy(name)
    size, bucket_cap_mb = profile.gradient_bytes, number.get("bucket_cap_mb")
    if plain in ("zero3", "fsdp", "fsdp_on_ring"):
        vectors_of_layers = layer_vectors if plain == "zero3" else fsdp_vectors
        layers = vectors_of_layers(profile, num_ranks, parts)
        share = sum(vector.size_bytes for vectors in layers for vector in vectors) // num_ranks
        return Memory(share, share, states * share, 0, activations)
    if plain in SHARDED:
        vectors = (
            _buckets(profile, bucket_cap_mb, num_ranks, marked=False)
            if plain == "zero2"
            else sum(vector.size_bytes for vector in vectors_of(profile, num_ranks, marked=False))
        )
        whole = vectors if plain == "zero1" else 0  # this rank's own gradients, beside the mean ones of its share
        share = vectors // num_ranks
        return Memory(vectors, whole + share, states * share, 0, activations)
    if plain == "powersgd":
        gradients, others = _factors(profile, int(number.get("rank", RANK.example)), parts.shapes)
        return Memory(size, gradients, states * size, others, activations)
    gradients, others = _gradients(plain, profile, num_ranks, bucket_cap_mb)
    return Memory(size, gradients, states * size, others, activations)


def _gradients(plain: str, profile: StepProfile, num_ranks: int, bucket_cap_mb: float | None) -> tuple[int, int]:
    """Return what gradients lie in, and the other vectors, where all ranks hold all parameters."""
    size = profile.gradient_bytes
    flat = sum(vector.size_bytes for vector in vectors_of(profile))
    if plain in ("none", "allreduce"):
        return size, ELEMENT_BYTES["float32"] * len(profile.parameters) if plain == "allreduce" else 0
    if plain in ("local_sgd", "diloco"):
        sent = sum(vector.size_bytes for vector in vectors_of(profile, marked=False))
        return size, sent * (3 if plain == "diloco" else 1)  # with where the ranks began, and the velocity
    if plain == "rs_ag":
        of_ranks = sum(vector.size_bytes for vector in vectors_of(profile, num_ranks))
        return of_ranks, of_ranks // num_ranks
    if plain.startswith("bucketed"):
        return _buckets(profile, bucket_cap_mb, 1, marked=True), 0
    if plain.startswith("ddp"):
        return size, size + flat  # DDP's own buckets, and a vector to synchronise outside of a backward pass
    return flat, 0


def _factors(profile: StepProfile, rank: int, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Return the same of powersgd: what is sent as it is lies where the left factors are.

    There is an error beside factors.
    """
    parts = powersgd_parts(profile, rank, shapes)
    lefts, rights = (sum(vector.size_bytes for vector in vectors) for vectors in zip(*parts.vectors, strict=True))
    return parts.compressed_bytes + lefts, rights + parts.compressed_bytes


def _buckets(profile: StepProfile, bucket_cap_mb: float | None, multiple_of: int, marked: bool) -> int:
    """Of all buckets together."""
    parameters, size_bytes = profile.parameters, 0
    order = range(len(parameters) - 1, -1, -1)
    for bucket in fill_buckets(order, parameters, BucketCaps.from_mb(bucket_cap_mb)):
        elements = sum(parameters[index].elements for index in bucket) + (len(bucket) if marked else 0)
        size_bytes += padded(elements, multiple_of) * ELEMENT_BYTES[parameters[bucket[0]].dtype]
    return size_bytes
