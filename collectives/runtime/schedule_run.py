"""`ScheduleRun`: one execution of a schedule on one rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from collectives.runtime.chunks import ChunkMemory
from collectives.runtime.errors import CollectiveError, first_line, flight_record_of
from collectives.runtime.hooks import Actions, Hook
from collectives.runtime.instructions import Opcode, RankInstruction, RankPart
from collectives.runtime.transports import ChunkTransport
from collectives.shared_memory import PeerError


@dataclass(slots=True)
class ScheduleRun:
    """One run on one rank, or a portion of it: the rank's instructions, one by one.

    part: what is to be done, in which order. memory: on which chunks. transport: how they travel.
    hooks: what else is told of it.
    """

    part: RankPart
    group: dist.ProcessGroup
    memory: ChunkMemory
    transport: ChunkTransport
    hooks: Sequence[Hook] = ()

    def run(self) -> None:
        """Do it. Raises CollectiveError when a peer fails or is later than the group's timeout.

        It is the caller that tells the other ranks of this host of an error, which may also come between two portions.
        """
        actions: Actions = self.transport.actions
        for hook in self.hooks:
            actions = hook(actions, self.part)
        self._do(self.transport.open, "before step 0")
        self._execute(actions)
        self.memory.finish()
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
        part = self.part
        if failed.opcode is Opcode.LAUNCH:
            step, peers = failed.transfer, self._peers_in(failed.transfer)
            doing = f"sending to and receiving from ranks {', '.join(map(str, peers))}"
        else:
            transfer = part.transfer(*failed)
            step, peers = transfer.step, [part.peers[transfer.peer]]
            is_send = failed.opcode in (Opcode.SEND, Opcode.WAIT_SEND)
            action, preposition = ("sending", "to") if is_send else ("receiving", "from")
            doing = f"{action} chunk {transfer.chunk} {preposition} rank {peers[0]}"
        record = flight_record_of(part, failed)
        return CollectiveError(
            f"rank {self.group.rank()}: {part.schedule}: step {step}: {doing} failed: {first_line(error)} ({record})",
            record,
            error.peer if isinstance(error, PeerError) else peers[0] if len(peers) == 1 else None,
        )

    def _peers_in(self, step: int) -> list[int]:
        """Return the ranks of the group with which this rank exchanges anything in a step that is launched at once."""
        peers, chunks = self.part.peers, self.memory.wire_chunks
        return sorted(
            {peers[one.peer] for one in self.part.transfers if one.step == step and chunks[one.chunk].numel()}
        )
