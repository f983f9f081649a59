"""`ringsim ddp`."""

from functools import partial
from pathlib import Path
from typing import Any

import click
from click import option

from ringsim import console, training_step
from ringsim.cli.commands.step import check_output, output_options, write_step
from ringsim.cli.commands.sweep import NUMBERS_OF_RANKS
from ringsim.cli.options import ALL_REDUCE, network_options, ranks_option, say_left_out
from ringsim.libraries import LIBRARIES, LIBRARY, library_of
from ringsim.network import Network, load_network
from ringsim.report import caps_table, ddp_facts, format_trace_prediction, format_trace_scaling
from ringsim.units import decimal_number


def _parse_cap(text: str) -> int:
    """Bytes, from DDP's MiB; raises ValueError for what is no positive number."""
    try:
        return training_step.BucketCaps.from_mb(decimal_number(text)).rest_bytes
    except ValueError:
        raise ValueError(f"{text!r} is not a cap: write MiB as a number greater than 0, such as 25 or 0.5") from None


CAPS = console.Quantity("caps", lambda text: console.parse_numbers(text, _parse_cap, factor=2))


@console.command(
    "ringsim ddp --layers model.toml --ranks 8 --bucket-cap-mb 1:64",
    "ringsim ddp --profile profile.json --network ib-100g --ranks 16 -o step.png",
)
@option(
    "--profile",
    "profile_file",
    type=console.FILE,
    help="Profile of the step, JSON that trainers compare --profile wrote.",
)
@option("--layers", "layers_file", type=console.FILE, help="TOML file of the step's layers (docs/reference/files.md).")
@ranks_option
@option(
    "--backend",
    type=console.Choice(list(LIBRARIES)),
    help="Backend of the process group [default: nccl if the network describes NCCL, else gloo].",
)
@option("--algorithm", type=ALL_REDUCE, help="Algorithm that reduces gradients [default: the backend's].")
@option(
    "--workers",
    type=console.IntRange(1, 64),
    help="Collectives that run at once [default: as many as the backend runs].",
)
@option(
    "--bucket-cap-mb",
    "caps",
    type=CAPS,
    help="Bucket size in MiB, such as 25. Several (1,5,25, or the range 1:50, which doubles from 1 and ends "
    "with 50) are compared, and the best is recommended [default: torch's own, 25 with a first bucket of 1].",
)
@option(
    "--phase",
    type=console.Choice([phase.value for phase in training_step.Phase]),
    default="rebuilt",
    help="Buckets of the first step, of later ones, or with find_unused_parameters.",
)
@option(
    "--wire-dtype",
    type=console.Choice([dtype for dtype in training_step.ELEMENT_BYTES if "float" in dtype]),
    help="Data type in which gradients are sent.",
)
@option("--bucket-view", is_flag=True, help="Model gradient_as_bucket_view=True: nothing is copied back.")
@option("--no-overlap", is_flag=True, help="Begin communication only after the backward pass.")
@option(
    "--copy-bandwidth",
    "copy_bytes_per_s",
    type=console.RATE,
    help="Rate at which gradients are copied into buckets [default: the rate at which a rank adds].",
)
@option(
    "--scaling",
    type=NUMBERS_OF_RANKS,
    help="Show the efficiency on these numbers of ranks: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100.",
)
@partial(network_options, load=load_network)
@console.json_option
@partial(output_options, several="--scaling")
def ddp(
    profile_file: Path | None,
    layers_file: Path | None,
    network: Network,
    ranks: int,
    backend: str | None,
    caps: list[int] | None,
    phase: str,
    no_overlap: bool,
    scaling: list[int] | None,
    as_json: bool,
    output: Path | None,
    style: str | None,
    **settings: Any,
) -> None:
    """Predict how long a training step with DistributedDataParallel takes, and which bucket_cap_mb is best."""
    check_output(output, style, "--scaling" if scaling else "")
    profile = _load(profile_file, layers_file)
    backend = backend or (LIBRARY if library_of(network).chooses else "gloo")
    if backend != LIBRARY or settings["algorithm"]:
        say_left_out(network.name, network)
    config = training_step.DdpConfig(
        backend=backend, phase=training_step.Phase(phase), overlap=not no_overlap, **settings
    )
    own = training_step.BucketCaps()  # torch's
    every = [*(training_step.BucketCaps(cap, cap) for cap in caps or []), own]
    with console.progress_bar(len(every) + len(scaling or []) + 1, "simulating", delay_s=1.0) as bar:
        *given, default = training_step.sweep_caps(profile, network, ranks, config, every, bar.update)
        sweep = [*given, default] if len(given) > 1 else []
        step = training_step.recommend(sweep) if sweep else (given or [default])[0]
        scaled = []
        for num_ranks in sorted(scaling or [], reverse=True):  # what there is no memory for is refused first
            scaled.append(training_step.predict_ddp(profile, network, num_ranks, step.config))
            bar.update(1)
        step = step._replace(prediction=training_step.with_step_interval(step.prediction))
        bar.update(1)
    curve = (
        training_step.TraceScaling([other.prediction for other in scaled], single_s=profile.step_s) if scaled else None
    )
    facts, table = ddp_facts(step, profile), caps_table(sweep, step.config.caps) if sweep else None
    text = [format_trace_prediction(step.prediction, facts)]
    text += [table.text()] if table else []
    text += [format_trace_scaling(curve)] if curve else []
    result = {**step.prediction.as_dict(), **step.row(), "default_step_s": default.row()["step_s"]}
    result["sweep"] = [other.row() for other in sweep]
    result["scaling"] = [other.row() for other in reversed(scaled)]
    console.print_result("\n\n".join(text), result, as_json)
    if output:
        write_step(output, style, step.prediction, facts, curve, table)


def _load(profile_file: Path | None, layers_file: Path | None) -> training_step.StepProfile:
    if profile_file and not layers_file:
        return training_step.StepProfile.load(profile_file)
    if layers_file and not profile_file:
        return training_step.load_layers(layers_file)
    raise click.UsageError(
        "give either --profile or --layers: what a step of one process is", click.get_current_context()
    )
