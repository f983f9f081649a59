"""The strategy comparison: probe this machine, predict each strategy's synchronisation, train with each, compare."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch.distributed as dist
from torch import nn

from collectives.benchmark.call_overhead import probe_calls
from collectives.probes import Blocks, probe
from collectives.runtime import naming_failures
from ringsim.calibration import fitted_cluster, fitting_model
from ringsim.console import STDOUT, Progress, clear_line
from ringsim.files import json_text
from ringsim.measurements import Measurements, RankHosts, pooled
from ringsim.network import Cluster
from ringsim.training_step import StepProfile, pace_together
from trainers.checkpoints.checkpoint import Checkpoint
from trainers.loop.train_step import StepResult, TrainStep
from trainers.replica_check import fingerprint
from trainers.strategy_comparison.config import JobConfig, LogConfig
from trainers.strategy_comparison.job_log import JobLog
from trainers.strategy_comparison.profile import Memory, common_profile, measure_memory
from trainers.strategy_comparison.recording import RecordedRuns, num_steps
from trainers.strategy_comparison.report import RankNotes, Report, add_memory, make_report, tokens_per_step

PROBES = 3  # turns of all probes: before the first training step, in the middle and after the last
BLOCKS = Blocks(turns=1, number=3)  # of each
STATE_PER_GRADIENT = 4  # parameter, gradient and AdamW's two moments: what a step touches for each strategy


@dataclass(slots=True, eq=False)
class StrategyRun:
    """One model being trained with one strategy, and what has become of its steps on this rank.

    memory: what this rank held after the last one.
    """

    name: str
    train_step: TrainStep
    results: list[StepResult] = field(default_factory=list)
    memory: Memory | None = None

    def notes(self) -> RankNotes:
        """Return what the report needs, after the last step."""
        assert self.memory is not None
        return RankNotes(
            losses=[result.loss for result in self.results],
            sync_s=[result.sync_s for result in self.results],
            step_s=[result.step_s for result in self.results],
            fingerprint=fingerprint(self.train_step.model),
            memory=self.memory,
        )


def run_job(
    config: JobConfig, group: dist.ProcessGroup, progress: Progress, logged: LogConfig
) -> tuple[Report, Checkpoint]:
    """Do the whole job on every rank of `group`; collective.

    progress: shows which phase this is in, and how far. logged: where and how often it is told how training is going.
    Returns the report, the same on every rank but for its provenance, and a checkpoint of the `ring` run, if there is
    one, else of the first.
    Raises CollectiveError when a peer fails; on all ranks alike DivergedError when a loss is not finite.
    """
    progress.begin("making the models")
    runs = start_runs(config, group)
    parameters = list(runs[0].train_step.model.parameters())
    with (
        RecordedRuns(config, group) as recorded,
        closing(JobLog(logged, config.steps, tokens_per_step(config, group.size()), group, progress.say)) as log,
    ):
        measured = take_turns(config, runs, recorded, partial(_probe, group, parameters, len(runs)), progress, log)
        recording = recorded.recording()
    progress.begin("predicting")
    measurements = pooled(measured)
    network, pace = agreed_network(measurements, group)
    profile = common_profile(recording.profiles(), overlaps=pace == 1)
    if config.profile and group.rank() == 0:
        _save_profile(profile, config.profile)
    predictions = recording.predict(config.strategies, network, pace)
    notes = _gather_notes(runs, group)
    report = make_report(config, measurements, network, predictions, notes, sum(p.numel() for p in parameters), profile)
    add_memory(report, recording.memory(config.strategies), notes)
    return report, _checkpoint(next((run for run in runs if run.name == "ring"), runs[0]), report)


def start_runs(config: JobConfig, group: dist.ProcessGroup) -> list[StrategyRun]:
    """One for each strategy, all with the same initial weights."""
    return [
        StrategyRun(step.strategy, TrainStep(config.task, step, group, num_steps=config.steps))
        for step in config.of_each_strategy()
    ]


def take_turns(
    config: JobConfig,
    runs: Sequence[StrategyRun],
    recorded: RecordedRuns,
    probe_once: Callable[..., Measurements],
    progress: Progress,
    log: JobLog,
) -> list[Measurements]:
    """Probe, record and train, each for a while, until all is done: a slow minute of the machine then hits all alike.

    Returns what was probed in each turn.
    """
    measured = [probe_once(on_progress=partial(progress.advance_to, phase="probing"))]
    progress.begin("recording and training", num_steps(config) + config.steps * len(runs))

    def before(step: int) -> None:
        if step * (PROBES - 1) >= config.steps * len(measured):
            measured.append(probe_once())
        recorded.take_until((step + 1) / config.steps, lambda name: progress.update(1, name))

    train_in_turn(runs, config.steps, before, lambda name: progress.update(1, name), log)
    return [*measured, *(probe_once() for _ in range(PROBES - len(measured)))]


def _probe(
    group: dist.ProcessGroup,
    parameters: Sequence[nn.Parameter],
    num_runs: int,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurements:
    gradient_bytes = sum(parameter.nbytes for parameter in parameters)
    memory_bytes = STATE_PER_GRADIENT * gradient_bytes * num_runs
    return probe(group, gradient_bytes, memory_bytes, blocks=BLOCKS, calls=probe_calls, on_progress=on_progress)


def _save_profile(profile: StepProfile, path: Path) -> None:
    if path != STDOUT:
        profile.save(path)
        return
    clear_line()
    click.echo(json_text(profile.as_dict()), nl=False)


def train_in_turn(
    runs: Sequence[StrategyRun],
    steps: int,
    before: Callable[[int], None] = lambda _: None,
    after_step: Callable[[str], None] = lambda _: None,
    log: JobLog | None = None,
) -> None:
    """Take each step with every strategy before the next one, so that all meet the same noise of the machine.

    before: called before each step of all strategies, with its number. after_step: called after each step of each
    strategy, with its name. log: told of all strategies every few steps.

    Raises CollectiveError as `TrainStep.run` does; on all ranks alike DivergedError, naming step and strategy.
    """
    for step in range(steps):
        before(step)
        first = step % len(runs)  # another one each step, so that none always follows the same one
        for run in (*runs[first:], *runs[:first]):
            result = run.train_step.run(step)
            result.require_finite(f"training step {step}, strategy {run.name}")
            run.results.append(result)
            after_step(run.name)
        if log is not None and log.is_due(step + 1):
            log.write(step + 1, {run.name: (run.train_step, run.results) for run in runs})
    for run in runs:
        with run.train_step.naming_step(steps - 1):
            run.memory = measure_memory(run.train_step)
            run.train_step.finish()


def agreed_network(measurements: Measurements, group: dist.ProcessGroup) -> tuple[Cluster, float]:
    """Return the network, and the pace of computing and communicating at once (`pace_together`), as rank 0's host is.

    Its ranks share its cores even where each is in a network namespace or its own container.
    """
    network = fitted_cluster(measurements, fitting_model(measurements), "this")
    places = RankHosts.from_measurements(measurements)
    assert places is not None  # of our own probes
    cores, ranks_here = measurements.provenance["cores"], places.physical_hosts.count(0)
    agreed: list[Any] = [network, pace_together(cores or 1, ranks_here)]
    with naming_failures(f"rank {group.rank()}: receiving the number of cores from rank 0 failed"):
        dist.broadcast_object_list(agreed, group=group, group_src=0)
    return agreed[0], agreed[1]


def _gather_notes(runs: Sequence[StrategyRun], group: dist.ProcessGroup) -> dict[str, list[RankNotes]]:
    """Return what every rank has noted of each run, by strategy."""
    notes: list[Any] = [None] * group.size()
    with naming_failures(f"rank {group.rank()}: gathering the results failed"):
        dist.all_gather_object(notes, {run.name: run.notes() for run in runs}, group=group)
    return {run.name: [rank[run.name] for rank in notes] for run in runs}


def _checkpoint(run: StrategyRun, report: Report) -> Checkpoint:
    """Return the checkpoint; a collective call where each rank has only a share of the optimizer's state."""
    config = {"strategy": run.name, "model": report["model"], "train": report["train"], "data": report["data"]}
    train_step = run.train_step
    steps = report["train"]["steps"]
    return Checkpoint(train_step.model.state_dict(), train_step.optimizer.state_dict(), config, steps)
