"""A predicted step, of DDP or of a recorded program, and its scaling, as text; a page takes parts from here."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from ringsim.console import in_one_line
from ringsim.files import shortened
from ringsim.report.run_summary import expected_rows
from ringsim.report.table import DataTable, Row, TableCell, count_cell, share_cell, size_cell
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.training_step import (
    LOWER_BOUND,
    BucketTimes,
    PredictedStep,
    Prediction,
    TracePrediction,
    TraceScaling,
    reason,
)
from ringsim.units import format_size, format_time, plural

MAX_BETTER = 4  # alternatives that are listed
BETTER = "The step would take"  # heads them
_ROUNDING_S = 1e-9  # what a step is slowed by less is the rounding of times


def format_trace_prediction(prediction: TracePrediction, tokens: int | None = None) -> str:
    """Return the step, its calls by kind, and what would make it shorter. tokens: of a rank in a step."""
    lines = [step_title(prediction), *(f"  {line}" for line in align_columns(step_facts(prediction, tokens)))]
    lines += [wrap_text(f"  {note}", indent="  ") for note in notes_on_step(prediction)]
    blocks = ["\n".join(lines)]
    if prediction.timeline.calls:
        blocks.append(calls_table(prediction).text())
    if better := better_steps(prediction):
        blocks.append("\n".join([BETTER, *(f"  {line}" for line in better)]))
    return "\n\n".join(blocks)


def format_trace_scaling(scaling: TraceScaling) -> str:
    """Return a line for each number of ranks, and what to know of them."""
    notes = [note for prediction in scaling.predictions for note in notes_on_step(prediction)]
    lines = (wrap_text(note, indent="  ") for note in dict.fromkeys([*scaling_facts(scaling), *notes]) if note)
    return "\n".join([*scaling_table(scaling).lines(), *lines])


def scaling_facts(scaling: TraceScaling) -> list[str]:
    """Return what to know of all numbers of ranks: how sure the times are, and what is not in them."""
    last = scaling.predictions[-1]
    between = [f"{plural(step.trace.num_ranks, 'rank')}: {step_time(step)}" for step in scaling.predictions]
    return [
        *(between if last.fused_s is not None else [last.computing.basis]),
        f"steps: {_steps(last)}",
        scaling.changed_work,
    ]


def scaling_table(scaling: TraceScaling) -> DataTable:
    """Return a row for each number of ranks."""
    columns = ["ranks", "step", "computing", "exposed", "communication", "efficiency"]
    rows = []
    for step in scaling.steps:
        times = map(_time_cell, (step.step_s, step.compute_s, step.exposed_s, step.communication_s))
        tokens = [count_cell(step.total_tokens_per_s)] if scaling.tokens else []
        rows.append((count_cell(step.num_ranks), *times, share_cell(step.efficiency, 1), *tokens))
    return DataTable([*columns, *(["tokens/s"] if scaling.tokens else [])], rows)


def step_title(prediction: TracePrediction) -> str:
    """Return how many ranks of which kind take how long, and how sure that is."""
    device = "a GPU" if prediction.computing.on_gpu else "a CPU"
    ranks = plural(prediction.trace.num_ranks, "rank")
    return f"a step of {ranks}, each on {device}: {step_time(prediction)}"


def step_time(prediction: TracePrediction) -> str:
    """Return the time of a step, and how sure it is."""
    computing, step_s = prediction.computing, prediction.mean.step_s
    time = f"at least {_time(step_s)}" if computing.basis == LOWER_BOUND else _time(step_s)
    if prediction.fused_s is not None:
        time = f"compiled program: between {_time(prediction.fused_s)} and {_time(step_s)} in eager mode"
    return f"{time}, {computing.basis}"


def notes_on_step(prediction: TracePrediction) -> list[str]:
    """Return operators that are not counted, calls that nobody awaits, and algorithms that NCCL would not choose."""
    not_counted = f"not counted: {'; '.join(prediction.not_counted)}" if prediction.not_counted else ""
    not_chosen = f"not NCCL's choice: {prediction.not_chosen}" if prediction.not_chosen else ""
    return [note for note in (not_counted, prediction.unawaited, not_chosen, prediction.by_formula) if note]


def step_facts(prediction: TracePrediction, tokens: int | None) -> list[tuple[str, str]]:
    """Return the parts of the step with their names. tokens: of a rank in a step."""
    mean, computing = prediction.mean, prediction.computing
    origin = "at the peak rates" if computing.roofline else "recorded"
    scaled = "" if computing.scale == 1 else f", {computing.scale:.4g} times as long as {origin}"
    if prediction.trace.is_compiled:
        scaled += ", recorded in eager mode, though the program compiles its code"
    elif computing.roofline and computing.scale < 1:
        scaled += ", which no GPU can be: what was recorded is not what was measured"
    rows = [*expected_rows(prediction.interval), ("computing", f"{format_time(mean.compute_s)}{scaled}")]
    if computing.roofline and computing.scale > 1:
        rows.append(("utilization", f"{1 / computing.scale:.1%} of the peak rates"))
    if prediction.core_scale != 1:
        share = f"{prediction.core_scale:.4g} times as long as recorded, because ranks share a core"
        rows.append(("cores", share))
    if mean.slowed_s >= _ROUNDING_S:
        why = (
            "channels of calls occupy multiprocessors" if computing.on_gpu else "calls need the cores at the same time"
        )
        rows.append(("slowed", f"{format_time(mean.slowed_s)}, because {why}"))
    rows.append(("exposed", f"{_time(mean.exposed_s)} of {_time(mean.communication_s)} of communication"))
    rows.append(("steps", _steps(prediction)))
    if prediction.trace.memory:
        rows.append(("memory", _memory(prediction.trace.memory.peak.total, prediction)))
    if tokens and (least_s := mean.step_s if prediction.fused_s is None else prediction.fused_s):
        per_s, most = tokens / least_s, "at most " if computing.basis == LOWER_BOUND else ""
        total = f"{per_s * prediction.trace.num_ranks:,.0f} on all"
        rows.append(("tokens", f"{most}{per_s:,.0f} a second on each rank, {total}"))
    return rows


def _steps(prediction: TracePrediction) -> str:
    """Return how many steps were recorded, and how they differ."""
    times, missing = prediction.steps_s, len(prediction.trace.steps) - len(prediction.timelines)
    text = f"the mean of {len(times)}, of {_time(min(times))} to {_time(max(times))}, median {_time(median(times))}"
    if len(times) == 1:
        text = "1 recorded, without what is done every n-th step (record more with --steps)"
    left_out = f"; {missing} left out, whose calls are not those of the watched step: record with --fake"
    return text + (left_out if missing else "")


def _memory(peak: int, prediction: TracePrediction) -> str:
    """Return the peak, and whether the device has as much, unless a compiler changes it."""
    roofline, verdict = prediction.computing.roofline, ""
    if prediction.trace.is_compiled:
        verdict = " in eager mode"
    elif roofline and roofline.memory_bytes:
        room = format_size(roofline.memory_bytes)
        verdict = f": MORE THAN THE {room} of the GPU" if peak > roofline.memory_bytes else f", of {room}"
    return f"{format_size(peak)} at the peak{verdict} (memory of tensors, without allocator and workspaces)"


def calls_table(prediction: TracePrediction) -> DataTable:
    """Return a row for each kind of call in the mean step, in the order in which they first occur."""
    groups, steps = prediction.trace.groups, prediction.timelines
    # Groups of the same ranks are one. Of each call: its bytes, and seconds under way and exposed.
    kinds: dict[tuple[str, tuple[int, ...], str], list[tuple[float, ...]]] = defaultdict(list)
    for timeline in steps:
        for call, span, exposed_s in zip(timeline.step.calls, timeline.calls, timeline.exposed_by_call(), strict=True):
            algorithm = span.algorithm if span.protocol is None else f"{span.algorithm} {span.protocol}"
            figures = call.size_bytes, span.under_way_s, exposed_s
            kinds[call.collective, groups[call.group].ranks, algorithm].append(figures)
    rows: list[Row] = []
    for (collective, ranks, algorithm), calls in kinds.items():
        size_bytes, under_way_s, waited_s = (sum(figures) / len(steps) for figures in zip(*calls, strict=True))
        count = len(calls) / len(steps)
        rows.append((
            collective,
            count_cell(len(ranks)),
            algorithm,
            TableCell(f"{count:g}", count),
            size_cell(round(size_bytes)),
            _time_cell(under_way_s),
            _time_cell(waited_s),
            share_cell(_share(waited_s, prediction.mean.step_s), 1),
        ))  # fmt: skip
    columns = ("collective", "ranks", "algorithm", "calls", "bytes", "under way", "exposed", "of the step")
    return DataTable(columns, rows)


def better_steps(prediction: TracePrediction) -> list[str]:
    """Return what would make the step shorter, and how long it would take then, the shortest first.

    Nothing of a compiled program, whose step is not known.
    """
    step_s, better = prediction.mean.step_s, () if prediction.trace.is_compiled else prediction.better
    return [f"{_time(time_s)} with {name}" for name, time_s in better if time_s < step_s][:MAX_BETTER]


def _share(part_s: float, whole_s: float) -> float:
    if math.isinf(whole_s):
        return float(math.isinf(part_s))
    return part_s / whole_s if whole_s else 0.0


def _time_cell(time_s: float) -> TableCell:
    return TableCell(_time(time_s), time_s)


def _time(time_s: float) -> str:
    return format_time(time_s) if time_s < float("inf") else "never"


MAX_ROWS = 24  # of buckets; those in the middle are left out

LIBRARY = "NCCL"  # the only one that is known to choose


def format_prediction(prediction: Prediction) -> str:
    """Return the step and its buckets, the sweep, and the scaling, as far as they were asked for."""
    blocks = [_step(prediction), _buckets(prediction.step)]
    if prediction.sweep:
        blocks.append(_sweep(prediction))
    if prediction.scaling:
        blocks.append(_scaling(prediction))
    return "\n\n".join(blocks)


def _step(prediction: Prediction) -> str:
    step, config = prediction.step, prediction.step.config
    workers = plural(config.backend.runtime.num_workers, "worker")
    ranks = plural(step.num_ranks, "rank")
    algorithms = " and ".join(step.algorithms)
    title = f"step of DDP, {ranks}, {algorithms}, {workers}, bucket_cap_mb {config.caps}"
    num_buckets = sum(1 for bucket in step.buckets if bucket.parameters)
    profile = prediction.profile
    size, buckets = format_size(profile.gradient_bytes), plural(num_buckets, "bucket")
    rows = [("gradients", f"{size} in {len(profile.parameters)} parameters, {buckets}")]
    rows += [("source", in_one_line(shortened(str(source))))] if (source := profile.provenance.get("source")) else []
    rows += [("broadcast", f"{format_time(step.broadcast_s)} of buffers")] if profile.buffer_bytes else []
    rows += [("forward", format_time(step.forward_s)), ("backward", format_time(step.backward_s))]
    rows += [("copying", f"{format_time(step.copy_s)} into buckets and back")] if step.copy_s else []
    rows += [
        ("exposed", f"{_time(step.exposed_s)} of {_time(step.communication_s)} of communication"),
        ("optimizer", format_time(step.optimizer_s)),
        ("step", f"{_time(step.step_s)}; single process {format_time(step.single_s)}"),
        *expected_rows(prediction.interval),
        ("efficiency", f"{100 * step.efficiency:.1f} %"),
    ]
    lines = [wrap_text(title, indent="  "), *(f"  {line}" for line in align_columns(rows))]
    if step.not_chosen:
        lines.append(wrap_text(f"  not {LIBRARY}'s choice: {step.not_chosen}", indent="  "))
    by_formula = dict.fromkeys(other.by_formula for other in (step, *prediction.scaling) if other.by_formula)
    lines += [wrap_text(f"  {line}", indent="  ") for line in by_formula]
    return "\n".join(lines)


def _buckets(step: PredictedStep) -> str:
    columns = ["bucket", "parameters", "size", "ready", "begins", "ends"]
    rows = list(_bucket_rows(step.buckets))
    if any(bucket.protocol for bucket in step.buckets):
        columns.append("all_reduce")
        rows = [(*row, bucket.reduced_by) for row, bucket in zip(rows, step.buckets, strict=True)]
    if len(rows) > MAX_ROWS:
        half = MAX_ROWS // 2
        rows[half:-half] = [(TableCell("...", 0), *[TableCell("", 0)] * 5, *[""] * (len(columns) - 6))]
    return DataTable(columns, rows).text()


def _bucket_rows(buckets: Sequence[BucketTimes]) -> Iterator[Row]:
    for number, bucket in enumerate(buckets):
        name = TableCell(str(number) if bucket.parameters else "used", number)
        count = count_cell(len(bucket.parameters)) if bucket.parameters else TableCell("", 0)
        times = (_time_cell(time_s) for time_s in (bucket.ready_s, bucket.begin_s, bucket.end_s))
        yield name, count, size_cell(bucket.size_bytes), *times


def _sweep(prediction: Prediction) -> str:
    rows = []
    for step in prediction.sweep:
        mark = "recommended" if step is prediction.step else "torch's default" if step is prediction.default else ""
        times = (_time_cell(time_s) for time_s in (step.communication_s, step.exposed_s, step.step_s))
        cap = TableCell(str(step.config.caps), step.config.caps.rest_bytes)
        rows.append((cap, count_cell(len(step.buckets)), *times, _percent(step), TableCell(mark, 0)))
    why = [reason(prediction.sweep, prediction.step)]
    if prediction.default is not prediction.step:
        why.append(f"{prediction.speedup:.3f} times as fast as torch's default")
    table = DataTable(("cap_mb", "buckets", "sending", "exposed", "step", "efficiency", ""), rows)
    return "\n".join([*table.lines(), *(wrap_text(f"  {line}", indent="  ") for line in why if line)])


def _scaling(prediction: Prediction) -> str:
    steps, columns = prediction.scaling, ["ranks", "exposed", "step", "efficiency", "speed-up"]
    rows: list[list[TableCell | str]] = []
    for step in steps:
        speedup = step.num_ranks * step.efficiency
        times = _time_cell(step.exposed_s), _time_cell(step.step_s), _percent(step)
        rows.append([TableCell(str(step.num_ranks), step.num_ranks), *times, TableCell(f"{speedup:.4g}", speedup)])
    if any(bucket.protocol for step in (prediction.step, *steps) for bucket in step.buckets):
        columns.append("all_reduce")
        for row, step in zip(rows, steps, strict=True):
            row.append(", ".join(step.algorithms) + (f" ({step.not_chosen})" if step.not_chosen else ""))
    return DataTable(columns, rows).text(WIDTH)


def _percent(step: PredictedStep) -> TableCell:
    return TableCell(f"{100 * step.efficiency:.1f} %", step.efficiency)
