"""Measurements of a run: times and losses (`Meter`), memory, and a profiler trace of some steps."""

import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from collectives.runtime import naming_failures
from ringsim.files import atomic_file
from ringsim.units import format_duration, format_size, format_time, plural
from trainers.loop.train_step import StepResult, TrainStep, gather_numbers
from trainers.strategies.base import Strategy, parameters_of
from trainers.strategies.ddp import Ddp
from trainers.strategies.sharded import Withheld
from trainers.tasks.base import format_figures

WARM_UP_STEPS = 3  # buffers are touched for the first time, DDP forms its buckets anew
STEPS = 3
NOTES = ("losses", "skipped_now", "skipped", "skipped_in_a_row", "last_loss")  # of a meter, which a checkpoint holds
STATUS = Path("/proc/self/status")  # of Linux


def describe_line(line: Mapping[str, Any], num_steps: int) -> str:
    """Format a line of the log. num_steps: of the whole run."""
    unit = "tokens" if "tokens_per_s" in line else "samples"
    parts = [
        "no loss" if line["loss"] is None else f"mean loss {line['loss']:.4g}",
        f"{line[f'{unit}_per_s']:,.0f} {unit}/s",
        f"{format_milliseconds(line['step_s'])} a step",
        f"{line['sync_share']:.0%} exposed communication",
    ]
    if "gradient_norm" in line:
        norm = line["gradient_norm"]  # None if it is infinite or not a number, which JSON does not have
        parts.append(f"gradient norm {'not finite' if norm is None else f'{norm:.3g}'}")
    if line.get("skipped"):
        parts.append(f"{plural(line['skipped'], 'step')} skipped")
    parts += [f"memory {format_size(line['peak_memory_bytes'])}", f"{format_duration(line['time_left_s'])} left"]
    return f"step {line['step']}/{num_steps}: {', '.join(parts)}"


def describe_evaluation(step: int, num_steps: int, figures: Mapping[str, float | None]) -> str:
    """Format the printed line of an evaluation."""
    return f"step {step}/{num_steps}: held-out data: {format_figures(figures)}"


def format_milliseconds(time_s: float) -> str:
    """Format as 12.3 ms, with three digits."""
    return format_time(float(f"{time_s:.3g}"))


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    try:
        # Not ru_maxrss, which on Linux begins with that of the parent process.
        peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024


class Meter:
    """Times and losses of one rank; a line of the log has the means over all ranks.

    tokens_per_sample: 0 if samples have no tokens. makes_lines: whether `line` is ever called.
    skipped, skipped_now, skipped_in_a_row: steps in the whole run, since the last line, and since the last step taken.
    """

    def __init__(self, group: dist.ProcessGroup, tokens_per_sample: int, makes_lines: bool = True) -> None:
        self._group = group
        self._tokens_per_sample = tokens_per_sample
        self._makes_lines = makes_lines
        self.losses: list[float] = []
        self.skipped_now = self.skipped = self.skipped_in_a_row = 0
        self.last_loss: float | None = None
        self.restart()

    def restart(self) -> None:
        self._begin_s = time.perf_counter()
        self._steps = self._samples = 0
        self._communication_s = 0.0

    def add(self, result: StepResult, num_samples: int) -> None:
        self._steps += 1
        self._samples += num_samples
        self._communication_s += result.moments.communication_s
        if result.trouble:
            self.skipped_now += 1
            self.skipped += 1
            self.skipped_in_a_row += 1
        else:
            if self._makes_lines:  # else they would fill every checkpoint
                self.losses.append(result.loss)
            self.last_loss = result.loss
            self.skipped_in_a_row = 0

    def line(self) -> dict[str, Any]:
        """Return the figures since the last call, and restart the clock; collective.

        loss: None if all steps were skipped. peak_memory_bytes: the maximum over the ranks.
        """
        with naming_failures(f"rank {self._group.rank()}: gathering the metrics failed"):
            own = [self._communication_s, time.perf_counter() - self._begin_s, peak_memory_bytes()]
            everywhere = gather_numbers(own, self._group)
        communication_s, elapsed_s, _ = everywhere.mean(0).tolist()
        line: dict[str, Any] = {"loss": sum(self.losses) / len(self.losses) if self.losses else None}
        if self.skipped_now:
            line["skipped"] = self.skipped_now
        line |= {f"{name}_per_s": round(count / elapsed_s, 1) for name, count in self._counts().items()}
        line["step_s"] = float(f"{elapsed_s / self._steps:.4g}")
        line["sync_share"] = round(communication_s / elapsed_s, 4)
        line["peak_memory_bytes"] = int(everywhere[:, 2].max())
        self.losses, self.skipped_now = [], 0
        self.restart()
        return line

    def brief(self) -> str:
        """Return loss, rate and communication share in 40 characters."""
        elapsed_s = max(time.perf_counter() - self._begin_s, 1e-9)
        loss = "no loss yet" if self.last_loss is None else f"loss {self.last_loss:.4g}"
        name, count = list(self._counts().items())[-1]  # tokens where samples have any
        return f"{loss}, {count / elapsed_s:,.0f} {name}/s, {self._communication_s / elapsed_s:.0%} comm"

    def _counts(self) -> dict[str, int]:
        counts = {"samples": self._samples}
        return counts | {"tokens": self._samples * self._tokens_per_sample} if self._tokens_per_sample else counts

    def notes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NOTES} | {"losses": list(self.losses)}

    def set_notes(self, notes: dict[str, Any]) -> None:
        for name in NOTES:
            setattr(self, name, list(notes[name]) if name == "losses" else notes[name])


def held_bytes(train_step: TrainStep) -> dict[str, int]:
    """Return this rank's bytes of each kind (see `Memory`) after a step, before its gradients are cleared.

    DDP's buckets count as DDP reports them.
    """
    strategy, optimizer = train_step.model.strategy, train_step.optimizer
    stepped = parameters_of(optimizer)
    gradients = (*strategy.held_gradients(), *(p.grad for p in stepped))
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    seen: set[int] = set()
    return {
        "parameters": new_bytes([*strategy.parameters, *stepped], seen),
        "gradients": new_bytes([gradient for gradient in gradients if gradient is not None], seen),
        "optimizer": new_bytes([tensor for tensor in states if tensor.dim()], seen),
        "vectors": new_bytes(kept_tensors(strategy, set()), seen) + _bucket_bytes(strategy),
    }


def new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Return the bytes of storages not yet in `seen`, and add these."""
    held = (tensor for tensor in tensors if not isinstance(tensor, Withheld))
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in held)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in own)}
    size_bytes = sum(nbytes for pointer, nbytes in storages.items() if pointer not in seen)
    seen.update(storages)
    return size_bytes


_NOT_KEPT = (torch.optim.Optimizer, dist.ProcessGroup)  # their tensors are counted elsewhere, or not the strategy's


def kept_tensors(value: Any, visited: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors nested in an object, without modules and optimizers. visited: ids of objects."""
    if id(value) in visited:
        return
    visited.add(id(value))
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from kept_tensors(inner, visited)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, _NOT_KEPT):
        yield from kept_tensors(vars(value), visited)


def _bucket_bytes(strategy: Strategy) -> int:
    data = strategy.module._get_ddp_logging_data() if isinstance(strategy, Ddp) else {"bucket_sizes": "0"}
    sizes = str(data.get("rebuilt_bucket_sizes") or data["bucket_sizes"])
    return sum(int(size) for size in sizes.split(","))


class Memory(NamedTuple):
    """Bytes of tensors that a rank holds after the optimizer's step; each storage counts once, where it first fits.

    parameters, gradients: with marks and padding. optimizer: without scalars. vectors: other tensors of the strategy.
    activations: saved by autograd in a forward pass, without parameters.
    """

    parameters: int
    gradients: int
    optimizer: int
    vectors: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


def measure_memory(train_step: TrainStep) -> Memory:
    """Measure after a step, before its gradients are cleared; collective."""
    return Memory(**held_bytes(train_step), activations=activation_bytes(train_step))


def activation_bytes(train_step: TrainStep) -> int:
    """Return the bytes that autograd saves in a forward pass, without parameters; collective."""
    share, *_ = train_step.batches.share(0).split(train_step.config.accumulate)
    seen: set[int] = set()
    saved: list[torch.Tensor] = []  # kept, so that no storage comes to lie where another was

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())  # an operator that saves its own result would keep the graph alive
        return saved[-1]

    with torch.random.fork_rng(), train_step.model.no_sync(), saved_tensors_hooks(pack, lambda tensor: tensor):
        train_step.loss(share)
    new_bytes(train_step.model.model.parameters(), seen)  # only now, as a sharded strategy gathers them
    return new_bytes(saved, seen)


class ProfilerTrace:
    """A trace of STEPS steps after WARM_UP_STEPS others, or fewer in a short run."""

    def __init__(self, path: Path | None, first: int, end: int) -> None:
        self._path = path
        self._begin = first + min(WARM_UP_STEPS, max(0, end - first - STEPS))
        self._last = min(self._begin + STEPS, end) - 1
        self._profile: Any = None

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        if self._path is not None and step == self._begin:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            # Otherwise transfers in the thread of the collectives would be missing.
            every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
            self._profile = profile(activities=activities, experimental_config=every_thread, acc_events=True)
            self._profile.start()
        done = False
        try:
            yield
            done = True
        finally:
            if self._profile is not None and (self.is_over(step) or not done):
                self._profile.stop()

    def is_over(self, step: int) -> bool:
        return self._profile is not None and step == self._last

    def save(self) -> None:
        """Write the trace, whole or not at all. Raises OSError."""
        assert self._path is not None
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(whole))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._path) as file:
                file.write(whole.read_bytes())
