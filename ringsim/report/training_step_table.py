"""A `Prediction` as text."""

from collections.abc import Iterator, Sequence

from ringsim.console import in_one_line
from ringsim.files import shortened
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.training_step import BucketTimes, PredictedStep, Prediction, reason
from ringsim.units import format_size, format_time, plural

MAX_ROWS = 24  # of buckets; those in the middle are left out

LIBRARY = "NCCL"  # the only one that is known to choose
Row = Sequence[str]


def format_prediction(prediction: Prediction) -> str:
    """Returns the step and its buckets, the sweep, and the scaling, as far as they were asked for."""
    blocks = [_step(prediction), _buckets(prediction.step)]
    if prediction.sweep:
        blocks.append(_sweep(prediction))
    if prediction.scaling:
        blocks.append(_scaling(prediction))
    return "\n\n".join(blocks)


def _step(prediction: Prediction) -> str:
    step, config = prediction.step, prediction.step.config
    workers = plural(config.backend.num_workers, "worker")
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
    return "\n".join(lines)


def _buckets(step: PredictedStep) -> str:
    names = ["bucket", "parameters", "size", "ready", "begins", "ends"]
    rows = list(_bucket_rows(step.buckets))
    if any(bucket.protocol for bucket in step.buckets):
        names.append("all_reduce")
        rows = [[*row, bucket.reduced_by] for row, bucket in zip(rows, step.buckets, strict=True)]
    if len(rows) > MAX_ROWS:
        half = MAX_ROWS // 2
        rows[half:-half] = [["...", *[""] * (len(names) - 1)]]
    return "\n".join(align_columns([names, *rows], "rrrrrrl"[: len(names)]))


def _bucket_rows(buckets: Sequence[BucketTimes]) -> Iterator[Row]:
    for number, bucket in enumerate(buckets):
        name, count = (str(number), str(len(bucket.parameters))) if bucket.parameters else ("used", "")
        times = (_time(time_s) for time_s in (bucket.ready_s, bucket.begin_s, bucket.end_s))
        yield name, count, format_size(bucket.size_bytes), *times


def _sweep(prediction: Prediction) -> str:
    rows: list[Row] = [("cap_mb", "buckets", "sending", "exposed", "step", "efficiency", "")]
    for step in prediction.sweep:
        mark = "recommended" if step is prediction.step else "torch's own" if step is prediction.default else ""
        times = (_time(time_s) for time_s in (step.communication_s, step.exposed_s, step.step_s))
        rows.append((str(step.config.caps), str(len(step.buckets)), *times, f"{100 * step.efficiency:.1f} %", mark))
    why = [reason(prediction.sweep, prediction.step)]
    if prediction.default is not prediction.step:
        why.append(f"{prediction.speedup:.3f} times as fast as torch's own")
    return "\n".join([*align_columns(rows, "r"), *(wrap_text(f"  {line}", indent="  ") for line in why if line)])


def _scaling(prediction: Prediction) -> str:
    steps = prediction.scaling
    rows = [["ranks", "exposed", "step", "efficiency", "speed-up"]]
    for step in steps:
        speedup = f"{step.num_ranks * step.efficiency:.4g}"
        rows.append(
            [str(step.num_ranks), _time(step.exposed_s), _time(step.step_s), f"{100 * step.efficiency:.1f} %", speedup]
        )
    if any(bucket.protocol for step in (prediction.step, *steps) for bucket in step.buckets):
        rows = [[*row, cell] for row, cell in zip(rows, ["all_reduce", *map(_algorithms, steps)], strict=True)]
    return "\n".join(align_columns(rows, "rrrrrl"[: len(rows[0])], width=WIDTH))


def _algorithms(step: PredictedStep) -> str:
    return ", ".join(step.algorithms) + (f" ({step.not_chosen})" if step.not_chosen else "")


def _time(time_s: float) -> str:
    return format_time(time_s) if time_s < float("inf") else "never"
