"""Time steps of DDP and FSDP2 on the backends "gloo" and "ring": `torchrun --nproc-per-node 2 scripts/bench_steps.py`.

All programs train the same model in one run, interleaved by step. One program does not synchronise; the additional time
of the others is the cost of synchronisation. A second table shows, by bucket, the time of a step on "ring" after the
last gradient.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.probes import provenance
from collectives.runtime.queue import CollectiveQueue
from ringsim.console import IntRange, TorchrunCommand, num_ranks
from ringsim.units import format_size
from trainers.tasks.base import ModelConfig
from trainers.tasks.model import TinyTransformer

START = "torchrun --nproc-per-node 2 scripts/bench_steps.py"
T = TypeVar("T")
WARM_UP = 5  # steps: DDP makes its buckets anew in the second
NO_SYNC, DDP_ON_GLOO, FSDP_ON_GLOO = "no synchronisation", "DDP on gloo", "FSDP2 on gloo"


class Program(NamedTuple):
    """rival: the program with whose time this program's is compared."""

    name: str
    wrap: Callable[[TinyTransformer, dist.ProcessGroup], nn.Module]
    backend: str
    rival: str | None = None


def ddp(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """Return torch's DistributedDataParallel of the model."""
    return DistributedDataParallel(model, process_group=group)


def ddp_in_place(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """Return our DistributedDataParallel, whose buckets lie in shared memory."""
    return collectives.DistributedDataParallel(model, process_group=group)


def fsdp(model: TinyTransformer, group: dist.ProcessGroup) -> nn.Module:
    """Shard each block of the model, then the other parameters."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


PROGRAMS = (
    Program(NO_SYNC, lambda model, _: model, "gloo"),
    Program(DDP_ON_GLOO, ddp, "gloo"),
    Program("DDP on ring", ddp, "ring", DDP_ON_GLOO),
    Program("collectives.DDP on ring", ddp_in_place, "ring", DDP_ON_GLOO),
    Program(FSDP_ON_GLOO, fsdp, "gloo"),
    Program("FSDP2 on ring", fsdp, "ring", FSDP_ON_GLOO),
)


class BucketTimes(NamedTuple):
    """When an asynchronous collective was called, began and ended, in seconds of `time.perf_counter`."""

    size_bytes: int
    called_s: float
    began_s: float
    ended_s: float


@contextmanager
def noting_calls(noted: list[BucketTimes]) -> Iterator[None]:
    """Add each call that a queue's thread gets in the block to `noted`."""
    start = CollectiveQueue.start

    def timed_start(self: CollectiveQueue, call: Callable[[], None], result: list[torch.Tensor], *more: Any) -> Any:
        called_s, size_bytes = time.perf_counter(), sum(tensor.nbytes for tensor in result)

        def timed_call() -> None:
            began_s = time.perf_counter()
            call()
            noted.append(BucketTimes(size_bytes, called_s, began_s, time.perf_counter()))

        return start(self, timed_call, result, *more)

    with patch.object(CollectiveQueue, "start", timed_start):
        yield


class StepTimes(NamedTuple):
    """When the parts of a step began and ended, on the clock of the calls, and its calls."""

    began_s: float
    forward_ended_s: float
    backward_ended_s: float
    ended_s: float
    calls: list[BucketTimes]

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


class Training:
    """One program's model and optimizer, and its timings on this rank.

    steps: the timed steps. cores_s: of each, of all threads on cores.
    """

    def __init__(self, program: Program, config: ModelConfig, group: dist.ProcessGroup) -> None:
        torch.manual_seed(0)
        self.program = program
        self._module = program.wrap(TinyTransformer(config), group)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=1e-3)
        self.steps: list[StepTimes] = []
        self.cores_s: list[float] = []

    def step(self, tokens: torch.Tensor, is_timed: bool) -> None:
        """Train on `tokens`, (batch, sequence), after a barrier."""
        calls: list[BucketTimes] = []
        dist.barrier()
        began_s, cores_s = time.perf_counter(), time.process_time()
        loss = nn.functional.cross_entropy(self._module(tokens).flatten(0, 1), tokens.flatten())
        forward_ended_s = time.perf_counter()
        with noting_calls(calls):
            loss.backward()  # type: ignore[no-untyped-call]
        backward_ended_s = time.perf_counter()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if is_timed:
            times = StepTimes(began_s, forward_ended_s, backward_ended_s, time.perf_counter(), calls)
            self.steps.append(times)
            self.cores_s.append(time.process_time() - cores_s)


def of_all_ranks(own: T) -> list[T]:
    """Return the objects of all ranks; collective."""
    everybody: list[T] = [own] * dist.get_world_size()
    dist.all_gather_object(everybody, own)
    return everybody


def slowest(trainings: list[Training]) -> dict[str, list[float]]:
    """Return, by program, the seconds of each step on the slowest rank; collective."""
    ranks = of_all_ranks(
        {training.program.name: [step.duration_s for step in training.steps] for training in trainings}
    )
    return {name: [max(step) for step in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}


def table(steps_s: dict[str, list[float]], trainings: list[Training]) -> Iterator[str]:
    """Yield a line per program: medians, and medians of the ratios over the steps."""
    yield f"{'program':<26}{'core ms':>9}{'step ms':>9}{'over its rival':>16}{'added ms':>10}{'over its rival':>16}"

    def added(name: str) -> float:
        return median_ms(own - without for own, without in zip(steps_s[name], steps_s[NO_SYNC], strict=True))

    for (name, _, _, rival), training in zip(PROGRAMS, trainings, strict=True):
        line = f"{name:<26}{median_ms(training.cores_s):9.1f}{median_ms(steps_s[name]):9.1f}"
        if rival is not None:
            ratio = statistics.median(a / b for a, b in zip(steps_s[name], steps_s[rival], strict=True))
            line += f"{ratio:16.2f}{added(name):10.1f}{added(name) / added(rival):16.2f}"
        elif name != NO_SYNC:
            line += f"{'':16}{added(name):10.1f}"
        yield line


def hand_over(training: Training) -> list[str]:
    """Return a line per bucket, in order of calls: medians over steps and ranks; collective."""
    lines = [
        f"{training.program.name}, medians in ms",
        f"{'bucket':>12}{'first call to last':>20}{'call to begin':>15}{'last call to end':>18}{'end to pass end':>17}",
    ]
    steps = list(zip(*of_all_ranks(training.steps), strict=True))  # (step, rank)
    for number, own in enumerate(training.steps[0].calls):
        # One clock for all ranks of a host: that of `time.perf_counter`.
        buckets = [[of_rank.calls[number] for of_rank in step] for step in steps]
        ends = [[of_rank.backward_ended_s for of_rank in step] for step in steps]
        apart = median_ms(
            max(call.called_s for call in calls) - min(call.called_s for call in calls) for calls in buckets
        )
        begin = median_ms(call.began_s - call.called_s for calls in buckets for call in calls)
        takes = median_ms(call.ended_s - max(other.called_s for other in calls) for calls in buckets for call in calls)
        before = median_ms(
            end_s - call.ended_s
            for calls, ends_s in zip(buckets, ends, strict=True)
            for call, end_s in zip(calls, ends_s, strict=True)
        )
        lines.append(f"{format_size(own.size_bytes):>12}{apart:20.2f}{begin:15.2f}{takes:18.2f}{before:17.2f}")
    return lines


def median_ms(seconds: Iterable[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def new_group(backend: str) -> dist.ProcessGroup:
    """Return a group of all ranks; collective."""
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup)
    return group


def train(trainings: list[Training], steps: int, config: ModelConfig) -> None:
    """Train all programs with the same data, interleaved by step."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for index in range(WARM_UP + steps):
        tokens = torch.randint(config.vocabulary, (1, config.sequence_length), generator=generator)
        for training in trainings:
            training.step(tokens, is_timed=index >= WARM_UP)


def heading(config: ModelConfig, steps: int) -> Iterator[str]:
    """Yield the lines about the machine and the measurement."""
    where = provenance()
    parameters = sum(parameter.numel() for parameter in TinyTransformer(config).parameters())
    yield f"# {where['machine']}, {where['cores']} cores, torch {where['torch']}, {where['date']}"
    tokens = config.sequence_length
    yield f"# {dist.get_world_size()} ranks, {parameters:,} parameters, {tokens} tokens a rank, {steps} steps"


@click.command(cls=TorchrunCommand, context_settings={"show_default": True})
@click.option(
    "-n", "--steps", type=IntRange(4), default=60, help="Number of timed steps of each program, after the warm-up."
)
@click.option("--d-model", type=IntRange(4), default=256, help="Width of the model.")
@click.option("--layers", type=IntRange(1), default=4, help="Number of transformer blocks of the model.")
@click.option("--tokens", type=IntRange(2), default=32, help="Number of tokens per rank and step.")
def main(steps: int, d_model: int, layers: int, tokens: int) -> None:
    """Print what a step of each program takes, and where the time of one on "ring" goes."""
    num_ranks(START)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # nobody changes it in place
    config = ModelConfig(d_model=d_model, d_ff=4 * d_model, layers=layers, sequence_length=tokens)
    dist.init_process_group("gloo")
    groups = {name: new_group(name) for name in ("gloo", "ring")}
    trainings = [Training(program, config, groups[program.backend]) for program in PROGRAMS]
    train(trainings, steps, config)
    steps_s = slowest(trainings)
    lines = [*heading(config, steps), *table(steps_s, trainings)]
    for training in trainings:
        if training.program.rival == DDP_ON_GLOO:
            lines += ["", *hand_over(training)]
    if dist.get_rank() == 0:
        click.echo("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
