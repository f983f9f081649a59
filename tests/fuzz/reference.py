"""What ranks contribute to a call, drawn from a seed, and what each must get, worked out without our code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tests.fuzz.calls import Call

FACTORS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)  # five of them multiply to what every dtype holds exactly
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, -2.0)


def contribution(call: Call, seed: int, rank: int, num_ranks: int) -> list[torch.Tensor]:
    """What `rank` of the group gives: its input tensors, contiguous."""
    generator = torch.Generator().manual_seed((seed * 16 + rank) % 2**63)
    values = [_random(call, shape, generator) for shape in call.input_shapes(num_ranks)]
    if call.input_layout == "expanded":  # one element in many places
        return [each.reshape(-1)[:1].expand(each.numel()).reshape(each.shape).clone() for each in values]
    return values


def _random(call: Call, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    dtype = call.torch_dtype
    if dtype.is_complex:
        parts = [_real(call, shape, generator) for _ in range(2)]
        return torch.complex(*parts).to(dtype)
    if dtype.is_floating_point:
        return _real(call, shape, generator).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    small = call.values == "exact"
    return torch.randint(-4 if small else -(2**62), 5 if small else 2**62, shape, generator=generator).to(dtype)


def _real(call: Call, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """float64."""
    if call.values in ("random", "zeros"):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
        return torch.where(values.abs() < 1, values.sign() * 0.0, values) if call.values == "zeros" else values
    if call.values == "special":
        choices = torch.tensor(SPECIAL, dtype=torch.float64)
    elif call.op == "PRODUCT" and not call.torch_dtype.is_complex:
        choices = torch.tensor(FACTORS, dtype=torch.float64)
    else:
        choices = torch.arange(-4, 5, dtype=torch.float64)
    return choices[torch.randint(0, len(choices), shape, generator=generator)]


def expected(call: Call, seed: int, rank: int, num_ranks: int) -> list[torch.Tensor]:
    """The results of `rank`, contiguous; of what is only received or changed in place."""
    inputs = [contribution(call, seed, each, num_ranks) for each in range(num_ranks)]
    if call.name == "broadcast":
        return inputs[call.root % num_ranks]
    if call.name.startswith("all_gather"):
        return _gathered(call, inputs)
    if call.name == "reduce" and rank != call.root % num_ranks:
        return inputs[rank]
    totals = [_reduced(call, [each[index] for each in inputs]) for index in range(len(inputs[0]))]
    if call.name == "reduce_scatter":
        return [totals[rank]]
    if call.name.startswith("reduce_scatter"):
        return [total.view(num_ranks, *call.shape)[rank] for total in totals]
    return totals


def _gathered(call: Call, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    if call.name == "all_gather":
        return [each[0] for each in inputs]
    return [torch.stack(parts) for parts in zip(*inputs, strict=True)]


def _reduced(call: Call, parts: list[torch.Tensor]) -> torch.Tensor:
    """In a wide dtype, and only then rounded."""
    dtype, wide = call.torch_dtype, _wide(call.torch_dtype)
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = OPS[call.op](total, part.to(wide))
    if call.op == "AVG" and wide == torch.int64:  # truncated towards zero
        total = total.div(len(parts), rounding_mode="trunc")
    elif call.op == "AVG":
        total = total.to(dtype) / len(parts)
    return total.to(dtype)


OPS = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


def difference(call: Call, got: list[torch.Tensor], wanted: list[torch.Tensor], num_ranks: int) -> str:
    """Return the first difference of the results, "" if there is none. NaN equals NaN, and -0 equals 0."""
    most = 0.0 if call.is_exact else _rounding(call, num_ranks)
    for index, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        flat, other = (tensor.detach().to(_wide(tensor.dtype)).reshape(-1) for tensor in (mine, right))
        try:
            torch.testing.assert_close(flat, other, rtol=0.0, atol=most, equal_nan=True)
        except AssertionError as error:
            return f"result {index}: {error}"
    return ""


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64


def _rounding(call: Call, num_ranks: int) -> float:
    """How far two orders of additions, each with its roundings, may lie apart; all summands are below 20 or so."""
    infos = [torch.finfo(getattr(torch, name)) for name in (call.dtype, call.wire) if name]
    eps, tiny = max(info.eps for info in infos), max(info.smallest_normal for info in infos)
    scale = 20.0**num_ranks if call.op == "PRODUCT" else 20.0 * num_ranks
    return float(2 * (num_ranks + 1) * (eps * scale + tiny))
