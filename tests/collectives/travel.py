"""`travelling`: tensors of the CPU on the ways that those of a GPU take; `sent_by_gloo`: the messages of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist

from collectives.runtime import GlooTransport, Transport, Transports, state_of

Sent = list[tuple[int, int, int, int]]


@contextmanager
def travelling(group: dist.ProcessGroup, transport: Transport) -> Iterator[None]:
    """In the block the messages of `group`, which is on Gloo, travel so. To be entered on every rank alike."""
    transports = state_of(group).part(Transports)
    before, transports.on_cpu = transports.on_cpu, transport
    try:
        yield
    finally:
        transports.on_cpu = before


@contextmanager
def sent_by_gloo() -> Iterator[Sent]:
    """A list that gets each message that this rank sends in the block: (step, peer, chunk, bytes)."""
    messages: Sent = []
    send_of = GlooTransport.send

    def noted(transport: GlooTransport, index: int) -> None:
        send = transport.part.sends[index]
        message = transport.memory.message(index, send.chunk)
        messages.append((send.step, send.peer, send.chunk, message.nbytes))
        send_of(transport, index)

    with mock.patch.object(GlooTransport, "send", noted):
        yield messages
