"""`ScheduleRun`: one execution of a schedule on one rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from collectives.runtime.chunk_transports import ChunkTransport
from collectives.runtime.errors import CollectiveError, first_line, flight_record_of
from collectives.runtime.hooks import Actions, Hook
from collectives.runtime.instructions import Opcode, RankInstruction, RankPart
from collectives.shared_memory import PeerError


@dataclass(slots=True)
class ScheduleRun:
    """One run on one rank, or a portion of it: the rank's instructions, one by one.

    transport: what is to be done, on which chunks, and how they travel. hooks: what else is told of it.
    """

    group: dist.ProcessGroup
    transport: ChunkTransport
    hooks: Sequence[Hook] = ()

    @property
    def part(self) -> RankPart:
        """Return what is to be done, in which order."""
        return self.transport.part

    def run(self) -> None:
        """Do it. Raises CollectiveError when a peer fails or is later than the group's timeout.

        It is the caller that tells the other ranks of this host of an error, which may also come between two portions.
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
        """Return what an instruction does, in words."""
        instruction = RankInstruction(Opcode(opcode), index)
        if instruction.opcode is Opcode.LAUNCH:
            peers = ", ".join(map(str, self._peers(instruction)))
            return f"step {index}: sending to and receiving from ranks {peers}"
        transfer, is_send = self.part.transfer(*instruction), opcode in (Opcode.SEND, Opcode.WAIT_SEND)
        action, preposition = ("sending", "to") if is_send else ("receiving", "from")
        peer = self.part.peers[transfer.peer]
        return f"step {transfer.step}: {action} chunk {transfer.chunk} {preposition} rank {peer}"

    def _peers(self, instruction: RankInstruction) -> list[int]:
        """Return the ranks of the group that it concerns: of a launch, with which anything is exchanged in its step."""
        part, chunks = self.part, self.transport.memory.wire_chunks
        if instruction.opcode is not Opcode.LAUNCH:
            return [part.peers[part.transfer(*instruction).peer]]
        step = instruction.transfer
        return sorted(
            {part.peers[one.peer] for one in part.transfers if one.step == step and chunks[one.chunk].numel()}
        )
