"""`ringsim step`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click import argument, option

from ringsim import console, report, training_step
from ringsim.cli import options
from ringsim.cli.commands.trace import Recordings
from ringsim.files import naming_place
from ringsim.gpus import Gpu, Roofline, gpu_names, load_gpu
from ringsim.libraries import LIBRARY_TITLE, library_of
from ringsim.network import Network
from ringsim.traces import Device, ProgramTrace
from ringsim.training_step import Computing, StepSimulation, TracePrediction, TraceScaling
from ringsim.units import format_rate, parse_flops

PERFETTO, PAGE = ".json", ".html"


class StepOutput(options.PictureFile):
    """The file of a step, by its suffix: a picture, a page, or a trace for Perfetto."""

    def check(self, several: str) -> None:
        """Refuse a file that cannot show the result; several: the option of several ranks, if given."""
        suffix = self.path.suffix.lower() if self.path else ""
        if suffix == PAGE and self.style:
            raise click.UsageError("--style has no effect on a page, which follows the browser's light or dark mode")
        if suffix == PERFETTO and several:
            raise click.UsageError(
                f"--output {self.path}: a file for ui.perfetto.dev holds one step, not one for each of {several}: "
                "name a picture, or a page (.html)"
            )

    def write(
        self,
        step: TracePrediction,
        facts: Sequence[tuple[str, str]],
        scaling: TraceScaling | None,
        caps: report.DataTable | None = None,
    ) -> None:
        """Write the step, or its scaling curve, if a file is requested; see `step_page`."""
        if self.path is None:
            return
        with naming_place(self.path):
            if self.path.suffix.lower() == PERFETTO:
                console.write_output(self.path, report.step_trace_lines(step.timeline, step.trace, str(self.path)))
            elif self.path.suffix.lower() == PAGE:
                console.write_output(self.path, [report.step_page(step, facts, scaling, caps)])
            else:
                self.save(scaling or step)


def output_options(several: str) -> options.Decorator:
    """Return --output of a step or its scaling, and --style; the command gets `picture`."""
    return options.picture_options(
        f"Write the picture of the step, or with {several} of the scaling, to this file: PNG, PDF or SVG; HTML is a "
        "page with tables; JSON is the step for ui.perfetto.dev.",
        file=console.OutputFile((".png", ".pdf", ".svg", PAGE, PERFETTO, "")),
        kind=StepOutput,
    )


@dataclass(frozen=True, slots=True)
class Computer:
    """The device on which a program computes, and its speed."""

    device: Device | None
    gpu: str | None
    is_roofline: bool
    flops: float | None
    memory_bandwidth: float | None
    compute_scale: float | None
    measured_step: float | None

    def __post_init__(self) -> None:
        if self.compute_scale is not None and self.measured_step is not None:
            raise click.UsageError("--compute-scale and --measured-step exclude each other")
        if self.is_roofline and self.gpu is None:
            raise click.UsageError("--roofline needs --gpu, whose peak rates it takes")

    def computing(self, file: Path, trace: ProgramTrace, network: Network) -> Computing:
        """Return where and how fast computations take place. Raises UsageError for a trace without times."""
        device = self.device or (Device.CUDA if library_of(network).chooses else trace.device)
        rates = self._rates()
        if rates is None and any(step.operators and not step.compute_s for step in trace.steps):
            raise click.UsageError(
                f"{file}: it was recorded with --fake, so the times of its computations are not known: give --gpu, "
                "or --flops and --memory-bandwidth"
            )
        return Computing(device is Device.CUDA, rates, self.compute_scale or 1.0)

    def _rates(self) -> Roofline | Gpu | None:
        flops, memory_bandwidth = self.flops, self.memory_bandwidth
        if self.gpu is None:
            if flops is None and memory_bandwidth is None:
                return None
            if flops is None or memory_bandwidth is None:
                raise click.UsageError("give --gpu, or both --flops and --memory-bandwidth")
            return Roofline({"": flops}, memory_bandwidth)
        gpu = load_gpu(self.gpu)
        if memory_bandwidth is not None:
            name = f"{gpu.name} with memory of {format_rate(memory_bandwidth)}"
            gpu = msgspec.structs.replace(gpu, name=name, bandwidth_bytes_per_s=memory_bandwidth)
        if not self.is_roofline:
            if flops is not None:
                raise click.UsageError("--flops replaces a peak rate: give --roofline as well")
            return gpu
        return gpu.roofline if flops is None else replace(gpu.roofline, flops_per_s={"": flops})


computer_options = options.together(
    "computer",
    Computer,
    option(
        "--device",
        type=console.Choice(Device),
        help="Device that the program computes on [default: cuda if the program was recorded so or the "
        f"network describes {LIBRARY_TITLE}, else cpu].",
    ),
    option(
        "--gpu",
        metavar="NAME|FILE.toml",
        help=f"GPU whose kernels compute: {', '.join(gpu_names())}, or a file that describes one.",
    ),
    option(
        "--roofline",
        "is_roofline",
        is_flag=True,
        help="Take the peak rates of --gpu: the least time of each computation, from its FLOPs and bytes.",
    ),
    option(
        "--flops",
        type=console.Quantity("rate", parse_flops),
        help="Compute rate of a device, in place of its peak, such as 400TFLOP/s.",
    ),
    option("--memory-bandwidth", type=console.RATE, help="Memory bandwidth of a device, in place of that of --gpu."),
    option(
        "--compute-scale",
        type=console.FloatRange(0, training_step.MAX_SCALE, min_open=True),
        help="Factor by which computations are longer than recorded, or than --gpu gives.",
    ),
    option(
        "--measured-step",
        type=console.TIME,
        help="Measured time of a step on this network, from which the scale of the computations is found.",
    ),
)


@console.command(
    "ringsim step step.trace.json --network gbe",
    "ringsim step step.trace.json --network dgx-h100-cluster -o step.png",
    "ringsim step trace.json --network gbe --ranks 8:64 -o a.html -- train.py",
)
@argument("file", type=console.FILE)
@argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM [ARGUMENTS]]")
@options.network_options
@computer_options
@option("--algorithm", type=options.ALL_REDUCE, help="Algorithm of all-reduces, in place of the library's.")
@option("--tokens", type=console.IntRange(1), help="Tokens per rank in a step.")
@options.together(
    "recordings",
    Recordings,
    option(
        "--ranks",
        type=options.NUMBERS_OF_RANKS,
        help="Numbers of ranks, for each of which PROGRAM is recorded and a step predicted: 8,64, or a range: 8:100 "
        "doubles from 8 and ends with 100.",
    ),
    option("--run-recorded", is_flag=True, help="Run the program that FILE names; each command is printed before."),
)
@options.trust_option
@console.json_option
@output_options("--ranks")
def step(
    recordings: Recordings,
    network: Network,
    computer: Computer,
    algorithm: str | None,
    trusted: tuple[str, ...],
    tokens: int | None,
    as_json: bool,
    picture: StepOutput,
) -> None:
    """Predict how long a step of a recorded program takes on a network, in the mean of the recorded steps.

    FILE is a trace that ringsim trace wrote. Its calls are simulated with the algorithms that NCCL or Gloo would
    use, together with its computations: on a CPU as the program waited for them, on CUDA in the order of streams.

    With --gpu computations take as long as the kernels of that GPU, and with --roofline at least as long as at its peak
    rates. Otherwise they take as long as when they were recorded. With --measured-step they are scaled so that a step
    takes as long as measured. The output says which.

    With --ranks a program is recorded for other numbers of ranks, since what is sharded is cut into other sizes, on
    hosts of as many ranks as the network has. Give it behind all options: -- train.py --batch 16, or -- -m MODULE. FILE
    names the command that ringsim trace was given and its folder, but whoever made FILE chose them: they run only with
    --run-recorded. FILE is used for the number of ranks with which it was recorded, if the network has as many ranks
    per host. The efficiency is the step on the fewest ranks over the step, as each rank is taken to have the same work.
    """
    picture.check("--ranks" if recordings.ranks else "")
    steps = _predicted(recordings, network, computer, algorithm or "", trusted)
    scaling = TraceScaling(steps, tokens) if recordings.ranks else None
    prediction = scaling.predictions[-1] if scaling else training_step.with_step_interval(steps[0])
    if picture.path or not scaling:
        prediction = training_step.with_better_steps(prediction)
    facts = report.token_facts(prediction, tokens)
    if scaling:
        console.print_result(report.format_trace_scaling(scaling), scaling.as_dict(), as_json)
    else:
        result = prediction.as_dict()
        if tokens:
            result["tokens_per_s"] = tokens / prediction.mean.step_s if prediction.mean.step_s else None
        console.print_result(report.format_trace_prediction(prediction, facts), result, as_json)
    picture.write(prediction, facts, scaling)


def _predicted(recordings: Recordings, network: Network, computer: Computer, *calls: Any) -> list[TracePrediction]:
    """Return the steps. calls: the last arguments of `predict_trace`."""
    file, ranks = recordings.file, recordings.ranks
    trace = ProgramTrace.load(file)
    for num_ranks in ranks or [trace.num_ranks]:
        network.topology(num_ranks)  # if there is no room for the ranks, this error names the network
    computing = computer.computing(file, trace, network)
    if not computing.on_gpu:
        options.say_left_out(network)
    if not ranks:
        options.say_guesses(network, trace.num_ranks)
    if computer.measured_step is not None:
        with naming_place(file):
            simulation = StepSimulation(trace, network, computing, *calls)
            scale = training_step.fitted_scale(simulation, computer.measured_step)
        computing = replace(computing, scale=scale, is_fitted=True)
        _say_other_hosts(trace, network)
    if not ranks:
        with naming_place(file):
            prediction = training_step.predict_trace(trace, network, computing, *calls)
        if computer.measured_step is None:
            _say_other_hosts(trace, network)
        return [prediction]
    console.require_torch("step --ranks")
    predictions = []
    with console.Progress() as progress:
        traces = recordings.traces(trace, network.spec.ranks_per_host, progress)
        progress.begin("predicting", len(traces))
        for recorded in traces:
            predictions.append(training_step.predict_trace(recorded, network, computing, *calls))
            progress.update(1)
    return predictions


def _say_other_hosts(trace: ProgramTrace, network: Network) -> None:
    per_host = network.spec.ranks_per_host
    if per_host is not None and min(per_host, trace.num_ranks) != trace.ranks_per_host:
        console.say(
            f"{network.name} has hosts of {per_host}, but the program was recorded with --ranks-per-host "
            f"{trace.ranks_per_host}"
        )
