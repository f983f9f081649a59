"""`run_job`: probe the machine, predict each strategy's synchronisation, train with each, compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist

from collectives.benchmark.call_overhead import probe_calls
from collectives.probes import Blocks, probe
from collectives.runtime import gather_objects
from ringsim.calibration import fitted_cluster, fitting_model
from ringsim.console import Progress
from ringsim.measurements import Measurements, RankHosts, pooled
from ringsim.network import Network
from ringsim.training_step import pace_together
from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.manager import first_decides
from trainers.comparison import ONE_PROCESS, JobConfig
from trainers.comparison.recording import RecordedRuns, common_profile
from trainers.comparison.report import JobResult, RankNotes, compare_with_one, make_report
from trainers.data_parallel import fingerprint
from trainers.loop.meter import format_milliseconds, measure_memory
from trainers.loop.train_step import TrainStep, require_finite, require_finite_losses
from trainers.strategies import strategy_info

LINES = 10  # about training on stderr
PROBES = 3  # turns of all probes: before the first training step, in the middle and after the last
BLOCKS = Blocks(turns=1, number=3)  # of each turn
STATE_PER_GRADIENT = 4  # parameter, gradient and AdamW's two moments, which a step touches for each strategy


@dataclass(slots=True, eq=False)
class StrategyRun:
    """The training with one strategy, and this rank's record."""

    name: str
    train_step: TrainStep
    notes: RankNotes = field(default_factory=RankNotes)

    def take(self, step: int) -> None:
        """Take a step. Raises CollectiveError like `TrainStep.run`, and DivergedError on all ranks."""
        result = self.train_step.run(step)
        require_finite(result.trouble, f"training step {step}, strategy {self.name}")
        self.notes.results.append(result)

    def finish(self) -> None:
        """Measure the memory, and make the parameters equal on all ranks; collective."""
        with self.train_step.naming_step(len(self.notes.results) - 1):
            self.notes.memory = measure_memory(self.train_step)
            self.train_step.finish()
        # Without buffers, which differ until a forward pass sends rank 0's.
        self.notes.fingerprint = fingerprint(self.train_step.model, buffers=False)

    def gradients(self) -> list[torch.Tensor | None]:
        return [parameter.grad for parameter in self.train_step.model.model.parameters()]


class OneProcess(StrategyRun):
    """The training of rank 0 alone on the batch of all ranks, while others wait."""

    def __init__(self, config: JobConfig, group: dist.ProcessGroup) -> None:
        size = config.step.global_batch_size(config.task, group.size())
        step = replace(config.step, strategy="none", batch_size=size)
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        assert isinstance(alone, dist.ProcessGroup)
        super().__init__(ONE_PROCESS, TrainStep(config.task, step, alone, num_steps=config.steps))
        self._group = group

    def take(self, step: int) -> None:
        if self._group.rank() == 0:
            self.notes.results.append(self.train_step.run(step))
        loss = self.notes.results[-1].loss if self.notes.results else 0.0
        require_finite_losses(self._group, loss, f"training step {step}, {ONE_PROCESS}")

    def finish(self) -> None:
        """Do nothing: other ranks take no part."""


def run_job(config: JobConfig, group: dist.ProcessGroup, progress: Progress) -> JobResult:
    """Run the whole comparison on every rank of `group`; collective.

    The checkpoint is of `ring`, or else of the first strategy. Raises CollectiveError when a peer fails, and
    DivergedError on all ranks when a loss is not finite.
    """
    progress.begin("making the models")
    runs = start_runs(config, group)
    run = next((run for run in runs if run.name == "ring"), runs[-len(config.strategies)])
    num_parameters = sum(p.numel() for p in run.train_step.model.parameters())
    gradient_bytes = sum(p.nbytes for p in run.train_step.model.parameters())
    with RecordedRuns(config, group) as recorded:
        memory_bytes = STATE_PER_GRADIENT * gradient_bytes * len(runs)
        probe_once = partial(probe, group, gradient_bytes, memory_bytes, blocks=BLOCKS, calls=probe_calls)
        measured = take_turns(config, runs, recorded, probe_once, progress)
        recorded.gather()
    progress.begin("predicting")
    measurements = pooled(measured)
    network, pace = agreed_network(measurements, group)
    profile = common_profile([rank.profile for rank in recorded.ranks], overlaps=pace == 1)
    own = {run.name: run.notes for run in runs if run.notes.results}
    of_ranks = gather_objects(own, group, "gathering the results failed")
    notes = {run.name: [rank[run.name] for rank in of_ranks if run.name in rank] for run in runs}
    one = notes.pop(ONE_PROCESS, None)
    predicted = recorded.predict(config.strategies, network, pace), recorded.memory(config.strategies)
    report = make_report(config, measurements, network, profile, num_parameters, predicted, notes)
    train_step = run.train_step
    identity = {"strategy": run.name, "task": report.task, "train": report.train}
    states = train_step.model.state_dict(), train_step.optimizer.state_dict()  # collective with a sharded strategy
    comparison = compare_with_one(one[0], notes, measurements.provenance) if one else None
    return JobResult(report, comparison, Checkpoint(*states, identity, config.steps))


def start_runs(config: JobConfig, group: dist.ProcessGroup) -> list[StrategyRun]:
    """Return a run per strategy, one process first, with equal initial weights."""
    runs: list[StrategyRun] = [OneProcess(config, group)] if config.one_process else []
    for name in config.strategies:
        step = replace(config.step, strategy=name)
        runs.append(StrategyRun(name, TrainStep(config.task, step, group, num_steps=config.steps)))
    return runs


def take_turns(
    config: JobConfig,
    runs: Sequence[StrategyRun],
    recorded: RecordedRuns,
    probe_once: Callable[..., Measurements],
    progress: Progress,
) -> list[Measurements]:
    """Probe, record and train, interleaved, so that a slow minute affects all alike; return the probes."""
    measured = [probe_once(on_progress=partial(progress.advance_to, phase="probing"))]
    progress.begin("recording and training", recorded.num_steps + config.steps * len(runs))
    for step in range(config.steps):
        if step * (PROBES - 1) >= config.steps * len(measured):
            measured.append(probe_once())
        recorded.take_until((step + 1) / config.steps, lambda name: progress.update(1, name))
        take_step(runs, step, lambda name: progress.update(1, name))
        if dist.get_rank() == 0 and (step + 1) % max(config.steps // LINES, 1) == 0:
            progress.say(describe_steps(runs, step + 1, config.steps))
    for run in runs:
        run.finish()
    return [*measured, *(probe_once() for _ in range(PROBES - len(measured)))]


def take_step(runs: Sequence[StrategyRun], step: int, on_step: Callable[[str], object] = lambda _: None) -> None:
    """Take a step with every strategy, so that all meet the same noise; call `on_step` with each name."""
    first = step % len(runs)  # so that no strategy always follows the same one
    for run in (*runs[first:], *runs[:first]):
        run.take(step)
        on_step(run.name)
    if step == 0 and runs[0].name == ONE_PROCESS and runs[0].notes.results:
        _compare_gradients(runs[0], runs[1:])


def _compare_gradients(one: StrategyRun, runs: Sequence[StrategyRun]) -> None:
    expected = one.gradients()
    largest = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    for run in runs:
        if strategy_info(run.name).leaves_mean:
            pairs = zip(expected, run.gradients(), strict=True)
            differences = [float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None]
            run.notes.gradient_difference = max(differences) / largest


def describe_steps(runs: Sequence[StrategyRun], done: int, num_steps: int) -> str:
    """Describe the last step: the range of the losses, and of this rank's times."""
    last = {run.name: run.notes.results[-1] for run in runs}
    losses = _range({name: result.loss for name, result in last.items()}, "{:.4g}".format)
    times = _range({name: result.moments.step_s for name, result in last.items()}, format_milliseconds)
    return f"step {done}/{num_steps}: loss {losses}, {times} a step"


def _range(values: Mapping[str, float], shown: Callable[[float], str]) -> str:
    least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    texts = [shown(values[name]) for name in (least, most)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} ({least}) to {texts[1]} ({most})"


def agreed_network(measurements: Measurements, group: dist.ProcessGroup) -> tuple[Network, float]:
    """Return rank 0's network, and its `pace_together`."""
    places = RankHosts.from_measurements(measurements)
    assert places is not None  # of our own probes
    pace = pace_together(measurements.provenance["cores"] or 1, places.physical_hosts.count(0))
    network = fitted_cluster(measurements, fitting_model(measurements), "this")
    return first_decides(group, lambda: (network, pace))
