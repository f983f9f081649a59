"""Many tensors in one vector, so that one collective can carry them; allocated once."""

from collections.abc import Sequence

import torch
from torch import nn

from trainers.strategies.grouping import by_dtype


class FlatVector:
    """Room for tensors of one dtype and device, one after the other, and for `spare` more elements behind them.

    vector: (num_elements + spare + padding,), zeros to begin with; its length is a multiple of `multiple_of`.
    views: of each tensor its part of the vector, in its shape.
    spare: (spare,).
    """

    def __init__(self, tensors: Sequence[torch.Tensor], spare: int = 0, multiple_of: int = 1) -> None:
        self.num_elements = sum(tensor.numel() for tensor in tensors)
        length = -(-(self.num_elements + spare) // multiple_of) * multiple_of
        self.vector = tensors[0].detach().new_zeros(length)
        pieces = self.vector[: self.num_elements].split([tensor.numel() for tensor in tensors])
        self.views = [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
        self.spare = self.vector[self.num_elements : self.num_elements + spare]


class FlatGradients(FlatVector):
    """The gradients of some parameters, and behind them a mark for each: not 0 where some rank has a gradient.

    From the first synchronisation on the gradients themselves lie here: nothing is copied back. Without the marks a
    parameter that no rank has used would get a gradient of zeros, which an optimizer with weight decay takes for one.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], multiple_of: int = 1) -> None:
        super().__init__(parameters, len(parameters), multiple_of)
        self._parameters = list(parameters)
        self._absent: list[int] = []

    def __len__(self) -> int:
        return len(self._parameters)

    def begin(self) -> None:
        """Be ready for the gradients of the next backward pass."""
        self._absent.clear()
        self.spare.fill_(1)

    @torch.no_grad()
    def take(self, index: int) -> None:
        """Bring the gradient of that parameter here, and let it stay here; zeros if there is none."""
        parameter, view = self._parameters[index], self.views[index]
        if parameter.grad is None:
            view.zero_()
            self.spare[index] = 0
            self._absent.append(index)
        elif parameter.grad is not view:  # else the backward pass has added right here
            view.copy_(parameter.grad)
            parameter.grad = view

    def pack(self) -> torch.Tensor:
        """Take every gradient; returns the vector."""
        self.begin()
        for index in range(len(self)):
            self.take(index)
        return self.vector

    def unpack(self) -> None:
        """After the reduction: give parameters without a gradient that of the other ranks, if one of them has any."""
        for index in self._absent:
            if self.spare[index].item() != 0:
                self._parameters[index].grad = self.views[index]


def flat_gradients(parameters: Sequence[nn.Parameter], multiple_of: int = 1) -> list[FlatGradients]:
    """One for each dtype, in the order in which they appear."""
    return [FlatGradients(some, multiple_of) for some in by_dtype(parameters)]
