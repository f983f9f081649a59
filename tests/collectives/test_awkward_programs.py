"""`ringsim trace`: whatever a program does, the command ends, with the trace or with one line that says why not."""

from pathlib import Path

import pytest

from ringsim.traces import ProgramTrace, TraceEventKind
from tests.collectives.test_recording import command, recorded, trace_of

HEAD = """
import atexit, copy, ctypes, os, signal, subprocess, sys, threading, torch, torch.distributed as dist
from torch import nn
never = threading.Event()
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "gloo")
weights = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weights])
def train():
    for _ in range(9):
        weights.grad = torch.ones(4)
        optimizer.step()
"""
LINE = 1 + HEAD.count("\n")  # of what follows


@pytest.mark.parametrize(
    "body",
    [
        "threading.Thread(target=train).start(); never.wait()",
        "subprocess.Popen(['sleep', '1000']); atexit.register(os.abort); train()",
        pytest.param(
            "signal.signal(signal.SIGTERM, lambda *_: None); atexit.register(never.wait); train()",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_program_that_does_not_end_is_ended(body: str, tmp_path: Path) -> None:
    """Threads and children are ended with the program; nothing that it does at its end changes the outcome."""
    (tmp_path / "train.py").write_text(f"{HEAD}atexit.register(print, 'at the end'); {body}\n")
    done = command("--ranks", "2", "-o", "step.json", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "wrote step.json\n")
    assert done.stdout.startswith("at the end\nrank 0 of 2" if "os" not in body and "never.wait)" not in body else "")
    assert ProgramTrace.load(tmp_path / "step.json").num_ranks == 2


@pytest.mark.parametrize(
    ("arguments", "body", "message"),
    [
        ("--fake -m train", "ctypes.string_at(0)", "its process was ended by SIGSEGV, from within code that is not "),
        ("-m train", "threading.Thread(target=never.wait).start(); [][1]", "IndexError: list index out of range"),
    ],
)
def test_how_a_program_has_failed_is_told(arguments: str, body: str, message: str, tmp_path: Path) -> None:
    """In one line with the place, also of a module and of a crash; no thread goes on."""
    (tmp_path / "train.py").write_text(f"{HEAD}{body}\n")
    done = command("--ranks", "2", "-o", "step.json", *arguments.split(), cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"train.py:{LINE}: {message}" in done.stderr
    assert not (tmp_path / "step.json").exists()


DATA = """
class Native:  # as code in C or Rust does, this asks for the address of the memory, and then uses it
    def __init__(self, tensor): self.address = getattr(tensor, "data" + "_ptr")()
    def write(self, size): ctypes.memset(self.address, 1, size)
averaged = torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
copy.deepcopy([averaged, torch.tensor(0.5)])
assert copy.deepcopy(torch.arange(3)).tolist() == [0, 1, 2] and copy.deepcopy(torch.tensor(7)).item() == 7
assert copy.deepcopy(optimizer).param_groups[0]["lr"] == 1e-3
assert (torch.arange(8).view(2, 4) == 6).nonzero().tolist() == [[1, 2]]
assert torch.full((2,), 3).tolist() == [3, 3] and torch.tril_indices(2, 2).tolist() == [[0, 1, 1], [0, 0, 1]]
assert not isinstance(torch.arange(4).share_memory_(), torch._subclasses.FakeTensor)
torch.arange(10**12), torch.ones(2**40, dtype=torch.int64)  # too many to have data
counts = torch.zeros(3, dtype=torch.int64)
counts.scatter_add_(0, torch.ones(2, 3).argmax(1), torch.tensor([5, 5]))
assert counts.tolist() == [1, 1, 1] and (counts + 1)[0].item() == 1  # nobody knows them
buffer = torch.empty(2**16, dtype=torch.uint8)
Native(buffer).write(2**16)
ones, others = torch.ones(2), torch.ones(2)
assert ones.data_ptr() == ones.view(2, 1).data_ptr() != others.data_ptr()
assert len(ctypes.string_at(ctypes.memset(ones.data_ptr(), 1, 8), 8)) == 8
file = torch.UntypedStorage.from_file(__file__, shared=False, nbytes=8)
assert isinstance(torch.asarray(file[0:8], dtype=torch.float32), torch._subclasses.FakeTensor)
train()
"""


def test_without_data_what_has_values_keeps_them(tmp_path: Path) -> None:
    """Copies are right, values that are not known are 1, and what other libraries read and write is memory."""
    program = tmp_path / "train.py"
    program.write_text(HEAD + DATA)
    trace_of(program, is_fake=True)


@pytest.mark.parametrize("backend", ["nosuch", "cpu:gloo,cuda:nosuch"])
def test_a_backend_that_torch_does_not_know_is_refused(backend: str, tmp_path: Path) -> None:
    """As under torchrun."""
    program = tmp_path / "train.py"
    program.write_text(f"{HEAD}train()\n")
    assert str(recorded(program, backend)).endswith("train.py:5: AssertionError: Unknown c10d backend type NOSUCH")


FUTURES = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
weights = torch.nn.Parameter(torch.ones(64, 64))
optimizer = torch.optim.SGD([weights])
values = lambda done: done.value()
again = lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().value()
for _ in range(9):
    first, second = [dist.all_reduce(torch.ones(4), async_op=True).get_future() for _ in range(2)]
    WAY
    weights.grad = torch.ones(64, 64) @ torch.ones(64, 64)
    WAIT
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("way", "wait", "waits"),
    [
        ("pass", "first.wait(), second.value()", [0, 1]),
        ("first.wait()", "second.wait()", [1]),
        ("chained = first.then(values)", "chained.wait()", [0]),
        ("chained = first.then(again)", "chained.value()", [0, 2]),
        ("first.add_done_callback(values)", "second.wait()", [1]),
        ("both = torch.futures.collect_all([first, second])", "both.wait()", [0, 1]),
        ("pass", "torch.futures.wait_all([second, first])", [1, 0]),
        ("chained = first.then(lambda _: 1 / 0)", "second.wait()", [1]),
    ],
)
def test_a_program_waits_where_it_asks_its_future(way: str, wait: str, waits: list[int], tmp_path: Path) -> None:
    """And not where it takes it, so that the product between hides the calls."""
    program = tmp_path / "train.py"
    program.write_text(FUTURES.replace("WAY", way).replace("WAIT", wait))
    trace = trace_of(program, is_fake=True)
    events = trace.steps[0].events
    product = next(place for place, event in enumerate(events) if any(op.flops for op in event.operators))
    assert [event.call for event in events[product:] if event.kind is TraceEventKind.WAIT] == waits
