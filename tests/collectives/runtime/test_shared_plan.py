"""Ranks copy and add over shared memory what the simulator counts, transfer by transfer."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

import collectives
from collectives.runtime import Event, Executor, RunOperands, SharedMemoryTransport
from collectives.runtime.instructions import portion_bytes
from collectives.shared_memory import CACHE_LINE
from ringsim.registry import ALGORITHMS, build_proved
from ringsim.schedule import Collective, Schedule, memory_passes
from tests.collectives.shared_groups import kept_group
from tests.collectives.test_message_sizes import calls_of
from tests.ranks import RankPool

SLOT = 2**20
PLACE = SharedMemoryTransport.place
PLACED = Executor._placed
LENGTH = 8 * 9 * 5 * 13  # each rank count's shares are equal; the chunks of a share differ in length


class Pass(NamedTuple):
    """Memory that one transfer makes one of its two ranks go through."""

    kind: str
    step: int
    src: int
    dst: int
    chunk: int
    num_bytes: int


class Counting(TorchDispatchMode):
    """Notes every operation on tensors that makes or changes one, with the number of its transfer in the log.

    A rank notes a send before it copies the chunk to where others read it, and a receive when it has been applied.
    """

    def __init__(self, log: list[Event]) -> None:
        super().__init__()
        self.log, self.is_publishing = log, False
        self.notes: list[tuple[int, str, int]] = []

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        is_view = any(given.alias_info and not given.alias_info.is_write for given in function._schema.returns)
        if not is_view and not any(name in str(function) for name in ("empty", "from_file")):  # which move nothing
            name = str(function).removeprefix("aten.")
            if name == "add.out":  # three places, or two
                name = "added in place" if result.data_ptr() == args[0].data_ptr() else "added apart"
            name = {"copy_.default": "copied", "add_.Tensor": "added in place"}.get(name, name)
            self.notes.append((len(self.log) - self.is_publishing, name, result.nbytes))
        return result


def call_of(collective: Collective, name: str, group: dist.ProcessGroup, is_lent: bool) -> Callable[[], object]:
    """One call of the collective, where nothing has to be copied before the first transfer or after the last."""
    whole = torch.arange(LENGTH, dtype=torch.float32) + group.rank()
    if is_lent:
        whole = collectives.empty(LENGTH, group=group).copy_(whole)
    share = whole.view(group.size(), -1)[group.rank()]
    output, at_root = torch.empty(len(share)), LENGTH if group.rank() == 0 else 0
    if collective.is_whole:
        own = output if collective is Collective.REDUCE_SCATTER else share
        return calls_of(whole, own, group, name)[collective]
    executor = Executor(build_proved(collective, name, group.size()), group)
    given, result = {
        Collective.GATHER: (share, torch.empty(at_root)),
        Collective.SCATTER: (whole[:at_root], output),
        Collective.ALL_TO_ALL: (whole, torch.empty(LENGTH)),
    }[collective]
    return lambda: executor.run(result, source=given)


def passes_of_run(_: dist.ProcessGroup, collective: Collective, name: str, num_ranks: int, is_lent: bool) -> list[Pass]:
    """Return the passes of this rank, as its tensors are operated on in a call."""
    group = kept_group(num_ranks, "auto", (0,) * 8)
    if group is None:
        return []
    call = call_of(collective, name, group, is_lent)
    call()  # the first time ranks compare their calls
    log: list[Event] = []
    counting = Counting(log)

    def noted(transport: SharedMemoryTransport, index: int, number: int) -> int:
        counting.is_publishing = True
        location = PLACE(transport, index, number)
        counting.is_publishing = False
        return location

    def placed(executor: Executor, *arguments: Any) -> Any:
        """A rank's own block is copied on no transfer's account."""
        before = len(counting.notes)
        found = PLACED(executor, *arguments)
        del counting.notes[before:]
        return found

    carry_out = Executor.carry_out

    def logging(executor: Executor, operands: RunOperands) -> None:
        carry_out(executor, replace(operands, log=log))

    logged = mock.patch.object(Executor, "carry_out", logging)
    own = mock.patch.object(Executor, "_placed", placed)
    with logged, own, mock.patch.object(SharedMemoryTransport, "place", noted), counting:
        call()
    passes = []
    for number, kind, num_bytes in counting.notes:
        if number == len(log):
            passes.append(Pass(f"{kind} after the last transfer", -1, -1, -1, -1, num_bytes))
            continue
        event, rank = log[number], group.rank()
        src, dst, copied = (rank, event.peer, "published") if event.kind == "sent" else (event.peer, rank, "taken")
        passes.append(Pass(copied if kind == "copied" else kind, event.step, src, dst, event.chunk, num_bytes))
    return passes


def passes_counted(schedule: Schedule, is_lent: bool) -> Iterator[Pass]:
    """Return the passes of all ranks that the simulator charges."""
    passes = memory_passes(schedule, is_lent=is_lent)
    bounds = schedule.bounds(LENGTH * schedule.collective.num_tensors(schedule.num_ranks))
    transfers = [(number, transfer) for number, step in enumerate(schedule.steps) for transfer in step]
    for row, (number, transfer) in enumerate(transfers):
        num_bytes = 4 * int(bounds[transfer.chunk + 1] - bounds[transfer.chunk])
        kinds = ["published"] * bool(passes.published[row]) + ["taken"] * bool(passes.taken[row])
        if transfer.reduce:
            kinds.append("added apart" if passes.apart[row] else "added in place")
        for kind in kinds:
            yield Pass(kind, number, transfer.src, transfer.dst, transfer.chunk, num_bytes)


@pytest.fixture(scope="module")
def eight() -> Iterator[RankPool]:
    """Eight ranks, of which a case uses the first few."""
    with RankPool(8) as pool:
        yield pool


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS, ids=lambda value: getattr(value, "value", value))
@pytest.mark.parametrize("is_lent", [False, True], ids=["", "lent"])
def test_the_simulator_counts_what_a_call_does(
    eight: RankPool, is_lent: bool, collective: Collective, name: str, num_ranks: int
) -> None:
    """Every operation on tensors of every rank, and how much of a slot is used."""
    schedule = build_proved(collective, name, num_ranks, 4 * LENGTH)
    by_rank = eight.run(passes_of_run, collective, name, num_ranks, is_lent)
    done, counted = Counter(one for rank in by_rank for one in rank), Counter(passes_counted(schedule, is_lent))
    assert sorted((done - counted).elements()) == [], "done, and not counted"
    assert sorted((counted - done).elements()) == [], "counted, and not done"
    if is_lent and (collective, name) == (Collective.ALL_REDUCE, "ring"):  # all stays where it is until it is read
        assert not any(one.kind == "published" for one in counted)
    fits = SLOT // max(memory_passes(schedule).most_published, 1) // CACHE_LINE * CACHE_LINE
    assert portion_bytes(schedule, SLOT, on_one_host=True) == fits
