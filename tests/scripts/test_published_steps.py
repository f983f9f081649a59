"""The programs of published steps: their products by hand, and the rows that are predicted from them."""

from pathlib import Path

import pytest

from published_steps.predict import Predictor
from published_steps.rows import Recording, Row, rows_of
from ringsim.traces import Device
from tests.collectives.recording.recorded import trace_of
from truth import Truth

FOLDER = Path(__file__).parents[2] / "scripts" / "published_steps"


def causal(width: int, length: int, batch: int) -> int:
    """Return the operations of a layer's attention in both passes."""
    return 7 * 4 * width * batch * (length * (length + 1) // 2) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments", "num_ranks", "flops", "calls"),
    [
        (
            "mpt",
            "--model 125m --sequence 512 --micro 2 --accumulation 1",
            8,
            6 * (12 * 12 * 768**2 + 50_368 * 768) * 1024 + 12 * causal(768, 512, 2),
            {"all_gather": 25, "reduce_scatter": 13, "all_reduce": 1},
        ),
        (
            "megatron",
            "--width 1024 --heads 16 --sequence 256 --micro 2 --parts 2 --layers 2 --accumulation 1",
            4,
            (6 * (2 * 12 * 1024**2 + 51_200 * 1024) * 512 + 2 * 12 * 1024 * 256 * 512) // 2,
            # Two calls in each pass of a layer, the embedding, the loss's three, the logits', the optimizer's two.
            {"all_reduce": 2 * 4 + 1 + 3 + 1 + 1 + 2},
        ),
        (
            "nanotron",
            "--micro 1 --parts 2 --zero 1 --accumulation 1",
            8,
            (6 * (16 * (4 * 2048**2 + 3 * 2048 * 8192) + 131_072 * 2048) * 4096 + 16 * causal(2048, 4096, 1)) // 2,
            # All gather before the products of two halves of a layer, and scatter after them; backward the reverse.
            # The inputs of two products a layer, and of the scores, are gathered again in the backward pass.
            # Buckets from 25 MiB on: two a layer. ZeRO gathers all parameters.
            {"all_gather": 16 * 6 + 3 + 1, "reduce_scatter": 16 * 4 + 2, "all_reduce": 32 + 3 + 1},
        ),
    ],
)
def test_the_work_of_the_programs(
    program: str, arguments: str, num_ranks: int, flops: int, calls: dict[str, int]
) -> None:
    """FLOPs of all products and of attention, and the calls of one step."""
    path = FOLDER / "programs" / f"{program}.py"
    trace = trace_of(path, *arguments.split(), is_fake=True, device=Device.CUDA, num_ranks=num_ranks)
    step = trace.steps[-1]
    products = sum(o.flops * o.count for o in step.operators if o.product or o.attention)
    assert products == pytest.approx(flops, rel=1e-9)
    counted = [call.collective for call in step.calls]
    assert {name: counted.count(name) for name in set(counted)} == calls


@pytest.mark.parametrize(
    ("table", "number", "name", "measured_s", "weights"),
    [
        ("mpt-a100-40gb", 78, "MPT-70b, 2048, 128 GPUs", 512 * 2048 / 48194, [1.0]),
        (
            "megatron-a100-one-host",
            360,
            "GPT 2048 x 16, TP 1, DP 4, micro-batch 2, batch 32",
            0.406355066,
            [28, -42, -30, 45],
        ),
        ("playbook-1.34B-pp1", 164, "Llama 1.34B, 8 GPUs, TP 1, ZeRO-0, micro-batch 2", 256 * 4096 / 321200, [-14, 15]),
    ],
)
def test_rows_are_read(table: str, number: int, name: str, measured_s: float, weights: list[float]) -> None:
    """The weights of recordings with one or two layers and micro-steps add up to 1."""
    rows = list(rows_of(table))
    assert len(rows) == number
    assert (rows[0].name, rows[0].measured_s) == (name, pytest.approx(measured_s))
    assert [weight for _, weight in rows[0].parts] == weights
    assert all(sum(weight for _, weight in row.parts) == 1 for row in rows)


def made_row(num_ranks: int, measured_s: float, tokens: int = 8000, parallelism: str = "DP") -> Row:
    """Return a row whose prediction is 1 s for 8 ranks, and 1.2 s for more."""
    part = Recording("made", (parallelism,), num_ranks)
    return Row(f"{num_ranks} {parallelism}", "made", parallelism, "a100", num_ranks, tokens, measured_s, ((part, 1.0),))


class Made(Predictor):
    """Predicts without recordings."""

    def __init__(self) -> None:
        super().__init__({})

    def step_s(self, row: Row) -> float:
        return 1.0 if row.is_on_one_host else 1.2

    def flops(self, row: Row) -> float:
        return 1e12 * row.tokens / row.num_ranks


def test_null_models_and_regret() -> None:
    """Worked by hand: 8 ranks measured at 1.25 s, so a prediction of 0.8 of it; 16 ranks have twice the tokens."""
    alone, other = made_row(8, 1.25), made_row(8, 1.0, parallelism="TP")
    many, slower = made_row(16, 1.25, 16_000), made_row(16, 1.5, 16_000, "TP")
    truth = Truth([alone, other, many, slower], Made())
    assert truth.error(alone) == pytest.approx(-0.2)
    assert truth.scaled(many) == pytest.approx(0.2)  # 0.96 / 0.8 - 1: the nearest row has the same parallelism
    assert truth.scaled(alone) is None
    assert truth.perfectly_scaled(many) == pytest.approx(0.0)
    assert truth.perfectly_scaled(slower) == pytest.approx(1.0 / 1.5 - 1)
    assert truth.at_share(many) == pytest.approx((1 / 1.25) / ((1 / 1.25 + 1) / 2) - 1)
    assert truth.regrets() == pytest.approx([0.25, 0.0])  # both predictions are equal: the first row is taken
