"""`BatchedScheduleRun`: an execution where what a rank sends and receives in a step is launched as one group.

NCCL asks for that: two ranks that send to each other by themselves would each wait for the other's receive. On NCCL
nothing here makes the CPU wait; it is the current stream that does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError
from collectives.runtime.flight_record import flight_record_of
from collectives.runtime.instructions import Opcode
from collectives.runtime.schedule_run import PostedReceive, ScheduleRun
from ringsim.schedule import Receive, Send


@dataclass(slots=True)
class BatchedScheduleRun(ScheduleRun):
    """A run of batched instructions: POST_RECV and SEND only put into the batch, and LAUNCH launches it.

    batch: what was put in since the last launch; nothing of empty chunks, as both ends know that they are.
    works: what is yet to be waited for, in the order of the batch; on NCCL one for all of it.
    """

    batch: list[dist.P2POp] = field(default_factory=list)
    works: deque[dist.Work] = field(default_factory=deque)

    def _actions(self) -> Sequence[Callable[[int], None]]:
        return *ScheduleRun._actions(self), self._launch

    def _post_recv(self, index: int) -> None:
        receive = self.part.program.receives[index]
        buffer = self._landing(receive)
        self.receives.append(PostedReceive(buffer))
        self._add(dist.irecv, buffer, receive)

    def _send(self, index: int) -> None:
        send = self.part.sends[index]
        self._add(dist.isend, self._message(send), send)
        self._record("sent", send)

    def _add(self, op: Callable[..., dist.Work | None], message: torch.Tensor, transfer: Send | Receive) -> None:
        if len(message):
            data = message.view(torch.uint8)  # NCCL knows fewer dtypes than torch
            peer, tag = self.part.peers[transfer.peer], self.tags[transfer.chunk]
            self.batch.append(dist.P2POp(op, data, group=self.group, tag=tag, group_peer=peer))

    def _launch(self, _: int) -> None:
        if self.batch:
            self.works.extend(dist.batch_isend_irecv(self.batch))
            self.batch.clear()

    def _wait_recv(self, index: int) -> None:
        self._wait(self.receives[index].buffer)

    def _wait_send(self, index: int) -> None:
        self._wait(self.wire_chunks[self.part.sends[index].chunk])

    def _wait(self, message: torch.Tensor) -> None:
        if len(message) and self.works:
            self.works.popleft().wait()

    def _failure(self, opcode: Opcode, index: int, error: RuntimeError) -> CollectiveError:
        if opcode is not Opcode.LAUNCH:
            return ScheduleRun._failure(self, opcode, index, error)
        peers = sorted({transfer.group_peer for transfer in self.batch})
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        record = flight_record_of(self.part.program, self.instructions[: self.position], self.part.peers)
        return CollectiveError(
            f"rank {self.group.rank()}: {self.part.schedule}: step {index}: sending to and receiving from ranks "
            f"{', '.join(map(str, peers))} failed: {cause} ({record})",
            record,
            peers[0] if len(peers) == 1 else None,
        )
