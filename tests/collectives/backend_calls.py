"""Each call of torch.distributed's once: cases to be run on any process group."""

import datetime
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.collectives.runtime.test_executor import data

Group = dist.ProcessGroup
Tensors = list[torch.Tensor]


def own(group: Group, length: int = 12, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Data of the rank's own."""
    return data(group.rank(), length, dtype)


def rooms(group: Group) -> Tensors:
    """Empty tensors, one for each rank."""
    return [torch.zeros(12) for _ in range(group.size())]


def all_reduce(group: Group) -> Tensors:
    """In place; of real and complex numbers, and of the largest."""
    dist.all_reduce(real := own(group), group=group)
    dist.all_reduce(complexes := own(group, dtype=torch.complex64), group=group)
    dist.all_reduce(largest := own(group), dist.ReduceOp.MAX, group)
    return [real, complexes, largest]


def all_reduce_coalesced(group: Group) -> Tensors:
    """Three tensors at once, one of them with strides of its own."""
    tensors = [own(group, 5), own(group, 12).view(3, 4).t(), own(group, 1)]
    dist.all_reduce_coalesced(tensors, group=group)
    return tensors


def all_gather_coalesced(group: Group) -> Tensors:
    """Two tensors at once, of other lengths."""
    gathered = [[torch.zeros(5), torch.zeros(3)] for _ in range(group.size())]
    group.allgather_coalesced(gathered, [own(group, 5), own(group, 3)]).wait()
    return [tensor for of_rank in gathered for tensor in of_rank]


def coalescing_manager(group: Group) -> Tensors:
    """Three kinds of calls, each gathered into one."""
    reduced, shares = [own(group, 5), own(group, 3)], [torch.zeros(12), torch.zeros(12)]
    wholes = [torch.zeros(12 * group.size()) for _ in shares]
    with dist._coalescing_manager(group):
        for each in reduced:
            dist.all_reduce(each, group=group)
    with dist._coalescing_manager(group):
        for share in shares:
            dist.reduce_scatter_tensor(share, own(group, 12 * group.size()), group=group)
    with dist._coalescing_manager(group):
        for whole in wholes:
            dist.all_gather_into_tensor(whole, own(group), group=group)
    return [*reduced, *shares, *wholes]


def reduce_and_broadcast(group: Group) -> Tensors:
    """To the last rank, whose result alone is defined, and from it."""
    last = group.size() - 1
    dist.reduce(total := own(group), group=group, group_dst=last)
    dist.broadcast(copied := own(group), group=group, group_src=last)
    return [total, copied] if group.rank() == last else [copied]


def shares(group: Group) -> Tensors:
    """Gathered into a list and into one tensor, and scattered sums from a list and from one tensor."""
    length = 12 * group.size()
    dist.all_gather(gathered := rooms(group), own(group), group=group)
    dist.all_gather_into_tensor(whole := torch.zeros(length), own(group), group=group)
    dist.reduce_scatter(of_list := torch.zeros(12), list(own(group, length).chunk(group.size())), group=group)
    dist.reduce_scatter_tensor(of_tensor := torch.zeros(12), own(group, length), group=group)
    return [*gathered, whole, of_list, of_tensor]


def single(group: Group) -> Tensors:
    """By the names of torch 2.13, at once and later; gathered into one tensor, and scattered sums from one."""
    whole, share, length = torch.zeros(12 * group.size()), torch.zeros(12), 12 * group.size()
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    gather(whole, own(group), group)
    scatter(share, own(group, length), dist.ReduceOp.MAX, group)
    works = [gather(later := torch.zeros(length), own(group), group, True)]
    works.append(scatter(part := torch.zeros(12), own(group, length), group=group, async_op=True))
    for work in works:
        work.wait()
    return [whole, share, later, part]


def functional_collectives(group: Group) -> Tensors:
    """Those that compiled programs and DTensor use; called from C++."""
    tensor = own(group, 4 * group.size())
    results = [
        functional.all_reduce(tensor, "sum", group),
        functional.all_gather_tensor(tensor, 0, group),
        functional.reduce_scatter_tensor(tensor, "sum", 0, group),
        functional.broadcast(tensor, 0, group),
    ]
    return [functional.wait_tensor(each) for each in results]


def objects(group: Group) -> Tensors:
    """Anything that can be pickled."""
    gathered: list = [None] * group.size()
    dist.all_gather_object(gathered, {"rank": group.rank()}, group=group)
    lists = [gathered if group.rank() == 0 else None]
    dist.broadcast_object_list(lists, group_src=0, group=group)
    return [torch.tensor([each["rank"] for each in (lists[0] or [])])]


def barrier(group: Group) -> Tensors:
    """Returns on all ranks; also with a timeout."""
    dist.barrier(group)
    dist.barrier(group, timeout=datetime.timedelta(seconds=5))
    return []


def send_and_receive(group: Group) -> Tensors:
    """Round a ring, batched."""
    arriving, right, left = torch.zeros(12), (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    if group.size() > 1:
        sent = dist.P2POp(dist.isend, own(group), group=group, group_peer=right)
        received = dist.P2POp(dist.irecv, arriving, group=group, group_peer=left)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
    return [arriving]


def gather_and_scatter(group: Group) -> Tensors:
    """To the first rank and back."""
    first, gathered, back = group.rank() == 0, rooms(group), torch.zeros(12)
    dist.gather(own(group), gathered if first else None, group=group, group_dst=0)
    dist.scatter(back, gathered if first else None, group=group, group_src=0)
    return [back]


def all_to_all(group: Group) -> Tensors:
    """In one tensor, of equal blocks and of uneven ones, rank 0's empty; and in lists."""
    length, ranks = 12 * group.size(), range(group.size())
    dist.all_to_all_single(whole := torch.zeros(length), own(group, length), group=group)
    dist.all_to_all(arrived := rooms(group), list(own(group, length).chunk(group.size())), group=group)
    uneven, expects = torch.zeros(group.rank() * group.size()), [group.rank()] * group.size()
    dist.all_to_all_single(uneven, own(group, sum(ranks)), expects, list(ranks), group)
    return [whole, uneven, *arrived]


def sparse_all_reduce(group: Group) -> Tensors:
    """Of a tensor in coordinates."""
    tensor = torch.sparse_coo_tensor([[group.rank(), 5]], [1.0, 2.0], (6,))
    dist.all_reduce(tensor, group=group)
    return [tensor.to_dense()]


# By our schedules, and which collectives they are.
def monitored_barrier(group: Group) -> Tensors:
    """With the timeout of the group, and with its own."""
    dist.monitored_barrier(group)
    dist.monitored_barrier(group, datetime.timedelta(seconds=60), wait_all_ranks=True)
    return []


def methods_of_the_group(group: Group) -> Tensors:
    """The group's own methods, in the forms without options: a tensor, a root, an operation."""
    total, largest, copied, gathered = own(group), own(group), own(group), rooms(group)
    group.allreduce([total]).wait()
    group.allreduce(largest.view(1, 12), dist.ReduceOp.MAX).wait()
    group.broadcast(copied, root=group.size() - 1).wait()
    group.allgather(gathered, own(group)).wait()
    group.barrier(timeout=datetime.timedelta(seconds=60)).wait()
    return [total, largest, copied, *gathered]


OURS: dict[Callable[[Group], Tensors], list[str]] = {
    all_reduce: ["all_reduce"] * 3,
    all_reduce_coalesced: ["all_reduce"],
    all_gather_coalesced: ["all_gather"] * 2,
    coalescing_manager: ["all_reduce", *["reduce_scatter"] * 2, *["all_gather"] * 2],
    reduce_and_broadcast: ["reduce", "broadcast"],
    shares: ["all_gather"] * 2 + ["reduce_scatter"] * 2,
    single: ["all_gather", "reduce_scatter"] * 2,
    gather_and_scatter: ["gather", "scatter"],
    all_to_all: ["all_to_all"] * 3,
    functional_collectives: ["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
    objects: ["all_gather"] * 2 + ["broadcast"] * 2,
    barrier: ["all_reduce"] * 2,
    methods_of_the_group: ["all_reduce", "all_reduce", "broadcast", "all_gather", "all_reduce"],
}
# By the Gloo inside.
GLOOS = [monitored_barrier, send_and_receive, sparse_all_reduce]
