"""`ringsim ddp`."""

from dataclasses import replace
from pathlib import Path

import click
from click import option

from ringsim import console, report, training_step
from ringsim.cli import options
from ringsim.cli.commands.step import StepOutput, output_options
from ringsim.files import encode
from ringsim.libraries import LIBRARIES, LIBRARY, LIBRARY_TITLE, library_of
from ringsim.network import Network
from ringsim.training_step import BucketCaps, DdpConfig, StepProfile
from ringsim.units import decimal_number


def _parse_cap(text: str) -> int:
    try:
        return BucketCaps.from_mb(decimal_number(text)).rest_bytes
    except ValueError:
        raise ValueError(f"{text!r} is not a cap: write MiB as a number greater than 0, such as 25 or 0.5") from None


CAPS = console.Quantity("caps", lambda text: console.parse_numbers(text, _parse_cap, factor=2))


def _profile(profile_file: Path | None, layers_file: Path | None) -> StepProfile:
    if profile_file and not layers_file:
        return StepProfile.load(profile_file)
    if layers_file and not profile_file:
        return training_step.load_layers(layers_file)
    raise click.UsageError(
        "give either --profile or --layers: what a step of one process is", click.get_current_context()
    )


settings_options = options.together(
    "settings",
    DdpConfig,
    option("--algorithm", type=options.ALL_REDUCE, help="Algorithm that reduces gradients [default: the backend's]."),
    option(
        "--workers",
        type=console.IntRange(1, 64),
        help="Collectives that run at once [default: as many as the backend runs].",
    ),
    option(
        "--phase",
        type=console.Choice(training_step.Phase),
        default="rebuilt",
        help="Buckets of the first step, of later ones, or with find_unused_parameters.",
    ),
    option(
        "--wire-dtype",
        type=console.Choice([dtype for dtype in training_step.ELEMENT_BYTES if "float" in dtype]),
        help="Data type in which gradients are sent.",
    ),
    option("--bucket-view", is_flag=True, help="Model gradient_as_bucket_view=True: nothing is copied back."),
    option(
        "--no-overlap",
        "overlap",
        flag_value=False,
        default=True,
        show_default=False,
        help="Begin communication only after the backward pass.",
    ),
    option(
        "--copy-bandwidth",
        "copy_bytes_per_s",
        type=console.RATE,
        help="Rate at which gradients are copied into buckets [default: the rate at which a rank adds].",
    ),
)


@console.command(
    "ringsim ddp --layers model.toml --ranks 8 --bucket-cap-mb 1:64",
    "ringsim ddp --profile profile.json --network ib-100g --ranks 16 -o step.png",
)
@options.together(
    "profile",
    _profile,
    option(
        "--profile",
        "profile_file",
        type=console.FILE,
        help="Profile of the step, JSON that trainers compare --profile wrote.",
    ),
    option(
        "--layers", "layers_file", type=console.FILE, help="TOML file of the step's layers (docs/reference/files.md)."
    ),
)
@options.network_options
@options.ranks_option
@option(
    "--backend",
    type=console.Choice(list(LIBRARIES)),
    help=f"Backend of the process group [default: {LIBRARY} if the network describes {LIBRARY_TITLE}, else gloo].",
)
@option(
    "--scaling",
    type=options.NUMBERS_OF_RANKS,
    help="Show the efficiency on these numbers of ranks: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100.",
)
@option(
    "--bucket-cap-mb",
    "bucket_caps",
    type=CAPS,
    help="Bucket size in MiB, such as 25. Several (1,5,25, or the range 1:50, which doubles from 1 and ends "
    "with 50) are compared, and the best is recommended [default: torch's own, 25 with a first bucket of 1].",
)
@settings_options
@console.json_option
@output_options("--scaling")
def ddp(
    profile: StepProfile,
    network: Network,
    ranks: int,
    scaling: list[int] | None,
    bucket_caps: list[int] | None,
    settings: DdpConfig,
    as_json: bool,
    picture: StepOutput,
) -> None:
    """Predict how long a training step with DistributedDataParallel takes, and which bucket_cap_mb is best."""
    picture.check("--scaling" if scaling else "")
    backend = settings.backend or (LIBRARY if library_of(network).chooses else "gloo")
    if backend != LIBRARY or settings.algorithm:
        options.say_left_out(network)
    config = replace(settings, backend=backend)
    own = BucketCaps()  # torch's
    every = [*(BucketCaps(cap, cap) for cap in bucket_caps or []), own]
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
    facts, table = report.ddp_facts(step, profile), report.caps_table(sweep, step.config.caps) if sweep else None
    text = [report.format_trace_prediction(step.prediction, facts)]
    text += [table.text()] if table else []
    text += [report.format_trace_scaling(curve)] if curve else []
    result = {**step.prediction.as_dict(), **encode(step.record), "default_step_s": default.record.step_s}
    result["sweep"] = [encode(other.record) for other in sweep]
    result["scaling"] = [encode(other.record) for other in reversed(scaled)]
    console.print_result("\n\n".join(text), result, as_json)
    picture.write(step.prediction, facts, curve, table)
