"""A predicted step, its scaling, and DDP steps by bucket size, as text and tables."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from statistics import median

from ringsim.console import in_one_line
from ringsim.files import shortened
from ringsim.gpus import Roofline
from ringsim.libraries import LIBRARY_TITLE
from ringsim.report.run_summary import expected_rows
from ringsim.report.table import DataTable, TableCell, TableColumn, share_cell, size_cell
from ringsim.text_table import align_columns, wrap_text
from ringsim.traces import StepMemory
from ringsim.training_step import LOWER_BOUND, BucketCaps, DdpStep, StepProfile, TracePrediction, TraceScaling
from ringsim.units import format_size, format_time, plural

MAX_BETTER = 4  # alternatives that are listed
BETTER = "The step would take"  # heads them
_TENTHS = partial(share_cell, digits=1)
_ROUNDING_S = 1e-9  # a smaller slowdown is rounding
_CPU_BOUND = 0.9  # least share of a step for which the CPU issues work, if the GPU waits for it


def format_trace_prediction(prediction: TracePrediction, facts: Sequence[tuple[str, str]] = ()) -> str:
    """Return a step, further facts, its calls by kind, and improvements."""
    lines = [step_title(prediction)]
    lines += [f"  {line}" for line in align_columns([*step_facts(prediction), *facts])]
    lines += [wrap_text(f"  {note}", indent="  ") for note in notes_on_step(prediction)]
    blocks = ["\n".join(lines)]
    if prediction.timeline.calls:
        blocks.append(calls_table(prediction).text())
    if better := better_steps(prediction):
        blocks.append("\n".join([BETTER, *(f"  {line}" for line in better)]))
    return "\n\n".join(blocks)


def format_trace_scaling(scaling: TraceScaling) -> str:
    """Return one line per number of ranks, and notes."""
    notes = [note for prediction in scaling.predictions for note in notes_on_step(prediction)]
    lines = (wrap_text(note, indent="  ") for note in dict.fromkeys([*scaling_facts(scaling), *notes]) if note)
    return "\n".join([*scaling_table(scaling).lines(), *lines])


def scaling_facts(scaling: TraceScaling) -> list[str]:
    """Return the certainty of the times, and omissions."""
    last = scaling.predictions[-1]
    between = [f"{plural(step.trace.num_ranks, 'rank')}: {step_time(step)}" for step in scaling.predictions]
    return [
        *(between if last.fused_s is not None else [last.computing.basis]),
        *(f"{name}: {steps}" for name, steps in _steps(last)),
        scaling.changed_work,
    ]


def scaling_table(scaling: TraceScaling) -> DataTable:
    """Return one row per number of ranks."""
    times = TableColumn("compute_s", "computing"), "exposed_s", "communication_s"
    tokens = [TableColumn("total_tokens_per_s", "tokens/s")] if scaling.tokens else []
    efficiency = TableColumn("efficiency", cell=_TENTHS)
    return DataTable.of(scaling.steps, ["num_ranks", "step_s", *times, efficiency, *tokens])


def step_title(prediction: TracePrediction) -> str:
    """Return ranks, device and time of a step."""
    device = "a GPU" if prediction.computing.on_gpu else "a CPU"
    ranks = plural(prediction.trace.num_ranks, "rank")
    return f"a step of {ranks}, each on {device}: {step_time(prediction)}"


def step_time(prediction: TracePrediction) -> str:
    """Return the time of a step and its certainty."""
    computing, step_s = prediction.computing, prediction.mean.step_s
    time = f"at least {_time(step_s)}" if computing.basis == LOWER_BOUND else _time(step_s)
    if prediction.fused_s is not None:
        time = f"compiled program: between {_time(prediction.fused_s)} and {_time(step_s)} in eager mode"
    return f"{time}, {computing.basis}"


def notes_on_step(prediction: TracePrediction) -> list[str]:
    """Return the omissions and assumptions of the prediction."""
    not_counted = f"not counted: {'; '.join(prediction.not_counted)}" if prediction.not_counted else ""
    not_chosen = f"not {LIBRARY_TITLE}'s choice: {prediction.not_chosen}" if prediction.not_chosen else ""
    return [note for note in (not_counted, prediction.unawaited, not_chosen, prediction.by_formula) if note]


def step_facts(prediction: TracePrediction) -> list[tuple[str, str]]:
    """Return the parts of the step with their names."""
    mean, computing, core_scale = prediction.mean, prediction.computing, prediction.simulation.core_scale
    by_peak_rates = isinstance(computing.rates, Roofline)
    origin = "at the peak rates" if by_peak_rates else "by the times of kernels" if computing.rates else "recorded"
    scaled = "" if computing.scale == 1 else f", {computing.scale:.4g} times as long as {origin}"
    if prediction.trace.is_compiled:
        scaled += ", recorded in eager mode, though the program compiles its code"
    elif prediction.trace.has_fused_kernels:
        scaled += ", with compiled code as its fused kernels"
    if by_peak_rates and computing.scale < 1 and not prediction.trace.is_compiled:
        scaled += ", which no GPU can be: what was recorded is not what was measured"
    rows = expected_rows(prediction.interval)
    if prediction.p95_s is not None:
        drawn = f"of {plural(prediction.trace.num_ranks, 'GPU')} drawn at random"
        rows.append(("slowest", f"p50 {_time(mean.step_s)}, p95 {_time(prediction.p95_s)}, {drawn}"))
    rows.append(("computing", f"{format_time(mean.compute_s)}{scaled}"))
    if by_peak_rates and computing.scale > 1:
        rows.append(("utilization", f"{1 / computing.scale:.1%} of the peak rates"))
    if core_scale != 1:
        rows.append(("cores", f"{core_scale:.4g} times as long as recorded, because ranks share a core"))
    if mean.slowed_s >= _ROUNDING_S:
        why = (
            "channels of calls occupy multiprocessors" if computing.on_gpu else "calls need the cores at the same time"
        )
        rows.append(("slowed", f"{format_time(mean.slowed_s)}, because {why}"))
    if mean.issuing_s >= _ROUNDING_S:
        rows.append(("issuing", f"{format_time(mean.issuing_s)}, in which calls wait for the CPU to issue them"))
    if not computing.is_fitted and prediction.issue_s > _CPU_BOUND * mean.step_s:
        issuing = f"the CPU needs {format_time(prediction.issue_s)} to issue operators and calls"
        rows.append(("CPU-bound", f"{issuing}, which differs from host to host: give --measured-step"))
    rows.append(("exposed", f"{_time(mean.exposed_s)} of {_time(mean.communication_s)} of communication"))
    rows += _steps(prediction)
    if prediction.trace.memory:
        rows.append(("memory", _memory(prediction.trace.memory, prediction)))
    return rows


def token_facts(prediction: TracePrediction, tokens: int | None) -> list[tuple[str, str]]:
    """Return the row of tokens per second, if any; tokens: per rank and step."""
    least_s = prediction.mean.step_s if prediction.fused_s is None else prediction.fused_s
    if not tokens or not least_s:
        return []
    per_s, most = tokens / least_s, "at most " if prediction.computing.basis == LOWER_BOUND else ""
    total = f"{per_s * prediction.trace.num_ranks:,.0f} on all"
    return [("tokens", f"{most}{per_s:,.0f} a second on each rank, {total}")]


def ddp_facts(step: DdpStep, profile: StepProfile) -> list[tuple[str, str]]:
    """Return a DDP step's buckets, source, and efficiency."""
    count, buckets = plural(len(profile.parameters), "parameter"), plural(step.num_buckets, "bucket")
    source = in_one_line(shortened(str(profile.provenance.get("source") or "")))
    return [
        ("gradients", f"{format_size(profile.gradient_bytes)} in {count}, {buckets}, bucket_cap_mb {step.config.caps}"),
        *([("source", source)] if source else []),
        ("efficiency", f"{step.efficiency:.1%} of a single process, whose step takes {format_time(step.single_s)}"),
    ]


def caps_table(steps: Sequence[DdpStep], best: BucketCaps) -> DataTable:
    """Return one row per bucket size, the last with torch's default caps."""
    marks = {id(steps[-1]): "default"} | {id(step): "best" for step in steps if step.config.caps == best}
    columns: list[TableColumn | str] = [
        TableColumn("config.caps", "bucket_cap_mb", lambda caps: TableCell(str(caps), caps.rest_bytes)),
        TableColumn("num_buckets"),
        *(TableColumn(f"prediction.mean.{name}") for name in ("step_s", "exposed_s", "communication_s")),
        TableColumn("efficiency", cell=_TENTHS),
        TableColumn("", "", lambda step: TableCell(marks.get(id(step), ""), 0)),
    ]
    return DataTable.of(steps, columns)


def _steps(prediction: TracePrediction) -> list[tuple[str, str]]:
    if prediction.computing.library:
        return []
    times, missing = prediction.steps_s, len(prediction.trace.steps) - len(prediction.timelines)
    text = f"the mean of {len(times)}, of {_time(min(times))} to {_time(max(times))}, median {_time(median(times))}"
    if len(times) == 1:
        text = "1 recorded, without what is done every n-th step (record more with --steps)"
    left_out = f"; {missing} left out, whose calls are not those of the watched step: record with --fake"
    return [("steps", text + (left_out if missing else ""))]


def _memory(memory: StepMemory, prediction: TracePrediction) -> str:
    rates, verdict, peak = prediction.computing.rates, "", memory.peak.total
    if prediction.trace.is_compiled:
        verdict = " in eager mode"
    elif rates and rates.memory_bytes:
        room = format_size(rates.memory_bytes)
        verdict = f": MORE THAN THE {room} of the GPU" if peak > rates.memory_bytes else f", of {room}"
        if peak <= rates.memory_bytes < memory.reserved:
            verdict = f"; in {room} the allocator often has to give memory back, or fails"
    if not (memory.reserved and prediction.computing.on_gpu):
        return f"{format_size(peak)} at the peak{verdict} (memory of tensors, without allocator and workspaces)"
    held = f"{format_size(peak)} of tensors at the peak, {format_size(memory.reserved)} reserved by torch's allocator"
    return f"{held}{verdict} (without CUDA's context and {LIBRARY_TITLE}'s buffers)"


def calls_table(prediction: TracePrediction) -> DataTable:
    """Return one row per kind of call, by first occurrence."""
    groups, num_steps = prediction.trace.groups, len(prediction.timelines)
    # Groups with the same ranks count as one. Of each call: 1, its bytes, and seconds under way and exposed.
    kinds: dict[tuple[str, tuple[int, ...], str], list[tuple[float, ...]]] = defaultdict(list)
    for timeline in prediction.timelines:
        for call, span, exposed_s in zip(timeline.step.calls, timeline.calls, timeline.exposed_by_call(), strict=True):
            algorithm = span.algorithm if span.protocol is None else f"{span.algorithm} {span.protocol}"
            figures = 1, call.size_bytes, span.under_way_s, exposed_s
            kinds[call.collective, groups[call.group].ranks, algorithm].append(figures)
    rows = []
    for (collective, ranks, algorithm), calls in kinds.items():
        means = [sum(figures) / num_steps for figures in zip(*calls, strict=True)]
        row = dict(zip(("calls", "size_bytes", "under_way_s", "exposed_s"), means, strict=True))
        share = _share(row["exposed_s"], prediction.mean.step_s)
        rows.append({"collective": collective, "ranks": len(ranks), "algorithm": algorithm, **row, "share": share})
    columns: list[TableColumn | str] = [
        *("collective", "ranks", "algorithm"),
        TableColumn("calls", cell=lambda count: TableCell(f"{count:g}", count)),
        TableColumn("size_bytes", "bytes", lambda size_bytes: size_cell(round(size_bytes))),
        *("under_way_s", "exposed_s"),
        TableColumn("share", "of the step", _TENTHS),
    ]
    return DataTable.of(rows, columns)


def better_steps(prediction: TracePrediction) -> list[str]:
    """Return the changes that shorten the step, the best first; none if it is compiled."""
    step_s, better = prediction.mean.step_s, () if prediction.trace.is_compiled else prediction.better
    return [f"{_time(time_s)} with {name}" for name, time_s in better if time_s < step_s][:MAX_BETTER]


def _share(part_s: float, whole_s: float) -> float:
    if math.isinf(whole_s):
        return float(math.isinf(part_s))
    return part_s / whole_s if whole_s else 0.0


def _time(time_s: float) -> str:
    return format_time(time_s) if time_s < float("inf") else "never"
