"""`ringsim step`."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from ringsim.cli.options import network_options, refuse_without, say_left_out, style_option
from ringsim.console import (
    FILE,
    RATE,
    TIME,
    Choice,
    FloatRange,
    IntRange,
    Name,
    OutputFile,
    Quantity,
    examples,
    json_option,
    print_result,
    say_wrote,
)
from ringsim.files import naming_place
from ringsim.network import AnyNetwork, load_network
from ringsim.registry import ALGORITHMS
from ringsim.report import format_trace_prediction, write_step_trace
from ringsim.schedule import Collective
from ringsim.traces import Device, ProgramTrace
from ringsim.training_step import GPUS, MAX_SCALE, Computing, Roofline, fitted_scale, predict_trace
from ringsim.units import parse_flops

ALL_REDUCE = Name("name", [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE])
PERFETTO = ".json"


@click.command(
    epilog=examples(
        "ringsim step step.trace.json --network gbe",
        "ringsim step step.trace.json --network dgx-h100-cluster -o step.png",
    )
)
@click.argument("file", type=FILE)
@partial(network_options, load=load_network)
@click.option(
    "--device",
    type=Choice(["cpu", "cuda"]),
    help="The program computes on this device. By default it is cuda if the program was recorded so or the network "
    "describes NCCL, else cpu.",
)
@click.option(
    "--gpu",
    type=Choice(list(GPUS)),
    help="Computations take as long as their FLOPs and bytes take at least on this GPU.",
)
@click.option(
    "--flops",
    type=Quantity("rate", parse_flops),
    help="A device computes at this rate in place of its peak, such as 400TFLOP/s.",
)
@click.option("--memory-bandwidth", type=RATE, help="The memory of a device has this rate in place of its peak.")
@click.option(
    "--compute-scale",
    type=FloatRange(0, MAX_SCALE, min_open=True),
    help="Computations take so many times as long as they were recorded, or as --gpu says.",
)
@click.option(
    "--measured-step",
    type=TIME,
    help="A step took so long on this network, by which the scale of the computations is found.",
)
@click.option("--algorithm", type=ALL_REDUCE, help="All-reduces take this algorithm in place of the library's.")
@click.option("--tokens", type=IntRange(1), help="Each rank trains on so many tokens in a step.")
@json_option
@click.option(
    "-o",
    "--output",
    type=OutputFile((".png", ".pdf", ".svg", PERFETTO, "")),
    help="The picture of the step is written to this file: PNG, PDF or SVG; or JSON for ui.perfetto.dev.",
)
@style_option
def step(
    file: Path,
    network: AnyNetwork,
    device: str | None,
    gpu: str | None,
    flops: float | None,
    memory_bandwidth: float | None,
    compute_scale: float | None,
    measured_step: float | None,
    algorithm: str | None,
    tokens: int | None,
    as_json: bool,
    output: Path | None,
    style: str | None,
) -> None:
    """Predicts how long the steps of a recorded program take on a network.

    FILE is a trace that ringsim trace wrote. Its calls are simulated with the algorithms that NCCL or Gloo would take,
    beside its computations: on a CPU as the program waited for them, on CUDA in the order of streams.
    """
    refuse_without("style", output, "output")
    trace = ProgramTrace.load(file)
    on_gpu = device == "cuda" if device else trace.device is Device.CUDA or bool(network.spec.protocols)
    if not on_gpu:
        say_left_out(network.name, network)
    network.topology(trace.num_ranks)  # if there is no room for the ranks, this error names the network
    roofline = _roofline(gpu, flops, memory_bandwidth)
    if roofline is None and any(step.flops and not step.compute_s for step in trace.steps):
        raise click.UsageError(
            f"{file}: it was recorded with --fake, so nobody knows how long its computations take: give --gpu, "
            "or --flops and --memory-bandwidth"
        )
    computing = Computing(on_gpu, roofline, compute_scale or 1.0)
    with naming_place(file):
        if measured_step is not None:
            if compute_scale is not None:
                raise click.UsageError("--compute-scale and --measured-step exclude each other")
            scale = fitted_scale(trace, network, computing, measured_step, algorithm or "")
            computing = replace(computing, scale=scale)
        prediction = predict_trace(trace, network, computing, algorithm or "")
    _say_other_hosts(trace, network)
    result = prediction.as_dict()
    if tokens:
        result["tokens_per_s"] = tokens / prediction.timeline.step_s if prediction.timeline.step_s else None
    print_result(format_trace_prediction(prediction, tokens), result, as_json)
    if output and output.suffix.lower() == PERFETTO:
        with naming_place(output):
            write_step_trace(output, prediction.timeline, trace)
        say_wrote(output)
    elif output:
        from ringsim.report.plots.plot import save_plot  # noqa: PLC0415  takes most of a second to import

        with naming_place(output):
            save_plot(prediction, output, style)
        say_wrote(output)


def _roofline(gpu: str | None, flops: float | None, memory_bandwidth: float | None) -> Roofline | None:
    if gpu is None and flops is None and memory_bandwidth is None:
        return None
    if gpu is None and (flops is None or memory_bandwidth is None):
        raise click.UsageError("give --gpu, or both --flops and --memory-bandwidth", click.get_current_context())
    roofline = GPUS[gpu] if gpu else Roofline({}, 1.0)
    if flops is not None:
        roofline = replace(roofline, flops_per_s={1: flops})
    return replace(roofline, memory_bytes_per_s=memory_bandwidth or roofline.memory_bytes_per_s)


def _say_other_hosts(trace: ProgramTrace, network: AnyNetwork) -> None:
    """Say on stderr if the program was told of other hosts than the network has: it may have made other groups."""
    per_host = network.spec.ranks_per_host
    if per_host is not None and min(per_host, trace.num_ranks) != trace.ranks_per_host:
        click.echo(
            f"{network.name} has hosts of {per_host}, but the program was recorded with --ranks-per-host "
            f"{trace.ranks_per_host}",
            err=True,
        )
