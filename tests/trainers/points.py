"""A small task, and runs of it on the ranks of a pool, for the tests of `trainers.loop.trainer`."""

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from trainers.checkpoints.output import read_log
from trainers.data_parallel import fingerprint
from trainers.loop.config import TrainConfig
from trainers.loop.trainer import Trainer

if TYPE_CHECKING:
    from tests.ranks import RankPool

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 25, 8, 3  # of each epoch the last batch has one sample: all ranks but one have none
NUM_STEPS = 12


class Net(nn.Module):
    """Draws random numbers where there is dropout, and has a buffer that the forward pass changes.

    Layers are not used in the order in which they are made: DDP forms its buckets anew after the first step.
    """

    seen: torch.Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(20, 1), nn.Linear(3, 60), nn.Linear(60, 20)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        if self.training:
            self.seen.mul_(0.5).add_(x.detach().mean())
        return self.last(self.middle(self.dropout(self.first(x).tanh())))


@dataclass(eq=False)
class Points:
    """Fits a plane through points.

    bad: the samples that are not numbers. spread: by how much ranks begin apart. rate: anything that AdamW takes.
    kind: which of torch's optimizers. global_batch_size: of all ranks together.
    """

    seed: int
    dropout: float = 0.5
    bad: tuple[int, ...] = ()
    spread: float = 0.0
    rate: float = 0.05
    kind: str = "AdamW"
    global_batch_size: int = BATCH_SIZE
    name = "points"
    num_samples, epochs = NUM_SAMPLES, EPOCHS

    def __post_init__(self) -> None:
        self._x = torch.randn(NUM_SAMPLES, 3, generator=torch.Generator().manual_seed(self.seed))
        self._y = self._x @ torch.tensor([[1.0], [-2.0], [3.0]])
        self._x[list(self.bad)] = math.nan

    def model(self) -> nn.Module:
        net = Net(self.dropout)
        with torch.no_grad():
            net.middle.weight += self.spread * dist.get_rank()
        return net

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Any:
        return getattr(torch.optim, self.kind)(parameters, lr=self.rate)

    def batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, torch.Tensor]:
        return {"x": self._x[indices], "y": self._y[indices]}

    def loss(self, model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> Any:
        return (model(batch["x"]) - batch["y"]).pow(2).mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        good = self._x.isfinite().all(dim=1)
        return {"loss": self.loss(model, {"x": self._x[good], "y": self._y[good]}).item()}

    def show(self, model: nn.Module) -> str:  # noqa: ARG002
        return ""

    def config(self) -> dict[str, int | float | str]:
        return {"seed": self.seed, "dropout": self.dropout}


def make_points(seed: int, bad: int | None = None, dies_at: int | None = None, **options: Any) -> Points:
    """For the command line: `tests.trainers.points:make_points`.

    bad: a sample that is no number. dies_at: at which batch rank 1 is killed, unless torchrun has started it again.
    """
    points = Points(seed, bad=() if bad is None else (bad,), **options)
    if dies_at is not None and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        batch, left = points.batch, itertools.count(dies_at, -1)

        def fatal(indices: Any) -> Any:
            if next(left) == 0 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return batch(indices)

        points.batch = fatal  # type: ignore[method-assign]
    return points


class Ran(NamedTuple):
    """The outcome of a run on one rank.

    error: the name of the class of what it raised, and the message. log: what is in the file now.
    fingerprint: of the parameters. seen: the buffer, of which each rank has seen its own share. memory: bytes by kind.
    """

    error: str
    log: list[dict[str, Any]]
    fingerprint: str
    seen: float
    said: list[str]
    memory: dict[str, int] | None

    def with_words(self, changed: Callable[[str], str]) -> "Ran":
        """Return the same with other words in what it raised and said."""
        return self._replace(error=changed(self.error), said=[changed(text) for text in self.said])

    @property
    def losses(self) -> list[float]:
        """Of the log."""
        return [line["loss"] for line in self.log]


class Interrupted(Exception):  # noqa: N818  nothing is wrong
    """As if the program had been ended."""


def run(
    group: dist.ProcessGroup,
    config: TrainConfig,
    options: dict[str, Any] | None = None,
    until: int | None = None,
    meddle: Callable[[Trainer, int], None] = lambda _, __: None,
) -> Ran:
    """A run on this rank. until: end after so many steps without a word. meddle: done after every step."""
    said: list[str] = []
    error, mark, seen, done, memory = "", "", 0.0, 0, None
    try:
        trainer = Trainer(Points(config.seed, **(options or {})), config, group, say=said.append)
        done = trainer.first_step

        def after_step(_: str) -> None:
            nonlocal done
            done += 1
            meddle(trainer, done)
            if done == until:
                raise Interrupted

        try:
            trainer.train(after_step)
        finally:
            net: Any = trainer.train_step.model.model
            trainer.train_step.model.unshard()  # after an interruption parameters may be elsewhere
            mark, seen, memory = fingerprint(nn.ModuleList(net.children())), net.seen.item(), trainer.memory_bytes
            trainer.manager.close()
    except Interrupted:
        pass
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    dist.barrier(group)  # only now has rank 0 written all it will
    return Ran(error, read_log(config.output / "log.jsonl"), mark, seen, said, memory)


def config(output: Path, **rest: Any) -> TrainConfig:
    """Everything often: it is the seams that are to be tried."""
    return TrainConfig(output=output, **{"seed": 3, "save_every": 4, "log_every": 1, "strategy": "ring"} | rest)


class Training:
    """Runs of the task on the ranks of a pool, each in its own directory below `folder`."""

    def __init__(self, ranks: "RankPool", folder: Path) -> None:
        self._ranks, self.folder = ranks, folder

    def __call__(
        self,
        name: str = "run",
        num_ranks: int = 2,
        options: dict[str, Any] | None = None,
        until: int | None = None,
        run: Callable[..., Ran] = run,
        **settings: Any,
    ) -> list[Ran]:
        """Return the outcome on each rank, in whose words `folder` is FOLDER.

        settings: of `config`. run: called on each rank in place of `run`.
        """
        told = self._ranks.run(run, config(self.folder / name, **settings), options, until, num_ranks=num_ranks)
        return [each.with_words(lambda text: text.replace(str(self.folder), "FOLDER")) for each in told]
