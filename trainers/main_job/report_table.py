"""The report of the main job as text."""

from collections.abc import Sequence
from typing import Any

from ringsim.text_table import align_columns, wrap_text
from ringsim.units import plural
from trainers.loop.batches import describe_batch
from trainers.strategy_names import strategy_info

NARROW = ("strategy", "predicted", "measured", "error", "predicted", "step", "error", "loss")
NARROW_UNITS = ("", "sync ms", "sync ms", "", "step ms", "ms", "", "")
WIDE = (
    "strategy", "predicted ms", "measured ms", "spread", "error",
    "step predicted", "step ms", "error", "tokens/s", "final loss",
)  # fmt: skip
MEMORY = ("memory", "predicted", "held", "params", "grads", "optim", "vectors", "activ")
MEMORY_UNITS = ("per rank", "MiB", "MiB", "MiB", "MiB", "MiB", "MiB", "MiB")
BESIDE = ("spread", "tokens/s")  # only in the wide table


def format_report(report: dict[str, Any], wide: bool = False) -> str:
    """Return the table of strategies, and under it what holds for all of them; wide: with spread and tokens/s."""
    rows = [_row(result) for result in report["strategies"]]
    memory = _memory_table(report["strategies"])
    if wide:
        return "\n".join([*align_columns([WIDE, *rows], "lr"), "", *memory, *_footnotes(report)])
    kept = [place for place, name in enumerate(WIDE) if name not in BESIDE]
    narrow = [tuple(row[place] for place in kept) for row in rows]
    footnotes = [wrap_text(note, indent="  ") for note in _footnotes(report)]
    return "\n".join([*align_columns([NARROW, NARROW_UNITS, *narrow], "lr"), "", *memory, *footnotes])


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


def _memory_table(results: list[dict[str, Any]]) -> list[str]:
    """Return what a rank holds, and of what kind; nothing for a report that does not say. An empty line follows."""
    if any("memory_bytes" not in result for result in results):
        return []
    rows = [_memory_row(result) for result in results]
    return [*align_columns([MEMORY, MEMORY_UNITS, *rows], "lr"), ""]


def _memory_row(result: dict[str, Any]) -> tuple[str, ...]:
    held = result["memory_bytes"]
    sizes = (sum(result["predicted_memory_bytes"].values()), sum(held.values()), *held.values())
    return (result["strategy"], *(f"{size / 2**20:.2f}" for size in sizes))


def _footnotes(report: dict[str, Any]) -> list[str]:
    results = report["strategies"]
    where = report["measurements"]["provenance"]
    batch_size, num_ranks = report["train"]["batch_size"], report["num_ranks"]
    batch = describe_batch(batch_size * num_ranks, num_ranks)
    drifting = [result["strategy"] for result in results if not result["parameters_identical"]]
    but_none = " except `none`" if "none" in drifting else ""
    identical = f"with every strategy{but_none} all ranks hold bit-identical parameters"
    if differing := [name for name in drifting if name != "none"]:
        identical = f"RANKS DIFFER: the parameters of {', '.join(differing)} are not bit-identical on all ranks"
    return [
        "sync: gradient synchronisation of one step, from the last gradient's being ready; measured: the median of "
        f"{results[0]['steps_measured']} steps, as the last rank to arrive sees it; spread: 10th to 90th "
        "percentile (--wide); predicted from point-to-point probes only, a step from a profile without synchronisation "
        "too.",
        f"{identical}; loss curves{_but_inexact(results)} differ by at most {report['max_loss_difference']:.1e}.",
        f"{plural(report['num_ranks'], 'rank')}, {batch}, {report['num_parameters']:,} parameters; {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}, OMP_NUM_THREADS={where['OMP_NUM_THREADS']}, {where['date']}.",
    ]


def _but_inexact(results: Sequence[dict[str, Any]]) -> str:
    """Which loss curves are not to be the same."""
    names = [f"`{result['strategy']}`" for result in results if not strategy_info(result["strategy"]).is_exact]
    names = [name for name in names if name != "`none`"]
    return f" except of {', '.join(names)}, whose training is another one," if names else ""
