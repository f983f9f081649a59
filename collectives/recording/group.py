"""`RecordingGroup`: a process group that sends nothing and records each call; `recording` makes torch use it."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup, HashStore
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

from collectives.calls import FUNCTIONS, Function, RecordedGroup, check_share, imitate, is_lent, name_of, record_group
from collectives.integrations import NAME as RING
from collectives.integrations import BackendOptions, RingGroup, carries_out
from collectives.recording.pretended_gpu import CudaGraph
from collectives.recording.recorder import Recorder
from collectives.recording.replacements import by_names, replaced, returning
from collectives.recording.without_values import MAX_FRACTIONS, is_unknown
from collectives.runtime import Work, writing_to
from ringsim.schedule import Collective
from ringsim.traces import Group, TraceCall

NAME = "recording"
_C10D = "torch.distributed.distributed_c10d"
DEVICES = ["cpu", "cuda"]


@contextmanager
def _not_counted(group: "RecordingGroup", _: object = None) -> Iterator[None]:
    with group._recorded.recorder.stopped(), torch.no_grad():
        yield


@carries_out(_not_counted)
class RecordingGroup(dist.ProcessGroup):
    """A process group whose calls end at once, with the results for ranks that all hold this rank's data."""

    def __init__(self, store: Any, rank: int, size: int, recorded: RecordedGroup) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store, self._recorded = store, recorded
        self._latest: Work | None = None  # since coalescing began, as it keeps its result
        fake = FakeProcessGroup._create_internal(rank, size)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in DEVICES:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, fake)
        record_group(self, recorded)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return NAME  # `dist.get_backend` returns the one that the program asked for

    def get_group_store(self) -> Any:
        return self._store

    def _note(
        self, name: str, size_bytes: int, inputs: list[Tensor], outputs: list[Tensor], how: Any = None, peer: int = -1
    ) -> Work:
        if CudaGraph.is_capturing:
            raise RuntimeError(
                "calls of a process group in a CUDAGraph cannot be recorded: capture what is between them"
            )
        tensors = outputs or inputs
        dtype = name_of(tensors[0].dtype) if tensors else "uint8"
        is_async = bool(getattr(how, "asyncOp", True))
        lent = len(inputs) == 1 and is_lent(inputs[0])
        call = TraceCall(name, size_bytes, dtype, self._recorded.index, is_async, peer=peer, is_lent=lent)
        recorder, rank, size = self._recorded.recorder, self.rank(), self.size()
        if name in ("send", "recv"):
            counterpart = replace(call, collective="recv" if name == "send" else "send", peer=(2 * rank - peer) % size)
            distance = (peer - rank if name == "send" else rank - peer) % size
            work = recorder.sendrecv(counterpart, distance, tensors) or recorder.call(call, tensors)
        else:
            work = recorder.call(call, tensors)
        if self._latest is not None:
            self._latest = work
        return work

    def _start_coalescing(self, _: torch.device) -> None:
        self._latest = Work.over([])

    def _end_coalescing(self, _: torch.device) -> Work:
        """Return the last call's work, since a group's calls end in order."""
        work, self._latest = self._latest, None
        return work or Work.over([])

    def carry_out(
        self, function: Function, opts: Any, output: Any = (), given: Any = (), *sizes: list[int]
    ) -> dist.Work:
        if function is FUNCTIONS["barrier"]:
            return self._note("barrier", 0, [], [], opts)
        if function.name == "all_gather_coalesced":
            output = zip(*output, strict=True)
        if function.name == "all_to_all_single" and not any(sizes) and "nccl" in dist.get_backend(self):
            # NCCL exchanges equal parts, and leaves what remains.
            output, given = (whole.view(-1)[: whole.numel() // self.size() * self.size()] for whole in (output, given))
        collective, rank, root = function.collective, self.rank(), opts.rootRank if function.root else -1
        outputs, inputs = _listed(output), _listed(output if function.is_in_place else given)
        pairs = [(outputs, inputs)]
        if function.is_in_place or function.is_coalesced:
            pairs = [(_listed(one), _listed(other)) for one, other in zip(outputs, inputs, strict=True)]
        elif any(sizes):
            expected, sent = sizes
            pairs = [(output.split(expected) if expected else outputs, given.split(sent) if sent else inputs)]
        elif isinstance(output, Tensor) and isinstance(given, Tensor):
            operands = (function.output, output), (function.input, given)
            share, whole = operands[::-1] if collective is Collective.ALL_GATHER else operands
            check_share(*share, *whole, 1 if collective is Collective.ALL_TO_ALL else self.size())
        outputs = [tensor for one in outputs for tensor in _listed(one)]
        size_bytes = _bytes(outputs if collective in (Collective.ALL_GATHER, Collective.SCATTER) else inputs)
        size_bytes *= self.size() if collective in (Collective.GATHER, Collective.SCATTER) else 1
        if root not in (-1, rank):
            inputs, outputs = (inputs, []) if function.root == "dst" else ([], outputs)
        else:
            with writing_to(outputs):
                for written, read in pairs:
                    op = getattr(opts, "reduceOp", None)
                    is_sum = collective is Collective.ALL_REDUCE and op == dist.ReduceOp.SUM
                    if is_sum and (part := self._only_part(read[0])) is not None:
                        imitate(Collective.ALL_GATHER, written, [part], None, rank, self.size())
                    else:
                        imitate(collective, written, read, op, rank, self.size())
        return self._note(collective.value, size_bytes, inputs, outputs, opts, root)

    def _only_part(self, tensor: Tensor) -> Tensor | None:
        """Return this rank's part of a small tensor if all other parts, and only these, are zero.

        Programs gather counts and pickled objects by the sum of such tensors.
        """
        size = self.size()
        if is_unknown(tensor) or tensor.numel() % size or not 0 < tensor.numel() <= MAX_FRACTIONS:
            return None
        with _disable_current_modes():
            parts = tensor.reshape(size, -1)
            return parts[self.rank()] if parts.any(1).nonzero().view(-1).tolist() == [self.rank()] else None

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:  # noqa: ARG002
        with _not_counted(self):
            return self._note("send", _bytes(tensors), tensors, [], peer=peer)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:  # noqa: ARG002
        with _not_counted(self):
            for tensor in tensors:
                tensor.zero_()  # in place of unknown data
            return self._note("recv", _bytes(tensors), [], tensors, peer=peer)

    def recv_anysource(self, *_: object) -> NoReturn:
        raise RuntimeError("a recorded rank has no peers, and so the program must name the one that it receives from")

    def monitored_barrier(self, *_: object, **__: object) -> None:
        dist.barrier(self)

    def split_group(self, new_ranks: list[int], *_: object, **__: object) -> Any:
        return _split_group({"parent_pg": self, "split_ranks": [new_ranks]})

    def merge_remote_group(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("a recorded rank has no peers, and so its group cannot be merged with a remote one")

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _enable_collectives_timing(self) -> None:
        """Change nothing: times are simulated."""


class RecordingRingGroup(RingGroup, RecordingGroup):
    """A group of the backend "ring" that records its calls, with the algorithms of its options."""

    def __init__(
        self, store: Any, rank: int, size: int, recorded: RecordedGroup, options: BackendOptions | None
    ) -> None:
        RecordingGroup.__init__(self, store, rank, size, recorded)
        self.is_shut_down = False
        self.options = options or BackendOptions()

    getBackendName = RecordingGroup.getBackendName  # noqa: N815  torch's name
    split_group = RecordingGroup.split_group  # type: ignore[assignment]

    def sum_sparse(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        return RecordingGroup.carry_out(self, FUNCTIONS["all_reduce"], opts, tensors)


class RecordingStore(HashStore):
    """A store, also for a TCPStore, in which nobody else writes, so that waiting for others soon fails."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        super().set_timeout(timedelta(seconds=1))

    set_timeout = returning(None)  # to which init_process_group would set the one of the group


def _listed(operand: Any) -> list[Any]:
    return [operand] if isinstance(operand, Tensor) else list(operand)


def _bytes(tensors: Sequence[Tensor]) -> int:
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise RuntimeError("calls of sparse tensors cannot be recorded: give embeddings sparse=False")
    return sum(tensor.nbytes for tensor in tensors)


@contextmanager
def recording(
    num_ranks: int, rank: int, recorder: Recorder, groups: list[Group], begin_rank: Any = None
) -> Iterator[None]:
    """Make this process `rank` of `num_ranks`: process groups of any backend made within the block record.

    groups: gets each new group. begin_rank: called before the first one, with whether the rank is recorded.
    """
    make = distributed_c10d._new_process_group_helper
    asked_for: list[str] = []  # the name of the backend of the group that is being made

    def create(options: Any, group_options: Any) -> RecordingGroup:
        ranks = options.global_ranks_in_group or range(num_ranks)
        groups.append(Group(tuple(ranks), asked_for[-1]))
        recorded = RecordedGroup(recorder, len(groups) - 1)
        of_group = options.store, options.group_rank, options.group_size, recorded
        return RecordingRingGroup(*of_group, group_options) if asked_for[-1] == RING else RecordingGroup(*of_group)

    def make_recording(size: int, group_rank: int, ranks: list[int], backend: Any, *rest: Any, **options: Any) -> Any:
        for name in str(backend).lower().split(","):
            if (name := name.rpartition(":")[2]) not in dist.Backend.backend_list:
                raise AssertionError(f"Unknown c10d backend type {name.upper()}")  # as torch says
        size, group_rank = (num_ranks, rank) if size < 0 else (size, group_rank)  # which MPI would know
        if begin_rank and not groups:
            begin_rank(group_rank == (rank if size == num_ranks else 0))
        if not ranks and (group_rank, size) != (rank, num_ranks):
            asked = (
                f"the program makes itself rank {group_rank} of {size}, and is recorded as rank {rank} of {num_ranks}"
            )
            raise RuntimeError(
                f"{asked}: give --ranks {size} --rank {group_rank}" if size else f"{asked}, without CUDA"
            )
        asked_for.append(str(backend))
        made = make(size, group_rank, ranks, dist.Backend(NAME), *rest, **options)
        if made[1] is not None:
            distributed_c10d._world.pg_map[made[0]] = (dist.Backend(backend), made[1])
        return made

    def meet(_: object, own_rank: int = -1, size: int = -1, **__: object) -> Iterator[tuple[Any, int, int]]:
        own_rank = int(os.environ["RANK"]) if own_rank < 0 else own_rank
        yield RecordingStore(), own_rank, int(os.environ["WORLD_SIZE"]) if size < 0 else size

    dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)
    instead = {
        f"{_C10D}._new_process_group_helper": make_recording,
        f"{_C10D}.rendezvous": meet,
        f"{_C10D}._store_based_barrier": returning(None),  # in the store, ranks would wait for others to join a group
        "torch.distributed.TCPStore": RecordingStore,
        "torch.futures.collect_all": recorder.collect_all,
        "torch.futures.wait_all": lambda futures: [future.wait() for future in futures],
        **{
            f"{module}.{name}": function for module in ("torch.distributed", _C10D) for name, function in _WITHOUT_PEERS
        },
    }
    with replaced(instead.items()):
        yield


def _leave_own_objects(function: str, given: dict[str, Any]) -> int | None:
    """Leave the objects that this rank sends itself; return the rank they come from."""
    objects: Any = given.get("object_list", given.get("scatter_object_output_list"))
    if given.get("scatter_object_input_list"):
        objects[0] = given["scatter_object_input_list"][dist.get_rank(given["group"])]
    group: Any = given["group"] or dist.group.WORLD
    source = given["src"], given["group_src"]
    is_source = source != (None, None) and dist.get_rank(group) == distributed_c10d._canonicalize_group_rank(
        group, *source
    )
    if any(value is None for value in objects) and not is_source:
        message = f"{function}: a recorded rank has no peers, and so gets None of their objects"
        warnings.warn(message, stacklevel=3)
    return given["src"] if function == "recv_object_list" else None


def _split_group(given: dict[str, Any]) -> Any:
    """Make the groups by `new_group`; torch splits communicators of NCCL in C++."""
    ranks = dist.get_process_group_ranks(given.get("parent_pg"))
    options: dict[str, Any] = {name: given.get(name) for name in ("timeout", "pg_options", "group_desc", "backend")}
    made = [dist.new_group([ranks[rank] for rank in part], **options) for part in given["split_ranks"]]
    return next((group for group in made if group is not dist.GroupMember.NON_GROUP_MEMBER), None)


# Only Gloo has a monitored barrier, and objects of a peer can be read only if it exists.
_OF_OBJECTS = dist.broadcast_object_list, dist.scatter_object_list, dist.recv_object_list
_WITHOUT_PEERS = [
    *(
        (function.__name__, by_names(function, partial(_leave_own_objects, function.__name__)))
        for function in _OF_OBJECTS
    ),
    ("monitored_barrier", lambda group=None, *_, **__: dist.barrier(group)),
    ("split_group", by_names(dist.split_group, _split_group)),
]
