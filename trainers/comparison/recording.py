"""`RecordedRuns`: real steps of each strategy on a group that sends nothing: what they compute, and what they call."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from collectives.recording import RecordingGroup, recording
from collectives.runtime import Recorder, gather_objects, naming_failures
from ringsim.network import Cluster
from ringsim.traces import Group
from ringsim.training_step import calls_of
from trainers.comparison.config import JobConfig
from trainers.comparison.profile import Memory, RankProfile, measure_memory, profile_of
from trainers.comparison.recorded_steps import RecordedStep, predict_steps
from trainers.comparison.report import StepPrediction
from trainers.loop.train_step import StepResult, TrainStep, require_finite_losses
from trainers.strategies.sharded import ShardedVectors, ShardedWeights
from trainers.strategy_names import steps_between_averages

WARM_UP_STEPS = 3  # the optimizer's state and the gradients are allocated, and DDP fills new buckets
STEPS = 15
UNSYNCHRONISED = "none"  # the strategy of whose steps the profile is made


class RankRecording(NamedTuple):
    """Notes of one rank: steps by strategy, and the profile of those of UNSYNCHRONISED.

    memory: what the rank held after the steps, by strategy.
    """

    steps: dict[str, list[RecordedStep]]
    memory: dict[str, Memory]
    profile: RankProfile


def num_recorded(name: str, steps: int) -> int:
    """Return how many steps of a strategy are recorded: in whole periods, but not more than are trained."""
    period = steps_between_averages(name)
    return min(-(-STEPS // period) * period, max(STEPS, steps))


class _RecordedRun:
    """A strategy whose steps are recorded on this rank. times: of the steps of UNSYNCHRONISED, for the profile."""

    def __init__(self, config: JobConfig, name: str, group: Any, recorder: Recorder) -> None:
        self.name = name
        step = replace(config.step, strategy=name)
        self.train_step = TrainStep(config.task, step, group, num_steps=config.steps)
        self.num_steps = num_recorded(name, config.steps)
        self.steps: list[RecordedStep] = []
        self.times: list[tuple[StepResult, list[float]]] = []
        if isinstance(self.train_step.model.strategy, ShardedVectors):
            for weights in self.train_step.model.strategy.weights:
                _gather_initial(weights, recorder)

    def take(self, step: int, recorder: Recorder) -> StepResult:
        """Take a step, and record it if it is not to warm up."""
        recorder.end_step()  # of what came since the last one
        result = self.train_step.run(step)
        computed_s = [recorder.computed_s(moment_s) for moment_s in result.moments or ()]
        recorder.end_step()
        if result.moments and step >= WARM_UP_STEPS:
            self.steps.append(RecordedStep.cut_from(recorder.steps[-1], computed_s))
            if self.name == UNSYNCHRONISED:
                self.times.append((result, self.train_step.clock.before_last_s()))
        return result


def _gather_initial(weights: ShardedWeights, recorder: Recorder) -> None:
    """Let `weights.gather` bring the initial parameters, in time that is not recorded.

    A group that sends nothing leaves this rank's share in the places of all others. With such parameters gradients
    become subnormal numbers, with which processors are slow: a backward pass took up to 1.8 times as long, and zero1
    was predicted a fifth too long on 2 ranks.
    """
    gather, initial = weights.gather, weights.home.vector.clone()

    def gather_initial() -> None:
        gather()
        with recorder.stopped(), torch.no_grad():
            weights.home.vector.copy_(initial)

    weights.gather = gather_initial  # type: ignore[method-assign]


class RecordedRuns:
    """A run of each strategy on groups that send nothing, of whose steps some are recorded.

    num_steps: of all of them, those that warm up included.

    ranks: the recordings of all ranks, in their order, after `gather`.

    Making them, `take_until` and `gather` are collective. All ranks compute at once, as they do in training, and
    take a step with every strategy before the next one: caches are then as cold as in training.
    """

    def __init__(self, config: JobConfig, group: dist.ProcessGroup) -> None:
        self._group = group
        self.ranks: list[RankRecording] = []
        self._recorder, self._groups = Recorder(), list[Group]()
        self._known = set(distributed_c10d._world.pg_map)
        with self._sending_nothing():
            alone = dist.new_group(list(range(group.size())))
            names = dict.fromkeys((*config.strategies, UNSYNCHRONISED))
            self._runs = [_RecordedRun(config, name, alone, self._recorder) for name in names]
        self._round = 0
        self._num_rounds = WARM_UP_STEPS + max(run.num_steps for run in self._runs)
        self.num_steps = sum(WARM_UP_STEPS + run.num_steps for run in self._runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy the groups that the runs have made."""
        for made in set(distributed_c10d._world.pg_map) - self._known:
            if isinstance(made, RecordingGroup):
                dist.destroy_process_group(made)

    def take_until(self, share: float, on_step: Callable[[str], object] = lambda _: None) -> None:
        """Take rounds of steps until this share of the recorded ones is taken; those that warm up come first.

        on_step: called after each step, with the strategy's name.

        Raises CollectiveError if a peer fails, and DivergedError, on all ranks alike, if a loss is not finite.
        """
        until = min(self._num_rounds, WARM_UP_STEPS + math.ceil(share * (self._num_rounds - WARM_UP_STEPS)))
        while self._round < until:
            first = self._round % len(self._runs)  # as in training
            for run in (*self._runs[first:], *self._runs[:first]):
                if self._round < WARM_UP_STEPS + run.num_steps:
                    self._take(run)
                    on_step(run.name)
            self._round += 1

    def _take(self, run: _RecordedRun) -> None:
        with self._sending_nothing():
            result = run.take(self._round, self._recorder)
        require_finite_losses(self._group, result.loss, f"recording step {self._round}, strategy {run.name}")

    def gather(self) -> None:
        """Tell all ranks what each has recorded."""
        profile = next(profile_of(run.train_step.model.model, run.times) for run in self._runs if run.times)
        with self._sending_nothing():  # a forward pass may be collective
            memory = {run.name: measure_memory(run.train_step) for run in self._runs}
        own = RankRecording({run.name: run.steps for run in self._runs}, memory, profile)
        self.ranks = gather_objects(own, self._group, "gathering recorded steps failed")

    def predict(self, names: Sequence[str], network: Cluster, pace: float) -> dict[str, StepPrediction]:
        """Return how long these strategies take on a network. pace: as of `simulate_step`."""
        groups = [calls_of(group, len(self.ranks), network) for group in self._groups]
        return {
            name: predict_steps([rank.steps[name] for rank in self.ranks], groups, pace, steps_between_averages(name))
            for name in names
        }

    def memory(self, names: Sequence[str]) -> dict[str, Memory]:
        """Return what the rank that held most held after its steps with each of these strategies."""
        return {name: max((rank.memory[name] for rank in self.ranks), key=lambda held: held.total) for name in names}

    @contextmanager
    def _sending_nothing(self) -> Iterator[None]:
        """Let process groups that are made in the block record, in place of sending."""
        group = self._group
        with (
            naming_failures(f"rank {group.rank()}: recording steps failed"),
            recording(group.size(), group.rank(), self._recorder, self._groups),
        ):
            yield
