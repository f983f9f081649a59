"""Words about a run while it trains: a line of its log; and the memory that a process has needed."""

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringsim.units import format_duration, format_size, format_time, plural

STATUS = Path("/proc/self/status")  # of Linux


def describe_line(line: Mapping[str, Any], num_steps: int) -> str:
    """Return a line of the log as it is printed. num_steps: of the whole run.

    >>> line = {"step": 20, "loss": 2.5, "tokens_per_s": 51200.0, "step_s": 0.01, "sync_share": 0.25}
    >>> describe_line(line | {"peak_memory_bytes": 2**28, "time_left_s": 61.0}, 100)
    'step 20/100: mean loss 2.5, 51,200 tokens/s, 10 ms a step, 25% exposed communication, memory 256 MiB, 1:01 left'
    """
    unit = "tokens" if "tokens_per_s" in line else "samples"
    parts = [
        "no loss" if line["loss"] is None else f"mean loss {line['loss']:.4g}",
        f"{line[f'{unit}_per_s']:,.0f} {unit}/s",
        f"{format_milliseconds(line['step_s'])} a step",
        f"{line['sync_share']:.0%} exposed communication",
    ]
    if "gradient_norm" in line:
        norm = line["gradient_norm"]  # None if it is infinite or not a number, which JSON does not have
        parts.append(f"gradient norm {'not finite' if norm is None else f'{norm:.3g}'}")
    if line.get("skipped"):
        parts.append(f"{plural(line['skipped'], 'step')} skipped")
    parts += [f"memory {format_size(line['peak_memory_bytes'])}", f"{format_duration(line['time_left_s'])} left"]
    return f"step {line['step']}/{num_steps}: {', '.join(parts)}"


def describe_evaluation(step: int, num_steps: int, figures: Mapping[str, float | None]) -> str:
    """Return the line that is printed of an evaluation.

    >>> describe_evaluation(20, 100, {"loss": 2.25, "accuracy": 0.5})
    'step 20/100: held-out data: loss 2.2500, accuracy 0.5000'
    """
    return f"step {step}/{num_steps}: held-out data: {format_figures(figures)}"


def format_figures(figures: Mapping[str, float | None]) -> str:
    """Format figures on held-out data; nan for one that is not finite."""
    return ", ".join(f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in figures.items())


def format_milliseconds(time_s: float) -> str:
    """Format as 12.3 ms: three digits, as more of them change from line to line."""
    return format_time(float(f"{time_s:.3g}"))


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had resident."""
    try:
        # Not ru_maxrss, which on Linux begins with that of the process that has started this one.
        peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024
