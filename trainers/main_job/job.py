"""The main job: probe this machine, predict each strategy's synchronisation, train with each, compare."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import collectives
from collectives.benchmark.call_overhead import probe_calls
from collectives.probes import Blocks, probe
from collectives.runtime import naming_failures
from ringsim.calibration import fitted_cluster, fitting_model
from ringsim.measurements import Measurements, RankHosts, p10_p90, save_json
from ringsim.network import Cluster
from ringsim.training_step import StepProfile
from trainers.identity import fingerprint
from trainers.loop.checkpoint import Checkpoint, save_checkpoint
from trainers.loop.output_lock import WRITING_S, locked
from trainers.loop.training import Run, start_runs, train
from trainers.main_job.profile import record_profile
from trainers.predictions.prediction import can_overlap, predict_step_s, predict_sync_s
from trainers.strategies.base import Strategy
from trainers.tasks.config import RESULTS, Job
from trainers.tasks.data import Shard, Tokens

BLOCKS = Blocks(turns=3, number=3)
STATE_PER_GRADIENT = 4  # parameter, gradient and AdamW's two moments: what a step touches for each strategy
MAX_WARM_UP_STEPS = 5  # not counted: DDP rebuilds its buckets, buffers are touched for the first time
LAST_LOSSES = 10  # the final loss is the mean over as many steps; a single batch is too noisy

Report = dict[str, Any]


def run_job(
    job: Job, tokens: Tokens, group: dist.ProcessGroup, progress: Callable[[int], None]
) -> tuple[Report, Checkpoint]:
    """Do the whole job on every rank of `group`; collective.

    progress: called with the number of every finished step.
    Returns the report, the same on every rank but for its provenance, and a checkpoint of the `ring` run, if there is
    one, else of the first.
    Raises CollectiveError when a peer fails, DivergedError when a loss is not finite.
    """
    shard = Shard(tokens, group.rank(), group.size(), job.model, job.train)
    runs = start_runs(job.strategies, job.model, job.train, group)
    gradient_bytes = sum(p.nbytes for p in runs[0].model.parameters())
    memory_bytes = STATE_PER_GRADIENT * gradient_bytes * len(runs)
    meet = partial(dist.barrier, group)  # as `ringsim measure` does, so that both find the same network
    measurements = probe(group, gradient_bytes, memory_bytes, blocks=BLOCKS, pairs=True, calls=probe_calls, meet=meet)
    network, overlap = _found(measurements, group)
    profile = _profile(runs, shard, job.train.learning_rate, group, overlap)
    if job.profile and group.rank() == 0:
        profile.save(job.profile)
    predicted = {run.name: _predict(run.strategy, profile, network, group.size()) for run in runs}
    train(runs, shard, range(job.train.steps), progress)
    notes = _gather_notes(runs, group)
    results = [_summarise(run.name, predicted[run.name], [rank[run.name] for rank in notes], job) for run in runs]
    report = _report(job, measurements, network, results, runs[0].model)
    return report, _checkpoint(next((run for run in runs if run.name == "ring"), runs[0]), report)


def _checkpoint(run: Run, report: Report) -> Checkpoint:
    """Collective, where each rank has a share of the optimizer's state only."""
    config = {"strategy": run.name, "model": report["model"], "train": report["train"], "data": report["data"]}
    return Checkpoint(run.model.state_dict(), run.optimizer.state_dict(), config, report["train"]["steps"])


def _profile(
    runs: Sequence[Run], shard: Shard, learning_rate: float, group: dist.ProcessGroup, overlap: bool
) -> StepProfile:
    """What a step takes without synchronisation, the same on all ranks: rank 0's, but as long as the slowest rank's.

    All ranks compute at once, as they will, and between two steps do what will be done there: walk through the memory
    of the other runs, and send as much as a model's gradients. After that caches are cold, and threads may still wait
    for messages on cores that the next step needs. Where a host has no core to spare for sending, every gradient counts
    as ready at the end of the backward pass.
    """
    model = runs[0].model.model
    gradients = torch.zeros(sum(p.numel() for p in model.parameters()))
    memory = torch.zeros(len(gradients) * STATE_PER_GRADIENT * (len(runs) - 1))

    def between() -> None:
        memory.add_(1)
        collectives.all_reduce(gradients, group=group)

    with naming_failures(f"rank {group.rank()}: recording a profile failed"):
        recorded = record_profile(model, shard, learning_rate, between)
        found: list[Any] = [None] * group.size()
        dist.all_gather_object(found, recorded, group=group)
    slowest_s = statistics.median(max(steps) for steps in zip(*(each.steps_s for each in found), strict=True))
    profile = _stretched(found[0].profile, slowest_s / found[0].profile.step_s)
    if not overlap:
        ready_at_end = tuple(replace(each, ready_s=profile.backward_s) for each in profile.parameters)
        profile = replace(profile, parameters=ready_at_end)
    return profile


def _found(measurements: Measurements, group: dist.ProcessGroup) -> tuple[Cluster, bool]:
    """The network, and whether there are cores to communicate beside the backward pass, as rank 0's machine is.

    Its ranks share its cores even where each is in a network namespace or container of its own.
    """
    network = fitted_cluster(measurements, fitting_model(measurements), "this")
    places = RankHosts.from_measurements(measurements)
    assert places is not None  # of our own probes
    found: list[Any] = [network, can_overlap(places.physical_hosts.count(0), measurements.provenance["cores"])]
    with naming_failures(f"rank {group.rank()}: hearing of rank 0's cores failed"):
        dist.broadcast_object_list(found, group=group, group_src=0)
    return found[0], found[1]


def _stretched(profile: StepProfile, factor: float) -> StepProfile:
    """All its times that much longer."""
    return replace(
        profile,
        parameters=tuple(replace(each, ready_s=each.ready_s * factor) for each in profile.parameters),
        forward_s=profile.forward_s * factor,
        backward_s=profile.backward_s * factor,
        optimizer_s=profile.optimizer_s * factor,
    )


class Predicted(NamedTuple):
    """sync_s: from the last gradient's being ready, with what gathers parameters. step_s: the whole step."""

    sync_s: float
    step_s: float


def _predict(strategy: Strategy, profile: StepProfile, network: Cluster, num_ranks: int) -> Predicted:
    traffic = strategy.traffic([profile.backward_s - each.ready_s for each in profile.parameters])
    step_s = predict_step_s(traffic, profile, network, num_ranks, strategy.stepped)
    return Predicted(predict_sync_s(traffic, network, num_ranks), step_s)


def _gather_notes(runs: Sequence[Run], group: dist.ProcessGroup) -> list[dict[str, dict[str, Any]]]:
    """What every rank has noted of each run, by rank."""
    own = {
        run.name: {
            "losses": run.losses,
            "sync_s": run.sync_s,
            "step_s": run.step_s,
            "fingerprint": fingerprint(run.model),
        }
        for run in runs
    }
    notes: list[Any] = [None] * group.size()
    with naming_failures(f"rank {group.rank()}: gathering the results failed"):
        dist.all_gather_object(notes, own, group=group)
    return notes


def _summarise(name: str, predicted: Predicted, ranks: Sequence[dict[str, Any]], job: Job) -> Report:
    """One strategy's row of the report, from every rank's notes."""
    warm_up = min(MAX_WARM_UP_STEPS, job.train.steps // 2)
    # Whoever is last to finish its backward pass waits for nobody: its time is the synchronisation itself,
    # the others' includes their waiting for it.
    sync_s = [min(times) for times in zip(*(rank["sync_s"] for rank in ranks), strict=True)][warm_up:]
    # A rank begins a step when its last one ends: whoever begins early waits longer, so that only means add up to what
    # all steps take.
    step_s = [statistics.mean(times) for times in zip(*(rank["step_s"] for rank in ranks), strict=True)][warm_up:]
    losses = [statistics.mean(values) for values in zip(*(rank["losses"] for rank in ranks), strict=True)]
    measured_s = statistics.median(sync_s)
    measured_step_s = statistics.median(step_s)
    tokens_per_step = len(ranks) * job.train.batch_size * job.model.sequence_length
    return {
        "strategy": name,
        "predicted_sync_s": predicted.sync_s,
        "measured_sync_s": measured_s,
        "measured_sync_p10_s": p10_p90(sync_s)[0],
        "measured_sync_p90_s": p10_p90(sync_s)[1],
        "error": predicted.sync_s / measured_s - 1 if len(ranks) > 1 and measured_s > 0 and predicted.sync_s else None,
        "predicted_step_s": predicted.step_s,
        "step_s": measured_step_s,
        "step_p10_s": p10_p90(step_s)[0],
        "step_p90_s": p10_p90(step_s)[1],
        "step_error": predicted.step_s / measured_step_s - 1,
        "tokens_per_s": tokens_per_step / measured_step_s,
        "final_loss": statistics.mean(losses[-LAST_LOSSES:]),
        "parameters_identical": len({rank["fingerprint"] for rank in ranks}) == 1,
        "steps_measured": len(sync_s),
        "sync_s": sync_s,
        "steps_s": step_s,
        "losses": losses,
    }


def _report(
    job: Job, measurements: Measurements, network: Cluster, results: list[Report], model: torch.nn.Module
) -> Report:
    curves = [result["losses"] for result in results if result["strategy"] != "none"]
    differences = [abs(a - b) for curve in curves[1:] for a, b in zip(curves[0], curve, strict=True)]
    return {
        "format": "ringsim-report",
        "version": 1,
        "num_ranks": measurements.num_ranks,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "data": job.data,
        "model": asdict(job.model),
        "train": asdict(job.train),
        "network": network.as_dict(),
        "measurements": measurements.as_dict(),
        "max_loss_difference": max(differences, default=0.0),
        "strategies": results,
    }


def save_results(
    report: Report, checkpoint: Checkpoint, output: Path, say: Callable[[str], None], wait_s: float = WRITING_S
) -> list[Path]:
    """Write RESULTS to the directory `output`, report.json last: where it is, the others are; on one rank only.

    All are of one run, even if another writes there too: it has to wait, and then replaces all of them. Returns the
    paths.

    Raises OSError if one cannot be written, ValueError if another run does not come to an end with its own.
    """
    from trainers.main_job.report_plot import save_report_plot  # noqa: PLC0415  matplotlib, on rank 0 alone

    output.mkdir(parents=True, exist_ok=True)
    paths = [output / name for name in RESULTS]
    with locked(output, say, wait_s):
        save_checkpoint(paths[0], checkpoint)
        save_report_plot(report, paths[1])
        save_json(paths[2], report)
    return paths
