"""`ringsim trace`: programs recorded as one rank of many, and programs that cannot be."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ringsim.traces import Device, ProgramTrace, TracedStep, TraceEventKind, TraceRequest
from tests.forked import ROOT, answers_of, nursery
from tests.ringsim.traces.made_trace import traced

LIMIT_S = 120.0

PROGRAM = """
import multiprocessing
import os
import sys
import threading
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

WAY = sys.argv[1]
if WAY == "changes folder":
    os.chdir("/")
if WAY == "spawn":
    torch.multiprocessing.spawn(print, (), 2)
if WAY == "rpc":
    torch.distributed.rpc.init_rpc("worker")
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()


class Checkpointed(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


layers = nn.Sequential(*[(Checkpointed if WAY == "checkpoints" else nn.Linear)(8, 8) for _ in range(4)])
model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=5e-4)
optimizer = torch.optim.AdamW(model.parameters())


def objects():
    everywhere, sent = [None] * size, [{"of": rank}] if rank == 0 else [None]
    dist.all_gather_object(everywhere, rank)
    dist.broadcast_object_list(sent, src=0)
    dist.scatter_object_list([None], list(range(size)) if rank == 0 else None, src=0)
    output = [None]
    dist.scatter_object_list(
        scatter_object_output_list=output, scatter_object_input_list=[rank] * size if rank == 0 else None, src=0
    )
    assert output == ([rank] if rank == 0 else [None])
    pair = dist.new_group([2, 3])
    if rank == 3:
        dist.scatter_object_list(output, ["of 2", "of 3"], src=3, group=pair)
        assert output == ["of 3"]
    dist.recv_object_list([None], src=1)
    dist.monitored_barrier()
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as calls:
        dist.all_reduce(torch.ones(2))
    calls.wait()
    dist.group.WORLD.broadcast(torch.ones(2), 1).wait()
    dist.group.WORLD.allgather([torch.empty(2) for _ in range(size)], torch.ones(2)).wait()
    assert everywhere == [rank] * size
    assert sent == ([{"of": 0}] if rank == 0 else [None])


def shapes():
    pair = dist.new_subgroups(2)[0]
    ones = torch.ones(2)
    dist.all_reduce(ones, group=pair)
    assert ones.tolist() == [2.0, 2.0]
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), 5.0))
    assert parts[-1].tolist() == [5.0] * 3
    mine = torch.empty(1)
    dist.reduce_scatter_tensor(mine, torch.arange(float(size)), dist.ReduceOp.AVG)
    assert mine.item() == rank
    outputs = torch.empty(size)
    dist.all_to_all_single(outputs, torch.arange(float(size)))
    assert outputs.tolist() == [rank] * size
    dist.send(torch.ones(5), (rank + 1) % size)
    received = torch.ones(2)
    dist.recv(received, (rank - 1) % size)
    assert received.tolist() == [0.0] * 2
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(5), (rank + 1) % size)])[0].wait()


def train_in_a_process():
    for _ in range(9):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def try_an_optimizer():
    weights = torch.ones(8, requires_grad=True)
    on_trial = torch.optim.SGD([weights])
    for _ in range(3):
        weights.grad = torch.ones(8)
        on_trial.step()


if WAY == "on trial":
    try_an_optimizer()
    try_an_optimizer()
if WAY == "forked ranks":
    processes = [multiprocessing.Process(target=train_in_a_process) for _ in range(2)]
    [process.start() for process in processes]
    sys.exit([process.join() for process in processes] == 0)
if WAY == "helpers":
    multiprocessing.Process(target=threading.Event().wait).start()
    os.fork()
def step_of_one():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


while WAY == "catches all":
    try:
        step_of_one()
    except BaseException:
        pass
if WAY == "ends badly":
    try:
        while True:
            step_of_one()
    except BaseException:
        sys.exit(1)
if WAY == "leaves":
    step_of_one()
    os._exit(0)
for step in range(3 if WAY == "three steps" else 100):
    if WAY in ("objects", "shapes"):
        {"objects": objects, "shapes": shapes}[WAY]()
    if WAY == "from any":
        dist.recv(torch.ones(1))
    if WAY == "never steps":
        continue
    if WAY == "fails":
        raise KeyError("data")
    if WAY == "exits":
        sys.exit(7)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def line_of(text: str) -> str:
    """The line in which a text stands, as an error names it."""
    return f"train.py:{1 + PROGRAM[: PROGRAM.index(text)].count(chr(10))}"


def recorded(
    program: Path,
    *arguments: str,
    num_ranks: int = 8,
    rank: int = 0,
    num_steps: int = 1,
    is_fake: bool = False,
    device: Device = Device.CPU,
) -> ProgramTrace | str:
    """The trace of the program, or why there is none; in a process that has loaded torch already."""
    request = TraceRequest(str(program), arguments, False, num_ranks, rank, 8, num_steps, "", is_fake, device=device)
    outcome: ProgramTrace | str = in_a_process(program, record, request)
    return outcome


def trace_of(program: Path, *arguments: str, **options: Any) -> ProgramTrace:
    """The trace of a program that can be recorded."""
    trace = recorded(program, *arguments, **options)
    assert isinstance(trace, ProgramTrace), trace
    return trace


def in_a_process(program: Path, call: Callable[[TraceRequest], Any], request: TraceRequest) -> Any:
    """Call it in a forked process, and return its result."""
    process = nursery().fork(program.with_suffix(".log"))
    try:
        process.start(call, request)
        answer = answers_of([process], LIMIT_S)[process]
    finally:
        process.signal(signal.SIGKILL)
    assert answer.good, answer.value
    return answer.value


def record(request: TraceRequest) -> ProgramTrace | str:
    """In the process."""
    from collectives.recording.program import ProgramError, record_program

    try:
        return record_program(request)
    except ProgramError as error:
        return str(error)


def watch_while_stopped(request: TraceRequest) -> list[bool]:
    """Whether the recorder was stopped whenever the watch of the operators began or ended; in the process."""
    from collectives.recording.operators import OperatorWatch

    stopped = []

    def noted(method: Callable[[OperatorWatch], None]) -> Callable[[OperatorWatch], None]:
        def run(watch: OperatorWatch) -> None:
            stopped.append(watch._recorder.is_stopped)
            method(watch)

        return run

    with (
        patch.object(OperatorWatch, "start", noted(OperatorWatch.start)),
        patch.object(OperatorWatch, "stop", noted(OperatorWatch.stop)),
    ):
        record(request)
    return stopped


@pytest.mark.parametrize("way", ["ddp", "checkpoints"])
def test_ddp_is_recorded_as_one_of_many_ranks(program: Path, way: str) -> None:
    """A call for each bucket during the backward pass, and their waits after it; the program is stopped.

    The backward pass of a layer may be one within another, as of a reentrant checkpoint.
    """
    trace = trace_of(program, way, num_ranks=64, rank=9, num_steps=2)
    assert (trace.num_ranks, trace.rank, trace.ranks_per_host, len(trace.steps)) == (64, 9, 8, 2)
    (group,) = trace.groups
    assert (len(group.ranks), group.backend) == (64, "cpu:gloo,cuda:nccl")
    step = trace.steps[-1]
    assert sum(call.size_bytes for call in step.calls) == 4 * 4 * (8 * 8 + 8)
    kinds = [event.kind for event in step.events if event.kind in (TraceEventKind.CALL, TraceEventKind.WAIT)]
    assert kinds == [TraceEventKind.CALL] * len(step.calls) + [TraceEventKind.WAIT] * len(step.calls)
    assert len(step.calls) > 1
    assert step.compute_s > 0


def test_beginning_and_ending_the_watch_is_not_timed(program: Path) -> None:
    """The next step, which is the first that is recorded, was several times as long as the others."""
    request = TraceRequest(str(program), ("ddp",), False, 8, 0, 8, 1, "")
    assert in_a_process(program, watch_while_stopped, request) == [True, True]


@pytest.mark.parametrize("rank", [0, 3])
def test_what_programs_call_besides(program: Path, rank: int) -> None:
    """Objects are this rank's own; other ranks hold what this one holds."""
    trace = trace_of(program, "objects", num_ranks=4, rank=rank)
    (step,) = trace.steps
    waited = [event.call for event in step.events if event.kind is TraceEventKind.WAIT]
    assert waited == [index for index, call in enumerate(step.calls) if call.is_async]
    assert ("all_gather", 32) in [(call.collective, call.size_bytes) for call in step.calls]
    trace = trace_of(program, "shapes", num_ranks=4, rank=rank)
    (step,) = trace.steps
    first = [(call.collective, call.size_bytes, len(trace.groups[call.group].ranks)) for call in step.calls][:7]
    assert first == [
        ("all_reduce", 8, 2),
        ("all_gather", 48, 4),
        ("reduce_scatter", 16, 4),
        ("all_to_all", 16, 4),
        ("send", 20, 4),
        ("recv", 8, 4),
        ("recv", 20, 4),
    ]


def test_an_optimizer_that_was_on_trial_does_not_count(program: Path) -> None:
    """A program may step an optimizer once to see its state: neither calls nor memory of that are in the trace."""
    trace, plain = (trace_of(program, way) for way in ("on trial", "ddp"))
    assert [call.size_bytes for call in trace.steps[0].calls] == [call.size_bytes for call in plain.steps[0].calls]
    assert trace.memory == plain.memory


def test_a_program_may_fork_processes_that_do_not_train(program: Path) -> None:
    """They are ended with it, and write no trace of their own."""
    trace_of(program, "helpers")


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("three steps", "it ended after 3 steps of a torch.optim.Optimizer; 3 warm up"),
        ("never steps", "it ended after 0 steps of a torch.optim.Optimizer; 3 warm up"),
        ("forked ranks", "the program starts its ranks itself, by torch.multiprocessing"),
        ("from any", "the program must name the one that it receives from"),
        (
            "rpc",
            f"{line_of('torch.distributed.rpc')}: the program calls other ranks by torch.distributed.rpc",
        ),
        ("fails", f"{line_of('raise KeyError')}: KeyError: 'data'"),
        ("exits", "it ended with exit code 7"),
        ("spawn", "the program starts its ranks itself, by torch.multiprocessing"),
    ],
)
def test_what_cannot_be_recorded_is_refused(program: Path, way: str, message: str) -> None:
    """In one line with the place."""
    assert message in str(recorded(program, way))


def test_the_command(program: Path) -> None:
    """It sums up the last step, and names the file, which does not move with a program that changes its folder."""
    done = command("--ranks", "2", "-o", "step.json", program.name, "changes folder", cwd=program.parent)
    assert (done.returncode, done.stderr) == (0, "wrote step.json\n")
    assert "rank 0 of 2, last of 3 steps" in done.stdout
    assert ProgramTrace.load(program.with_name("step.json")).num_ranks == 2


def test_how_a_program_takes_its_stop_does_not_matter(program: Path) -> None:
    """It may catch all and end with an error: its steps are recorded."""
    trace = trace_of(program, "ends badly", num_steps=2)
    assert len(trace.steps) == 2


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("catches all", "it catches BaseException in each step, and so cannot be stopped"),
        ("leaves", "it ended its process, as by os._exit, before it was recorded"),
    ],
)
def test_a_program_that_ends_its_process_leaves_the_file_as_it_was(way: str, message: str, program: Path) -> None:
    """The trace of another program is not taken for its own; one line and exit code 2."""
    output = program.with_suffix(".json")
    output.write_text(json.dumps(traced(TracedStep((), ())).as_dict()))
    before = output.read_text()
    done = command("--ranks", "2", "-o", str(output), str(program), way)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert (done.stdout, output.read_text()) == ("", before)


def test_a_program_with_a_wrong_line_is_named(tmp_path: Path) -> None:
    """It is the program that fails, and not what runs it in the folder of the program."""
    program = tmp_path / "train.py"
    program.write_text("def f(:\n")
    assert str(recorded(program)).endswith("train.py: SyntaxError: invalid syntax (train.py, line 1)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "trace: nowhere.py: there is no such file; for a module, write -m before the name"),
        (["-o", "-", __file__], "trace: --output -: the program may print to stdout itself; name a file"),
        (["--ranks", "4", "--rank", "4", __file__], ": rank 4: must be less than the 4 ranks"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path) -> None:
    """In one line, and exit code 2."""
    done = command(*arguments, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`ringsim trace`."""
    line = [sys.executable, "-m", "ringsim", "trace", *arguments]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
