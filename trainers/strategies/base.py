"""`Strategy`: what `DataParallel` asks of a way to synchronise gradients."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Strategy:
    """What all have in common; by itself it synchronises nothing.

    module: what is called in place of the model: the model itself, or a wrapper of it.
    parameters: those that are trained, in their order.
    gather_s: how long the optimizer's last step has taken to gather parameters, where ranks step shares of them.
    """

    gather_s = 0.0

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def begin(self) -> None:
        """A forward pass begins: forget what a backward pass that failed may have left."""

    def ready(self, index: int) -> None:
        """In a backward pass that is to be synchronised: the gradient of `parameters[index]` is there."""

    def finish(self) -> None:
        """Such a backward pass ends: make every gradient the mean over all ranks."""
        self.synchronise()

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks, whatever backward passes have left there."""

    def hold(self, held: bool) -> None:
        """Until told otherwise, backward passes are to be synchronised (not held) or not."""

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """What `make` makes of the parameters that this rank is to step."""
        return make(self.parameters)

    def saved_like(self) -> Sequence[torch.Tensor]:
        """Of which shapes and dtypes the optimizer's state is, as it is saved: those of what it steps, all ranks'."""
        return self.parameters

    def gradient_norm(self) -> torch.Tensor:
        """The global norm of the synchronised gradients, also after the optimizer's step; collective."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the synchronised gradients down to a global norm of at most `max_norm`; returns what it was."""
        return nn.utils.clip_grad_norm_(self.parameters, max_norm)
