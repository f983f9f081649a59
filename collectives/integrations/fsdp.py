"""`FSDPAllGather`, `FSDPReduceScatter`: FSDP2's communication on our schedules, by module, on any process group.

    model = fully_shard(model)
    model.set_custom_all_gather(collectives.FSDPAllGather())
    model.set_custom_reduce_scatter(collectives.FSDPReduceScatter(wire=torch.bfloat16))

They apply to one module, without its submodules: give each `fully_shard`ed module its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_api as api  # where torch 2.13 has them; it exports them nowhere

from collectives.calls import Op, functions
from collectives.integrations.backend import untraced
from collectives.runtime import Work


class _Allocating:
    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return fresh memory for each call: gathered data is still read when the next gathering begins."""
        return torch.empty(*size, dtype=dtype, device=device)


@untraced
@dataclass(frozen=True)
class FSDPAllGather(_Allocating, api.AllGather):
    """The all-gather of a module's parameters in FSDP2, on our schedules: for `set_custom_all_gather`.

    >>> collectives.FSDPAllGather(algorithm="direct")
    FSDPAllGather(algorithm='direct')
    """

    algorithm: str = "ring"

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Work | None:
        return functions.all_gather_into_tensor(output_tensor, input_tensor, group, async_op, algorithm=self.algorithm)


@untraced
@dataclass(frozen=True)
class FSDPReduceScatter(_Allocating, api.ReduceScatter):
    """The reduce-scatter of a module's gradients in FSDP2, on our schedules: for `set_custom_reduce_scatter`.

    wire: as in `reduce_scatter_tensor`.

        >>> collectives.FSDPReduceScatter(wire=torch.bfloat16)
        FSDPReduceScatter(algorithm='ring', wire=torch.bfloat16)
    """

    algorithm: str = "ring"
    wire: torch.dtype | None = None

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Op,
        async_op: bool = False,
    ) -> Work | None:
        return functions.reduce_scatter_tensor(
            output_tensor, input_tensor, op, group, async_op, algorithm=self.algorithm, wire=self.wire
        )
