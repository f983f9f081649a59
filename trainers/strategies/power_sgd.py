"""PowerSGD: send gradients as products of two thin matrices, and add the error to the next gradients."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies import RANK
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import FlatVector, by_dtype, copy_saved

SEED = 0  # of the first right factors, which must be the same on all ranks


class LowRank:
    """One gradient as a matrix (rows, columns), approximated by left @ right.T; `error` is the rest.

    left: (rows, rank), right: (columns, rank), views of the sent vectors; `right` is kept.
    """

    def __init__(self, parameter: nn.Parameter, left: torch.Tensor, right: torch.Tensor) -> None:
        self._parameter, self._left, self._right = parameter, left, right
        self.error = torch.zeros(len(left), len(right), dtype=parameter.dtype, device=parameter.device)

    def find_left(self) -> None:
        """Add the gradient to `error`, the matrix to send, and compute the left factor."""
        if self._parameter.grad is not None:
            self.error.add_(self._parameter.grad.reshape(self.error.shape))
        torch.mm(self.error, self._right, out=self._left)

    def find_right(self) -> None:
        """Orthonormalise the columns of the mean left factor, and compute the right factor."""
        precise = self._left if self._left.dtype == torch.float64 else self._left.float()  # there is no QR of bfloat16
        self._left.copy_(torch.linalg.qr(precise).Q)
        torch.mm(self.error.T, self._left, out=self._right)

    def multiply(self) -> None:
        """Set the gradient to the product of the mean factors; the rest stays in `error`."""
        gradient = self._parameter.grad
        if gradient is None or not gradient.is_contiguous():
            gradient = self._parameter.grad = torch.empty_like(self._parameter, memory_format=torch.contiguous_format)
        self.error.sub_(torch.mm(self._left, self._right.T, out=gradient.view(self.error.shape)))


class LowRankGradients:
    """The gradients of one dtype in two vectors, all-reduced one after the other.

    lefts: left factors, uncompressed gradients, and a mark per parameter. rights: right factors.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int) -> None:
        compressed = [p for p in parameters if _is_worth_it(p, rank)]
        self._whole = [p for p in parameters if not _is_worth_it(p, rank)]
        self._order = [*compressed, *self._whole]
        self._used: list[LowRank] = []
        lefts = [torch.Size((len(p), rank)) for p in compressed]
        rights = [torch.Size((p.numel() // len(p), rank)) for p in compressed]
        self.lefts = FlatVector([*lefts, *(p.shape for p in self._whole)], parameters[0], spare=len(parameters))
        self.rights = FlatVector(rights, parameters[0])
        parts = zip(compressed, self.lefts.views, self.rights.views, strict=False)
        self.matrices = [LowRank(*part) for part in parts]
        generator = torch.Generator().manual_seed(SEED)
        self.rights.vector.copy_(torch.randn(len(self.rights.vector), generator=generator))

    def pack(self) -> torch.Tensor:
        for mark, parameter in zip(self.lefts.spare, self._order, strict=True):
            mark.fill_(float(parameter.grad is not None))
        for matrix in self.matrices:
            matrix.find_left()
        for parameter, view in zip(self._whole, self.lefts.views[len(self.matrices) :], strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:  # else the backward pass has added right here
                view.copy_(parameter.grad)
        return self.lefts.vector

    def pack_rights(self) -> torch.Tensor:
        """Unpack the uncompressed gradients of the averaged `lefts`; fill and return `rights`."""
        used = [mark != 0 for mark in self.lefts.spare.tolist()]  # by some rank
        self._used = [matrix for matrix, is_used in zip(self.matrices, used, strict=False) if is_used]
        whole = [*zip(self._order, self.lefts.views, used, strict=True)][len(self.matrices) :]
        for parameter, view, is_used in whole:
            if is_used:
                parameter.grad = view
        for matrix in self._used:
            matrix.find_right()
        return self.rights.vector

    def unpack(self) -> None:
        for matrix in self._used:
            matrix.multiply()


def _is_worth_it(parameter: nn.Parameter, rank: int) -> bool:
    """Whether the factors are smaller than the gradient; False for float16, in which factors may overflow."""
    if parameter.dim() < 2 or not parameter.is_floating_point() or parameter.dtype == torch.float16:
        return False
    rows, elements = len(parameter), parameter.numel()
    return elements > 0 and (rows + elements // rows) * rank < elements


class PowerSgd(Strategy):
    """Two all-reduces of rank * (rows + columns) numbers per matrix instead of one of rows * columns.

    A rank sends the product of its gradient and a thin matrix. All ranks orthonormalise the mean, and multiply their
    own gradients by it.

    All ranks need the same kind of processor, because each multiplies the factors.

    Source: Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    algorithms 1 and 2.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, rank: int = RANK.example) -> None:
        super().__init__(model, group)
        self._gradients = [LowRankGradients(some, rank) for some in by_dtype(self.parameters)]

    @torch.no_grad()
    def synchronise(self) -> None:
        for gradients in self._gradients:
            collectives.all_reduce(gradients.pack(), dist.ReduceOp.AVG, self.group)
            if len(rights := gradients.pack_rights()):
                collectives.all_reduce(rights, dist.ReduceOp.AVG, self.group)
            gradients.unpack()

    def state_dict(self) -> dict[str, Any]:
        """Return the errors; rank 0 adds the right factors, equal on all ranks."""
        return {"errors": self._errors(), "rights": self._rights() if self.group.rank() == 0 else []}

    def _errors(self) -> list[torch.Tensor]:
        return [matrix.error for gradients in self._gradients for matrix in gradients.matrices]

    def _rights(self) -> list[torch.Tensor]:
        return [gradients.rights.vector for gradients in self._gradients if gradients.matrices]

    @torch.no_grad()
    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        copy_saved(self._errors(), states[self.group.rank()]["errors"])
        copy_saved(self._rights(), states[0]["rights"])
