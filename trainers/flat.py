"""`FlatGradients`: all gradients of a model in one vector, so that one collective can carry them."""

import torch
from torch import nn


class FlatGradients:
    """A vector with room for every gradient, in the order of the parameters, allocated once.

    vector: (num_elements + padding,), the padding zero; its length is a multiple of `multiple_of`.

    Raises ValueError if the parameters do not all have one dtype and device.
    """

    def __init__(self, model: nn.Module, multiple_of: int = 1) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            raise ValueError(f"parameters of {len(kinds)} dtypes and devices {sorted(map(str, kinds))}: needs one")
        num_elements = sum(p.numel() for p in self._parameters)
        length = -(-num_elements // multiple_of) * multiple_of
        self.vector = self._parameters[0].new_zeros(length)
        pieces = self.vector[:num_elements].split([p.numel() for p in self._parameters])
        self._views = [piece.view(p.shape) for piece, p in zip(pieces, self._parameters, strict=True)]

    @torch.no_grad()
    def pack(self) -> torch.Tensor:
        """Copy every gradient into the vector (zeros where there is none) and return it."""
        for view, parameter in zip(self._views, self._parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        return self.vector

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy the vector back into the gradients."""
        for view, parameter in zip(self._views, self._parameters, strict=True):
            if parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)
