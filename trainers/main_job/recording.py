"""`record_steps`: real steps of each strategy on a group that sends nothing: what they compute, and what they call."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from collectives.recording import recording
from collectives.runtime import Recorder, naming_failures
from ringsim.network import Cluster
from ringsim.traces import Group
from ringsim.training_step import calls_of
from trainers.loop.loss_sync import DivergedError
from trainers.loop.train_step import StepResult, TrainStep
from trainers.main_job.config import JobConfig
from trainers.main_job.profile import ComputingTimes, Memory, RankProfile, measure_memory, profile_of
from trainers.main_job.recorded_steps import RecordedStep, predict_steps
from trainers.main_job.report import StepPrediction
from trainers.strategy_names import steps_between_averages

WARM_UP_STEPS = 3  # the optimizer's state and the gradients are allocated, and DDP fills new buckets
STEPS = 15
UNSYNCHRONISED = "none"  # the strategy of whose steps the profile is made


class Trouble(NamedTuple):
    """A loss that is not finite. turn: of the steps of all strategies, counted from 0. place: where, in words."""

    turn: int
    place: str
    loss: float


class RankRecording(NamedTuple):
    """Notes of one rank: steps by strategy, the profile of those of UNSYNCHRONISED, and the first trouble, if any.

    memory: what the rank held after the steps, by strategy.
    """

    steps: dict[str, list[RecordedStep]]
    memory: dict[str, Memory]
    profile: RankProfile | None
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What all ranks have recorded, in their order. groups: those of the calls."""

    groups: tuple[Group, ...]
    ranks: tuple[RankRecording, ...]

    def profiles(self) -> list[RankProfile]:
        """Return the profile of each rank."""
        return [rank.profile for rank in self.ranks if rank.profile is not None]

    def predict(self, names: Sequence[str], network: Cluster, overlaps: bool) -> dict[str, StepPrediction]:
        """Return how long these strategies take on a network. overlaps: as of `simulate_step`."""
        groups = [calls_of(group, len(self.ranks), network) for group in self.groups]
        return {
            name: predict_steps(
                [rank.steps[name] for rank in self.ranks], groups, overlaps, steps_between_averages(name)
            )
            for name in names
        }

    def memory(self, names: Sequence[str]) -> dict[str, Memory]:
        """Return what the rank that held most held after its steps with each of these strategies."""
        return {name: max((rank.memory[name] for rank in self.ranks), key=lambda held: held.total) for name in names}


def num_recorded(name: str, steps: int) -> int:
    """Return how many steps of a strategy are recorded: in whole periods, but not more than are trained."""
    period = steps_between_averages(name)
    return min(-(-STEPS // period) * period, max(STEPS, steps))


def num_steps(config: JobConfig) -> int:
    """Return how many steps `record_steps` takes."""
    return sum(WARM_UP_STEPS + num_recorded(name, config.steps) for name in _recorded_names(config))


def _recorded_names(config: JobConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*config.strategies, UNSYNCHRONISED)))


def record_steps(
    config: JobConfig, group: dist.ProcessGroup, on_step: Callable[[str], object] = lambda _: None
) -> Recording:
    """Record some steps of each strategy; collective.

    All ranks compute at once, as they will, and take a step with every strategy before the next one: caches are then as
    cold as they will be. on_step: called after each step, with the strategy's name.

    Raises CollectiveError if a peer fails, and DivergedError, on all ranks alike, if a loss is not finite.
    """
    recorder, groups = Recorder(), list[Group]()
    everywhere: list[Any] = [None] * group.size()
    with (
        naming_failures(f"rank {group.rank()}: recording steps failed"),
        recording(group.size(), group.rank(), recorder, groups),
        _groups_destroyed(),
    ):
        runs = _start(config, dist.new_group(list(range(group.size()))))
        recorded = _record(runs, group, recorder, on_step)
        dist.all_gather_object(everywhere, recorded, group=group)
    _require_finite(everywhere)
    return Recording(tuple(groups), tuple(everywhere))


@dataclass(slots=True, eq=False)
class _RecordedRun:
    """A strategy whose steps are recorded on this rank. times: of the steps of UNSYNCHRONISED."""

    train_step: TrainStep
    num_steps: int
    steps: list[RecordedStep] = field(default_factory=list)
    times: list[ComputingTimes] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.train_step.config.strategy

    def take(self, step: int, recorder: Recorder) -> StepResult:
        """Take a step, and record it if it is not to warm up."""
        recorder.end_step()  # of what came since the last one
        result = self.train_step.run(step)
        computed_s = [recorder.computed_s(moment_s) for moment_s in result.moments or ()]
        recorder.end_step()
        if result.moments and step >= WARM_UP_STEPS:
            self.steps.append(RecordedStep.cut_from(recorder.steps[-1], computed_s))
            if self.name == UNSYNCHRONISED:
                self.times.append(ComputingTimes.of(result, self.train_step.clock.before_last_s()))
        return result


@contextmanager
def _groups_destroyed() -> Iterator[None]:
    """Destroy the groups that are made in the block."""
    known = set(distributed_c10d._world.pg_map)
    try:
        yield
    finally:
        for made in set(distributed_c10d._world.pg_map) - known:
            dist.destroy_process_group(made)


def _start(config: JobConfig, group: Any) -> list[_RecordedRun]:
    return [
        _RecordedRun(
            TrainStep(config.task, step, group, num_steps=config.steps), num_recorded(step.strategy, config.steps)
        )
        for step in (replace(config.step, strategy=name) for name in _recorded_names(config))
    ]


def _record(
    runs: Sequence[_RecordedRun], group: dist.ProcessGroup, recorder: Recorder, on_step: Callable[[str], object]
) -> RankRecording:
    troubles: list[Trouble] = []
    turn = 0
    for step in range(WARM_UP_STEPS + max(run.num_steps for run in runs)):
        first = step % len(runs)  # as in training
        for run in (*runs[first:], *runs[:first]):
            if step >= WARM_UP_STEPS + run.num_steps:
                continue
            dist.barrier(group=group)
            result = run.take(step, recorder)
            if result.trouble:
                troubles.append(Trouble(turn, f"recording step {step}, strategy {run.name}", result.loss))
            turn += 1
            on_step(run.name)
    if troubles:
        return RankRecording({}, {}, None, troubles[0])
    profile = next(profile_of(run.train_step.model.model, run.times) for run in runs if run.name == UNSYNCHRONISED)
    memory = {run.name: measure_memory(run.train_step) for run in runs}
    return RankRecording({run.name: run.steps for run in runs}, memory, profile, None)


def _require_finite(ranks: Sequence[RankRecording]) -> None:
    """Raise DivergedError for the first step in which a rank's loss is not finite."""
    troubles = {rank: recorded.trouble for rank, recorded in enumerate(ranks) if recorded.trouble}
    if troubles:
        first = min(troubles.values())
        losses = (f"the loss of rank {rank} is {one.loss}" for rank, one in troubles.items() if one.turn == first.turn)
        raise DivergedError(f"{first.place}: {', '.join(losses)}; a smaller --learning-rate may help")
