"""`empty`: tensors that lie where the other ranks of the host can read them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from collectives.calls.call import GroupRuntime
from collectives.runtime import CPU, Sharing, has_backend, record_as_lent, recorded_group, resolve, state_of
from collectives.shared_memory import LocalRanks


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return an uninitialised tensor on the CPU which collectives of `group` leave where it is.

    The ranks of a host read and add it, and what is made of it, in each other's memory; of a tensor that torch has made
    they first copy what they send to memory that they share. Results are the same bits. A collective on such a tensor,
    or on a part of one, returns when all ranks of the host have read there.

    The memory is given back when the tensor and all views of it have gone. Its storage cannot be resized, and a process
    that is forked from the rank also shares it. It is a tensor like any other if the group shares no memory
    (`use_transport`), and if the address space or the size of files is limited (`ulimit -v`, `ulimit -f`).

    size, dtype: as in `torch.empty`.
    group: the default group if None. The first time all its ranks must call this, or another collective; after that
    each may do by itself.

    Raises ValueError if there is no such group, RuntimeError if there is no memory.

        >>> tensor = collectives.empty(2, 3).fill_(rank)
        >>> collectives.all_reduce(tensor)
        >>> tensor[0]
        tensor([1., 1., 1.])
    """
    group, dtype = resolve(group), dtype or torch.get_default_dtype()
    # torch knows what can be a size; its stubs do not know that a sequence can.
    like = torch.empty(*size, dtype=dtype, device="meta")  # type: ignore[arg-type]
    if recorded_group(group) is not None:
        return record_as_lent(torch.empty(like.shape, dtype=dtype, device=CPU))
    local = _local_ranks(group) if like.nbytes and has_backend(group, CPU) else None
    try:
        memory = local.heap.new(like.nbytes) if local is not None else None
    except OSError as error:
        raise RuntimeError(f"a tensor of {like.nbytes} bytes that ranks share: {error}") from error
    if memory is None:
        return torch.empty(like.shape, dtype=dtype, device=CPU)
    return memory.view(dtype).view(like.shape)


def _local_ranks(group: dist.ProcessGroup) -> LocalRanks | None:
    """Return the ranks that share memory with this one, which all find out in their turn."""
    sharing = state_of(group).part(Sharing)
    if not sharing.is_known:
        state_of(group).part(GroupRuntime).queue.run(lambda: sharing.of(group))
    return sharing.of(group).local
