"""`ringsim step`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click import argument, option
from msgspec import structs

from ringsim import console, report, training_step
from ringsim.cli import options
from ringsim.cli.commands.sweep import NUMBERS_OF_RANKS
from ringsim.cli.recorder import record_again, request_of
from ringsim.files import atomic_file, naming_place
from ringsim.libraries import library_of
from ringsim.network import Network, load_network
from ringsim.traces import Device, ProgramTrace, TraceRequest
from ringsim.units import parse_flops

PERFETTO, PAGE = ".json", ".html"
STEP_OUTPUT = console.OutputFile((".png", ".pdf", ".svg", PAGE, PERFETTO, ""))


def output_options(command: options.Command, several: str) -> options.Command:
    """Adds --output of a step, or of its scaling by the option `several`, and --style."""
    told = (
        f"Write the picture of the step, or with {several} of the scaling, to this file: PNG, PDF or SVG; HTML is a "
        "page with tables; JSON is the step for ui.perfetto.dev."
    )
    return option("-o", "--output", type=STEP_OUTPUT, help=told)(options.style_option(command))


@console.command(
    "ringsim step step.trace.json --network gbe",
    "ringsim step step.trace.json --network dgx-h100-cluster -o step.png",
    "ringsim step trace.json --network gbe --ranks 8:64 -o a.html -- train.py",
)
@argument("file", type=console.FILE)
@argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM [ARGUMENTS]]")
@partial(options.network_options, load=load_network)
@option(
    "--device",
    type=console.Choice(["cpu", "cuda"]),
    help="Device that the program computes on [default: cuda if the program was recorded so or the "
    "network describes NCCL, else cpu].",
)
@option(
    "--gpu",
    type=console.Choice(list(training_step.GPUS)),
    help="GPU whose peak rates give the least time of each computation, from its FLOPs and bytes.",
)
@option(
    "--flops",
    type=console.Quantity("rate", parse_flops),
    help="Compute rate of a device, in place of its peak, such as 400TFLOP/s.",
)
@option("--memory-bandwidth", type=console.RATE, help="Memory bandwidth of a device, in place of its peak.")
@option(
    "--compute-scale",
    type=console.FloatRange(0, training_step.MAX_SCALE, min_open=True),
    help="Factor by which computations are longer than recorded, or than --gpu gives.",
)
@option(
    "--measured-step",
    type=console.TIME,
    help="Measured time of a step on this network, from which the scale of the computations is found.",
)
@option("--algorithm", type=options.ALL_REDUCE, help="Algorithm of all-reduces, in place of the library's.")
@option("--tokens", type=console.IntRange(1), help="Tokens per rank in a step.")
@option(
    "--ranks",
    type=NUMBERS_OF_RANKS,
    help="Numbers of ranks, for each of which PROGRAM is recorded and a step predicted: 8,64, or a range: 8:100 "
    "doubles from 8 and ends with 100.",
)
@option("--run-recorded", is_flag=True, help="Run the program that FILE names; each command is printed before.")
@options.trust_option
@console.json_option
@partial(output_options, several="--ranks")
def step(
    ranks: list[int] | None, tokens: int | None, as_json: bool, output: Path | None, style: str | None, **asked: Any
) -> None:
    """Predict how long a step of a recorded program takes on a network, in the mean of the recorded steps.

    FILE is a trace that ringsim trace wrote. Its calls are simulated with the algorithms that NCCL or Gloo would
    use, together with its computations: on a CPU as the program waited for them, on CUDA in the order of streams.

    With --gpu the time is a lower bound, from peak rates; with --measured-step it is a prediction. Otherwise
    computations take as long as when they were recorded. The output says which.

    With --ranks a program is recorded for other numbers of ranks, since what is sharded is cut into other sizes, on
    hosts of as many ranks as the network has. Give it behind all options: -- train.py --batch 16, or -- -m MODULE. FILE
    names the command that ringsim trace was given and its folder, but whoever made FILE chose them: they run only with
    --run-recorded. FILE is used for the number of ranks with which it was recorded, if the network has as many ranks
    per host. The efficiency is the step on the fewest ranks over the step, as each rank is taken to have the same work.
    """
    check_output(output, style, "--ranks" if ranks else "")
    steps = _predicted(ranks=ranks, **asked)
    scaling = training_step.TraceScaling(steps, tokens) if ranks else None
    prediction = scaling.predictions[-1] if scaling else training_step.with_step_interval(steps[0])
    if output or not scaling:
        prediction = training_step.with_better_steps(prediction)
    facts = report.token_facts(prediction, tokens)
    if scaling:
        console.print_result(report.format_trace_scaling(scaling), scaling.as_dict(), as_json)
    else:
        result = prediction.as_dict()
        if tokens:
            result["tokens_per_s"] = tokens / prediction.mean.step_s if prediction.mean.step_s else None
        console.print_result(report.format_trace_prediction(prediction, facts), result, as_json)
    if output:
        write_step(output, style, prediction, facts, scaling)


def _predicted(
    file: Path,
    program: tuple[str, ...],
    network: Network,
    device: str | None,
    gpu: str | None,
    flops: float | None,
    memory_bandwidth: float | None,
    compute_scale: float | None,
    measured_step: float | None,
    algorithm: str | None,
    ranks: list[int] | None,
    run_recorded: bool,
    trusted: tuple[str, ...],
) -> list[training_step.TracePrediction]:
    """Return the step on each of the numbers of ranks, or that of the file alone."""
    if ((program or run_recorded) and not ranks) or (program and run_recorded):
        raise click.UsageError("give --ranks with either a PROGRAM or --run-recorded, and neither of them without it")
    trace = ProgramTrace.load(file)
    on_gpu = device == "cuda" if device else trace.device is Device.CUDA or library_of(network).chooses
    if not on_gpu:
        options.say_left_out(network.name, network)
    if not ranks:
        options.say_guesses(network, trace.num_ranks)
    for num_ranks in ranks or [trace.num_ranks]:
        network.topology(num_ranks)  # if there is no room for the ranks, this error names the network
    if compute_scale is not None and measured_step is not None:
        raise click.UsageError("--compute-scale and --measured-step exclude each other")
    computing = training_step.Computing(on_gpu, _roofline(gpu, flops, memory_bandwidth), compute_scale or 1.0)
    _require_times(file, trace, computing)
    named = algorithm or ""
    with naming_place(file):
        if measured_step is not None:
            simulation = training_step.StepSimulation(trace, network, computing, named, trusted)
            scale = training_step.fitted_scale(simulation, measured_step)
            computing = replace(computing, scale=scale, is_fitted=True)
        predictions = [] if ranks else [training_step.predict_trace(trace, network, computing, named, trusted)]
    if measured_step is not None or not ranks:
        _say_other_hosts(trace, network)
    if ranks:
        console.require_torch("step --ranks")
        with console.Progress() as progress:
            traces = _recorded(file, trace, request_of(trace, file, program, run_recorded), ranks, network, progress)
            progress.begin("predicting", len(traces))
            for recorded in traces:
                predictions.append(training_step.predict_trace(recorded, network, computing, named, trusted))
                progress.update(1)
    return predictions


def check_output(output: Path | None, style: str | None, several: str) -> None:
    """Refuse a file that cannot show what is asked for. several: the option for several numbers of ranks, if given."""
    options.refuse_without("style", output, "output")
    suffix = output.suffix.lower() if output else ""
    if suffix == PAGE and style:
        raise click.UsageError("--style has no effect on a page, which follows the browser's light or dark mode")
    if suffix == PERFETTO and several:
        raise click.UsageError(
            f"--output {output}: a file for ui.perfetto.dev holds one step, not one for each of {several}: "
            "name a picture, or a page (.html)"
        )


def _recorded(
    file: Path,
    trace: ProgramTrace,
    request: TraceRequest,
    ranks: list[int],
    network: Network,
    progress: console.Progress,
) -> list[ProgramTrace]:
    """Return the trace on each number of ranks: that of the file if it is one of them, the others recorded again."""
    per_host = network.spec.ranks_per_host or request.ranks_per_host
    with naming_place(file):
        requests = [structs.replace(request, num_ranks=num_ranks, ranks_per_host=per_host) for num_ranks in ranks]
    own = trace.num_ranks, trace.ranks_per_host
    missing = [request for request in requests if (request.num_ranks, request.ranks_here) != own]
    recorded = list(record_again(missing, progress))
    return recorded if len(missing) == len(requests) else [trace, *recorded]


def write_step(
    output: Path,
    style: str | None,
    step: training_step.TracePrediction,
    facts: Sequence[tuple[str, str]],
    scaling: training_step.TraceScaling | None,
    caps: report.DataTable | None = None,
) -> None:
    """Write the step, or with a scaling its curve, in the format that the file's suffix says; see `step_page`."""
    with naming_place(output):
        if output.suffix.lower() == PERFETTO:
            report.write_step_trace(output, step.timeline, step.trace)
        elif output.suffix.lower() == PAGE:
            text = report.step_page(step, facts, scaling, caps)
            with atomic_file(output) as page:
                page.write(text.encode())
        else:
            from ringsim.report.plots import save_plot  # noqa: PLC0415  takes most of a second to import

            save_plot(scaling or step, output, style)
    console.say_wrote(output)


def _roofline(gpu: str | None, flops: float | None, memory_bandwidth: float | None) -> training_step.Roofline | None:
    if gpu is None and flops is None and memory_bandwidth is None:
        return None
    if gpu is None and (flops is None or memory_bandwidth is None):
        raise click.UsageError("give --gpu, or both --flops and --memory-bandwidth", click.get_current_context())
    roofline = training_step.GPUS[gpu] if gpu else training_step.Roofline({}, 1.0)
    if flops is not None:
        roofline = replace(roofline, flops_per_s={1: flops})
    return replace(roofline, memory_bytes_per_s=memory_bandwidth or roofline.memory_bytes_per_s)


def _require_times(file: Path, trace: ProgramTrace, computing: training_step.Computing) -> None:
    """Refuse a trace without times if nothing says how long its operators take."""
    if computing.roofline is None and any(step.is_watched and not step.compute_s for step in trace.steps):
        raise click.UsageError(
            f"{file}: it was recorded with --fake, so the times of its computations are not known: give --gpu, "
            "or --flops and --memory-bandwidth"
        )


def _say_other_hosts(trace: ProgramTrace, network: Network) -> None:
    """Say on stderr if the program was told of other hosts than the network has: it may have made other groups."""
    per_host = network.spec.ranks_per_host
    if per_host is not None and min(per_host, trace.num_ranks) != trace.ranks_per_host:
        click.echo(
            f"{network.name} has hosts of {per_host}, but the program was recorded with --ranks-per-host "
            f"{trace.ranks_per_host}",
            err=True,
        )
