"""The report of the main job as text."""

from typing import Any

from ringsim.text_table import align_columns
from trainers.loop.batches import describe_batch

HEADER = (
    "strategy", "predicted ms", "measured ms", "spread", "error",
    "step predicted", "step ms", "error", "tokens/s", "final loss",
)  # fmt: skip


def format_report(report: dict[str, Any]) -> str:
    """The table of strategies, and under it what holds for all of them."""
    rows = [HEADER, *(_row(result) for result in report["strategies"])]
    return "\n".join([*align_columns(rows, "lr"), "", *_footnotes(report)])


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    error = result["error"]
    return (
        result["strategy"],
        f"{result['predicted_sync_s'] * 1e3:.2f}",
        f"{result['measured_sync_s'] * 1e3:.2f}",
        f"{result['measured_sync_p10_s'] * 1e3:.2f}-{result['measured_sync_p90_s'] * 1e3:.2f}",
        "-" if error is None else f"{error:+.0%}",
        f"{result['predicted_step_s'] * 1e3:.1f}",
        f"{result['step_s'] * 1e3:.1f}",
        f"{result['step_error']:+.0%}",
        f"{result['tokens_per_s']:,.0f}",
        f"{result['final_loss']:.3f}",
    )


def _footnotes(report: dict[str, Any]) -> list[str]:
    results = report["strategies"]
    where = report["measurements"]["provenance"]
    batch_size, num_ranks = report["train"]["batch_size"], report["num_ranks"]
    batch = describe_batch(batch_size * num_ranks, num_ranks)
    drifting = [result["strategy"] for result in results if not result["parameters_identical"]]
    but_none = " but none" if "none" in drifting else ""
    identical = f"with every strategy{but_none} all ranks hold bit-identical parameters"
    if differing := [name for name in drifting if name != "none"]:
        identical = f"RANKS DIFFER: the parameters of {', '.join(differing)} are not bit-identical on all ranks"
    return [
        "ms: gradient synchronisation of one step, from the last gradient's being ready; measured: the median of "
        f"{results[0]['steps_measured']} steps, as the last rank to arrive sees it; spread: 10th to 90th "
        "percentile; predicted from point-to-point probes only, a step from a profile without synchronisation too.",
        f"{identical}; loss curves differ by at most {report['max_loss_difference']:.1e}.",
        f"{report['num_ranks']} ranks, {batch}, {report['num_parameters']:,} parameters; {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}, OMP_NUM_THREADS={where['OMP_NUM_THREADS']}, {where['date']}.",
    ]
