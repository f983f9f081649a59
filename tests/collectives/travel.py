"""`travelling`: tensors of the CPU on the ways that those of a GPU take."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from collectives.runtime import Transport, Transports, state_of


@contextmanager
def travelling(group: dist.ProcessGroup, transport: Transport) -> Iterator[None]:
    """In the block the messages of `group`, which is on Gloo, travel so. To be entered on every rank alike."""
    transports = state_of(group).part(Transports)
    before, transports.on_cpu = transports.on_cpu, transport
    try:
        yield
    finally:
        transports.on_cpu = before
