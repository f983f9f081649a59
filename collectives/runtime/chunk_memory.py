"""`ChunkMemory`: where the chunks of a run are, how what arrives changes them, and what is sent of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from collectives.runtime.transport import CPU
from ringsim.schedule import Collective, Receive

ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)  # after these all ranks hold the same

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


def new_buffer(length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
    """Return new memory, (length,), which may be written to in any mode, whatever the mode is now.

    pinned: as a GPU copies from and to fastest; not heeded where there is no GPU.
    """
    # What is made in inference mode must not be written to outside of it, where it is used again.
    with torch.inference_mode(mode=False):
        return torch.empty(length, dtype=dtype, device=device, pin_memory=pinned and torch.cuda.is_available())


def reused_buffer(
    kept: torch.Tensor, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False
) -> torch.Tensor:
    """Return `kept`, or a new buffer if that is too short or of another kind: new memory costs more than sending."""
    if kept.dtype == dtype and len(kept) >= length and kept.device == device:
        return kept
    return new_buffer(length, dtype, device, pinned)


def reduce_into(reduce: Reduce, output: torch.Tensor, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Put into `output` what `reduce` makes of `chunk`, which stays as it is unless it is the output itself."""
    if output is chunk:
        reduce(chunk, arrived)
    elif reduce is torch.Tensor.add_:
        torch.add(chunk, arrived, out=output)  # at once: most of the time of a sum is reading and writing
    else:
        output.copy_(chunk)
        reduce(output, arrived)


@dataclass(slots=True)
class ChunkMemory:
    """The chunks of one run on one rank, or of one portion of it.

    chunks: where each chunk is now: in the target, or, until it is first written, in the source.
    targets: where each chunk is in the end.
    wire_chunks: what is sent of each chunk: `chunks` itself, or, if they travel in another dtype, tensors of that.
    staging_buffers: for what must not land in its chunk, nor in an eager buffer.
    """

    chunks: list[torch.Tensor]
    targets: list[torch.Tensor]
    wire_chunks: list[torch.Tensor]
    reduce: Reduce
    staging_buffers: Sequence[torch.Tensor]
    num_staged: int = 0

    def cut(self, cuts: Sequence[slice]) -> "ChunkMemory":
        """Return the memory of a portion, which has those elements of each chunk."""
        chunks, targets = _cut_each(self.chunks, cuts), _cut_each(self.targets, cuts)
        wire_chunks = _cut_each(self.wire_chunks, cuts) if self.rounds else chunks
        return ChunkMemory(chunks, targets, wire_chunks, self.reduce, self.staging_buffers)

    @property
    def rounds(self) -> bool:
        """Whether chunks travel in another dtype."""
        return self.wire_chunks is not self.chunks

    def landing(self, receive: Receive) -> torch.Tensor:
        """Return where a message lands that is not eager."""
        if not receive.lands_apart:
            return (self.wire_chunks if self.rounds else self.targets)[receive.chunk]
        # It is free again: there are as many as such receives are ever posted and not yet applied.
        self.num_staged += 1
        buffer = self.staging_buffers[self.num_staged % len(self.staging_buffers)]
        return buffer[: self.wire_chunks[receive.chunk].numel()]

    def apply(self, receive: Receive, arrived: torch.Tensor) -> None:
        """Add what has arrived to the chunk, or copy it there; from now on the chunk is in its target."""
        number = receive.chunk
        target = self.targets[number]
        if receive.reduce:
            reduce_into(self.reduce, target, self.chunks[number], arrived)
        elif arrived is not target:
            target.copy_(arrived)
        self.chunks[number] = target

    def message(self, number: int) -> torch.Tensor:
        """Return what is sent of a chunk: itself, or what it is in the dtype that travels."""
        message, chunk = self.wire_chunks[number], self.chunks[number]
        if message is not chunk:
            message.copy_(chunk)  # rounds; if it is still being sent, it is the same once more
            chunk.copy_(message)  # in an exchange both sides must add the same two
        return message

    def finish(self, collective: Collective) -> None:
        """Round what this rank has not sent, where all ranks shall hold the same."""
        if self.rounds and collective in ALIKE:
            for chunk, sent in zip(self.chunks, self.wire_chunks, strict=True):
                sent.copy_(chunk)  # who summed a chunk holds it as it was before it was rounded to be sent
                chunk.copy_(sent)


def _cut_each(chunks: Sequence[torch.Tensor], cuts: Sequence[slice]) -> list[torch.Tensor]:
    return [chunk[cut] for chunk, cut in zip(chunks, cuts, strict=True)]
