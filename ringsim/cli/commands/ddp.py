"""`ringsim ddp`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ringsim.cli.commands.sweep import NUMBERS_OF_RANKS
from ringsim.cli.options import ALL_REDUCE, network_options, ranks_option, refuse_without, say_left_out, style_option
from ringsim.console import (
    FILE,
    PICTURE,
    RATE,
    Choice,
    IntRange,
    Quantity,
    examples,
    json_option,
    parse_numbers,
    print_result,
    progress_bar,
    say_wrote,
)
from ringsim.files import naming_place
from ringsim.native import BACKENDS
from ringsim.network import AnyNetwork, load_network
from ringsim.report import format_prediction
from ringsim.training_step import (
    ELEMENT_BYTES,
    BucketCaps,
    DdpConfig,
    Phase,
    Prediction,
    StepProfile,
    ddp_interval,
    load_layers,
    recommend,
    scale,
    sweep_caps,
)
from ringsim.units import decimal_number


def _parse_cap(text: str) -> int:
    """Bytes, from DDP's MiB; raises ValueError for what is no positive number."""
    try:
        return BucketCaps.from_mb(decimal_number(text)).rest_bytes
    except ValueError:
        raise ValueError(f"{text!r} is not a cap: write MiB as a number greater than 0, such as 25 or 0.5") from None


CAPS = Quantity("caps", lambda text: parse_numbers(text, _parse_cap, factor=2))


@click.command(
    epilog=examples(
        "ringsim ddp --layers model.toml --ranks 8 --bucket-cap-mb 1:64",
        "ringsim ddp --profile profile.json --network ib-100g --ranks 16 -o step.png",
    )
)
@click.option(
    "--profile",
    "profile_file",
    type=FILE,
    help="Profile of the step, JSON that trainers compare-strategies --profile wrote.",
)
@click.option("--layers", "layers_file", type=FILE, help="TOML file of the step's layers (docs/reference/files.md).")
@ranks_option
@click.option(
    "--backend",
    type=Choice(list(BACKENDS)),
    help="Backend of the process group [default: nccl if the network describes NCCL, else gloo].",
)
@click.option("--algorithm", type=ALL_REDUCE, help="Algorithm that reduces gradients [default: the backend's].")
@click.option(
    "--workers",
    type=IntRange(1, 64),
    help="Collectives that run at once [default: as many as the backend runs].",
)
@click.option(
    "--bucket-cap-mb",
    "caps",
    type=CAPS,
    help="Bucket size in MiB, such as 25. Several (1,5,25, or the range 1:50, which doubles from 1 and ends "
    "with 50) are compared, and the best is recommended [default: torch's own, 25 with a first bucket of 1].",
)
@click.option(
    "--phase",
    type=Choice([phase.value for phase in Phase]),
    default="rebuilt",
    help="Buckets of the first step, of later ones, or with find_unused_parameters.",
)
@click.option(
    "--wire-dtype",
    type=Choice([dtype for dtype in ELEMENT_BYTES if "float" in dtype]),
    help="Data type in which gradients are sent.",
)
@click.option("--bucket-view", is_flag=True, help="Model gradient_as_bucket_view=True: nothing is copied back.")
@click.option("--no-overlap", is_flag=True, help="Begin communication only after the backward pass.")
@click.option(
    "--copy-bandwidth",
    type=RATE,
    help="Rate at which gradients are copied into buckets [default: the rate at which a rank adds].",
)
@click.option(
    "--scaling",
    type=NUMBERS_OF_RANKS,
    help="Show the efficiency on these numbers of ranks: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100.",
)
@partial(network_options, load=load_network)
@json_option
@click.option("-o", "--output", type=PICTURE, help="Write the picture to this file: PNG, PDF or SVG.")
@style_option
def ddp(
    profile_file: Path | None,
    layers_file: Path | None,
    network: AnyNetwork,
    ranks: int,
    caps: list[int] | None,
    scaling: list[int] | None,
    as_json: bool,
    output: Path | None,
    style: str | None,
    **settings: Any,
) -> None:
    """Predict how long a training step with DistributedDataParallel takes, and which bucket_cap_mb is best."""
    refuse_without("style", output, "output")
    profile = _load(profile_file, layers_file)
    config = _config(network, **settings)
    if not config.backend.chooses:
        say_left_out(network.name, network)
    prediction = _predict(profile, network, ranks, config, caps or [], scaling or [])
    print_result(format_prediction(prediction), prediction.as_dict(), as_json)
    if output:
        from ringsim.report.plots.plot import save_plot  # noqa: PLC0415  takes most of a second to import

        with naming_place(output):
            save_plot(prediction, output, style)
        say_wrote(output)


def _load(profile_file: Path | None, layers_file: Path | None) -> StepProfile:
    if profile_file and not layers_file:
        return StepProfile.load(profile_file)
    if layers_file and not profile_file:
        return load_layers(layers_file)
    raise click.UsageError(
        "give either --profile or --layers: what a step of one process is", click.get_current_context()
    )


def _config(
    network: AnyNetwork,
    *,
    backend: str | None,
    algorithm: str | None,
    workers: int | None,
    phase: str,
    wire_dtype: str | None,
    bucket_view: bool,
    no_overlap: bool,
    copy_bandwidth: float | None,
) -> DdpConfig:
    chosen = BACKENDS[backend or ("nccl" if network.spec.protocols else "gloo")]
    if workers:
        chosen = replace(chosen, runtime=replace(chosen.runtime, num_workers=workers))
    if algorithm:
        chosen = replace(chosen, all_reduce=algorithm, chooses=False)
    return DdpConfig(
        backend=chosen,
        phase=Phase(phase),
        wire_dtype=wire_dtype,
        bucket_view=bucket_view,
        overlap=not no_overlap,
        copy_bytes_per_s=copy_bandwidth,
    )


def _predict(
    profile: StepProfile, network: AnyNetwork, ranks: int, config: DdpConfig, caps: list[int], scaling: list[int]
) -> Prediction:
    """With several caps torch's own are in the sweep too, and the best is taken for everything else."""
    every = [BucketCaps(cap, cap) for cap in caps] + [BucketCaps()]
    with progress_bar(len(every) + len(scaling) + 1, "simulating", delay_s=1.0) as bar:
        *given, default = sweep_caps(profile, network, ranks, config, every, bar.update)
        sweep = (*given, default) if len(given) > 1 else ()
        step = recommend(sweep) if sweep else (given or [default])[0]
        steps = scale(profile, network, scaling, step.config, bar.update)
        interval = ddp_interval(step, profile, network)
        bar.update(1)
    return Prediction(profile, dict(network.as_dict()), step, default, sweep, tuple(steps), interval)
