"""A `Prediction` as text."""

from collections.abc import Iterator, Sequence

from ringsim.console import in_one_line
from ringsim.files import shortened
from ringsim.report.table import DataTable, Row, TableCell, count_cell, size_cell
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.training_step import BucketTimes, PredictedStep, Prediction, reason
from ringsim.units import format_size, format_time, plural

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
        ("step", f"{_time(step.step_s)}; one process alone {format_time(step.single_s)}"),
        ("efficiency", f"{100 * step.efficiency:.1f} %"),
    ]
    lines = [wrap_text(title, indent="  "), *(f"  {line}" for line in align_columns(rows))]
    if step.not_chosen:
        lines.append(wrap_text(f"  not what {LIBRARY} would take: {step.not_chosen}", indent="  "))
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
        mark = "recommended" if step is prediction.step else "torch's own" if step is prediction.default else ""
        times = (_time_cell(time_s) for time_s in (step.communication_s, step.exposed_s, step.step_s))
        cap = TableCell(str(step.config.caps), step.config.caps.rest_bytes)
        rows.append((cap, count_cell(len(step.buckets)), *times, _percent(step), TableCell(mark, 0)))
    why = [reason(prediction.sweep, prediction.step)]
    if prediction.default is not prediction.step:
        why.append(f"{prediction.speedup:.3f} times as fast as torch's own")
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


def _time_cell(time_s: float) -> TableCell:
    return TableCell(_time(time_s), time_s)


def _time(time_s: float) -> str:
    return format_time(time_s) if time_s < float("inf") else "never"
