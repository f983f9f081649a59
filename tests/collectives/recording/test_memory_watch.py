"""`MemoryWatch` in a process with other threads, such as that of a data loader, and the memory of a GPU's streams."""

import sys
import threading

import pytest

from collectives.recording.memory import MemoryWatch
from collectives.recording.recorder import Recorder
from ringsim.traces import Device
from tests.collectives.recording.recorded import IMPORTS, trace_of


def test_other_threads_go_on() -> None:
    """CPython raises SystemError in a thread that finishes a tuple to which a list of all objects refers meanwhile."""
    errors: list[SystemError] = []
    is_over = threading.Event()

    def make_tuples() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(3))
            except SystemError as error:
                errors.append(error)

    thread, interval = threading.Thread(target=make_tuples), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        for _ in range(4):
            watch = MemoryWatch(Recorder())
            watch.start()
            watch.stop()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert not errors


BLOCK = 16 * 2**20  # bytes
LENDING = f"""{IMPORTS}
dist.init_process_group("nccl")
torch.set_default_device("cuda")
WAY = sys.argv[1]
weight, stream = nn.Parameter(torch.ones(1)), torch.cuda.Stream()
optimizer = torch.optim.SGD([weight])
for _ in range(3):  # two steps warm up
    for _ in range(3):
        block = torch.empty({BLOCK}, dtype=torch.uint8)
        if WAY == "gathers":
            dist.all_gather_into_tensor(block, block[: {BLOCK // 4}].clone())
        else:
            block.record_stream(stream)
        del block
        if WAY == "synchronizes":
            torch.cuda.synchronize()
        if WAY == "waits":
            stream.record_event().synchronize()
        if WAY == "reads":
            weight.sum().item()
        for _ in range(1025 if WAY == "is busy" else 0):
            weight.detach().add_(1)
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("way", "num_blocks"),
    [("lends", 3), ("synchronizes", 1), ("waits", 1), ("reads", 1), ("is busy", 1), ("gathers", 2.25)],
)
def test_memory_is_used_again(way: str, num_blocks: float) -> None:
    """Memory lent to a stream is free when the GPU must have done with it; nobody keeps the result of a call.

    The allocator also has 64 MiB of cuBLAS, a segment of small blocks, and one of 20 MiB for what is gathered.
    """
    memory = trace_of(LENDING, way, num_ranks=4, is_fake=True, device=Device.CUDA).memory
    assert memory is not None
    assert memory.reserved == num_blocks * BLOCK + 66 * 2**20
    assert memory.end.total < 100
