"""`ScheduleRun`: one execution of a schedule on one rank, and the hooks that see its instructions."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch.distributed as dist
from msgspec import Struct
from torch.autograd import profiler

from collectives.runtime.chunk_transports import ChunkTransport
from collectives.runtime.errors import CollectiveError, first_line, flight_record_of
from collectives.runtime.instructions import Action, Actions, Opcode, RankInstruction, RankPart
from collectives.shared_memory import PeerError

Hook = Callable[[Actions, RankPart], Actions]

# Opcodes that take time; posting and reposting a receive do not.
NAMES = {
    Opcode.WAIT_RECV: "receive chunk {chunk} from rank {peer}",
    Opcode.APPLY: "apply chunk {chunk} from rank {peer}",
    Opcode.SEND: "send chunk {chunk} to rank {peer}",
    Opcode.WAIT_SEND: "wait until chunk {chunk} has left for rank {peer}",
}


class Event(NamedTuple):
    """One transfer of a rank at one moment, as the `log` of `execute` holds it.

    kind: "sent" when a send is issued, "applied" when a receive has been applied.
    step, chunk: of the schedule. peer: a rank of the group.
    time_s: of `time.perf_counter`, which on Linux is one clock for all processes of a machine.

        >>> log = []
        >>> collectives.execute(ringsim.ring_all_reduce(2), torch.ones(4), log=log)
        >>> sorted((event.kind, event.step) for event in log)
        [('applied', 0), ('applied', 1), ('sent', 0), ('sent', 1)]
    """

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


def logging_to(log: list[Event]) -> Hook:
    """Return a hook that logs sends before they are issued, and receives after they are applied."""

    def hook(actions: Actions, part: RankPart) -> Actions:
        send, apply = actions[Opcode.SEND], actions[Opcode.APPLY]

        def note(opcode: Opcode, index: int) -> None:
            transfer = part.transfer(opcode, index)
            kind, peer = "sent" if opcode is Opcode.SEND else "applied", transfer.peer
            log.append(Event(kind, transfer.step, peer, transfer.chunk, time.perf_counter()))

        def logged_send(index: int) -> None:
            note(Opcode.SEND, index)  # before it is: a receiver that has a core may be done before this rank goes on
            send(index)

        def logged_apply(index: int) -> None:
            apply(index)
            note(Opcode.APPLY, index)

        changed = list(actions)
        changed[Opcode.SEND], changed[Opcode.APPLY] = logged_send, logged_apply
        return changed

    return hook


def profiling() -> bool:
    """Whether torch.profiler is on in this process, in any thread."""
    return profiler._is_profiler_enabled


def span(name: str) -> AbstractContextManager[object]:
    """Return a context that appears under `name` in the profiler's timeline, if the profiler is on."""
    return profiler.record_function(name) if profiling() else nullcontext()


def naming_spans(actions: Actions, part: RankPart) -> Actions:
    """Wrap each action in a profiler span that names its transfer; a `Hook`."""
    return [_named(Opcode(number), action, part) for number, action in enumerate(actions)]


def _named(opcode: Opcode, action: Action, part: RankPart) -> Action:
    start = f"{part.schedule.algorithm} {part.schedule.collective.value}: step"

    def name_of(index: int) -> str:
        if opcode is Opcode.LAUNCH:
            return f"{start} {index}, launch its sends and receives"
        transfer = part.transfer(opcode, index)
        return f"{start} {transfer.step}, {NAMES[opcode].format(chunk=transfer.chunk, peer=transfer.peer)}"

    def named_action(index: int) -> None:
        with profiler.record_function(name_of(index)):
            action(index)

    return named_action if opcode in NAMES or opcode is Opcode.LAUNCH else action


class ScheduleRun(Struct):
    """One run of a rank's instructions, or one portion of it.

    hooks: each gets the actions by opcode and returns the actions to execute.
    """

    group: dist.ProcessGroup
    transport: ChunkTransport
    hooks: Sequence[Hook] = ()

    @property
    def part(self) -> RankPart:
        return self.transport.part

    def run(self) -> None:
        """Execute the instructions. Raises CollectiveError if a peer fails or is late.

        The caller tells the other ranks of this host.
        """
        actions: Actions = self.transport.actions
        for hook in self.hooks:
            actions = hook(actions, self.part)
        self._do(self.transport.open, "before step 0")
        self._execute(actions)
        self.transport.memory.finish()
        self._do(self.transport.close, "after the last step")

    def _do(self, what: Callable[[], None], when: str) -> None:
        try:
            what()
        except RuntimeError as error:
            record = flight_record_of(self.part)
            peer = error.peer if isinstance(error, PeerError) else None
            message = f"rank {self.group.rank()}: {self.part.schedule}: {when}: {error} ({record})"
            raise CollectiveError(message, record, peer) from error

    def _execute(self, actions: Actions) -> None:
        opcode = index = -1
        try:
            for opcode, index in self.transport.instructions:
                actions[opcode](index)
        except RuntimeError as error:
            if opcode == Opcode.APPLY:
                raise  # that was no transfer
            raise self._failure(RankInstruction(Opcode(opcode), index), error) from error

    def _failure(self, failed: RankInstruction, error: RuntimeError) -> CollectiveError:
        record, peers = flight_record_of(self.part, failed), self._peers(failed)
        doing = f"rank {self.group.rank()}: {self.part.schedule}: {self.doing(*failed)}"
        peer = error.peer if isinstance(error, PeerError) else peers[0] if len(peers) == 1 else None
        return CollectiveError(f"{doing} failed: {first_line(error)} ({record})", record, peer)

    def doing(self, opcode: int, index: int) -> str:
        instruction = RankInstruction(Opcode(opcode), index)
        if instruction.opcode is Opcode.LAUNCH:
            peers = ", ".join(map(str, self._peers(instruction)))
            return f"step {index}: sending to and receiving from ranks {peers}"
        transfer, is_send = self.part.transfer(*instruction), opcode in (Opcode.SEND, Opcode.WAIT_SEND)
        action, preposition = ("sending", "to") if is_send else ("receiving", "from")
        return f"step {transfer.step}: {action} chunk {transfer.chunk} {preposition} rank {transfer.peer}"

    def _peers(self, instruction: RankInstruction) -> list[int]:
        part, chunks = self.part, self.transport.memory.wire_chunks
        if instruction.opcode is not Opcode.LAUNCH:
            return [part.transfer(*instruction).peer]
        step = instruction.transfer
        return sorted({one.peer for one in part.transfers if one.step == step and chunks[one.chunk].numel()})
