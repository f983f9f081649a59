"""`BatchedRun`: one execution of a schedule where what a rank sends and receives in a step is launched as one group.

NCCL asks for that: two ranks that send to each other by themselves would each wait for the other's receive. On NCCL
nothing here makes the CPU wait; it is the current stream that does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError
from collectives.runtime.flight_record import ledger_of
from collectives.runtime.instructions import Do
from collectives.runtime.run import Arrival, Run
from ringsim.schedule import Receive, Send


@dataclass(slots=True)
class BatchedRun(Run):
    """A run by a batched script: POST and SEND only say what is in the batch, and LAUNCH launches it.

    batch: what was said since the last launch; nothing of empty chunks, as both ends know that they are.
    works: what is yet to be waited for, in the order of the batch; on NCCL one for all of it.
    """

    batch: list[dist.P2POp] = field(default_factory=list)
    works: deque[dist.Work] = field(default_factory=deque)

    def _doing(self) -> Sequence[Callable[[int], None]]:
        return *Run._doing(self), self._launch

    def _post(self, index: int) -> None:
        receive = self.part.program.receives[index]
        buffer = self._landing(receive)
        self.arrivals.append(Arrival(buffer))
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

    def _arrive(self, index: int) -> None:
        self._wait(self.arrivals[index].buffer)

    def _leave(self, index: int) -> None:
        self._wait(self.mirror[self.part.sends[index].chunk])

    def _wait(self, message: torch.Tensor) -> None:
        if len(message) and self.works:
            self.works.popleft().wait()

    def _failure(self, do: Do, index: int, error: RuntimeError) -> CollectiveError:
        if do is not Do.LAUNCH:
            return Run._failure(self, do, index, error)
        peers = sorted({each.group_peer for each in self.batch})
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        ledger = ledger_of(self.part.program, self.script[: self.position], self.part.peers)
        return CollectiveError(
            f"rank {self.group.rank()}: {self.part.schedule}: step {index}: sending to and receiving from ranks "
            f"{', '.join(map(str, peers))} failed: {cause} ({ledger})",
            ledger,
            peers[0] if len(peers) == 1 else None,
        )
