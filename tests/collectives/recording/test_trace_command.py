"""`ringsim trace`: whatever a program does, the command ends, with the trace or with one line that says why not."""

import json
from pathlib import Path

import pytest

from ringsim.traces import ProgramTrace, TracedStep
from tests.collectives.recording.recorded import HEAD, IMPORTS, LINE, ringsim
from tests.processes import run_python
from tests.ringsim.traces.made_trace import traced

TRAINS = HEAD.replace("        optimizer.step()", "        dist.all_reduce(weights.grad); optimizer.step()")


@pytest.mark.slow  # imports torch in a process of its own
def test_the_command(tmp_path: Path) -> None:
    """It sums up the last step, and names the file, which does not move with a program that changes its folder."""
    (tmp_path / "train.py").write_text(f"{TRAINS}os.chdir('/'); train()\n")
    done = run_python("-m", "ringsim", "trace", "--ranks", "2", "-o", "step.json", "train.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "wrote step.json\n")
    assert "rank 0 of 2, last of 3 steps" in done.stdout
    assert ProgramTrace.load(tmp_path / "step.json").num_ranks == 2


HOLDS_ON = "signal.signal(signal.SIGTERM, lambda *_: None); atexit.register(never.wait)"


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        ("os.chdir('/'); train()", "at the end\nrank 0 of 2, last of 3 steps"),
        ("threading.Thread(target=train).start(); never.wait()", "at the end\nrank 0 of 2"),
        ("subprocess.Popen(['sleep', '1000']); atexit.register(os.abort); train()", ""),
        pytest.param(f"{HOLDS_ON}; train()", "", marks=pytest.mark.slow),  # it is given some seconds
    ],
)
def test_a_program_is_ended_when_it_is_recorded(body: str, printed: str, tmp_path: Path) -> None:
    """Threads and children end with it; nothing that it does at its end, or to its folder, changes the outcome."""
    (tmp_path / "train.py").write_text(f"{TRAINS}atexit.register(print, 'at the end'); {body}\n")
    done = ringsim(tmp_path, "trace", "--ranks", 2, "-o", "step.json", "train.py")
    assert (done.returncode, done.stderr) == (0, "wrote step.json\n")
    assert done.stdout.startswith(printed)
    assert ProgramTrace.load(tmp_path / "step.json").num_ranks == 2


def test_folders_of_a_program_are_no_packages(tmp_path: Path) -> None:
    """Those that Triton or safetensors would be in, if they were installed, contain no modules of theirs."""
    (tmp_path / "train.py").write_text(f"{TRAINS}train()\n")
    for package in ("triton", "safetensors"):
        (tmp_path / package).mkdir()
    done = ringsim(tmp_path, "trace", "--fake", "--ranks", 2, "-o", "step.json", "train.py")
    assert (done.returncode, done.stderr) == (0, "wrote step.json\n")


GATHERS = "dist.group.WORLD._allgather_base"
AT, THREAD = f"train.py:{LINE}", "threading.Thread(target=never.wait)"
CATCHES_ALL = """
while True:
    try:
        train()
    except BaseException:
        pass
"""

INTERRUPTS_END = """
def interrupt(_, frame):
    while frame.f_code is not interrupt.__code__ and (frame := frame.f_back):
        assert frame.f_code.co_name != "write_text"
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 5e-5, 5e-5)
"""


@pytest.mark.parametrize(
    ("arguments", "body", "message"),
    [
        ("--fake -m train", "ctypes.string_at(0)", f"{AT}: its process was ended by SIGSEGV, from within "),
        ("-m train", f"{THREAD}.start(); [][1]", f"{AT}: IndexError: list index out of range"),
        ("--ranks 4 train.py", f"{GATHERS}(torch.empty(5), torch.ones(3))", f"{AT}: ValueError: output_tensor has 5 "),
        ("train.py", "train(1); os._exit(0)", "it ended its process, as by os._exit, before it was recorded"),
        ("train.py", INTERRUPTS_END, "it ended after 0 steps of a torch.optim.Optimizer; 3 warm up, and at least one"),
        ("train.py", CATCHES_ALL, "it catches BaseException in each step, and so cannot be stopped"),
        ("-o - train.py", "", "trace: --output -: the program may print to stdout itself; name a file"),
        ("nowhere.py", "", "trace: nowhere.py: there is no such file; for a module, write -m before the name"),
        ("--ranks 4 --rank 4 train.py", "", ": rank 4: must be less than the 4 ranks"),
        ("train.py a\x07b", "", 'ringsim: arguments[0] = "a\\u0007b": must be text of one line'),
        ("train\udcff.py", "", 'ringsim: program = "train'),
    ],
)
def test_how_a_program_has_failed_is_told(arguments: str, body: str, message: str, tmp_path: Path) -> None:
    """In one line with the place, and exit code 2; no thread goes on, and an earlier trace is not taken for its own."""
    (tmp_path / "train.py").write_text(f"{HEAD}{body}\n")
    (tmp_path / "train\udcff.py").touch()  # a byte that is no text
    (earlier := tmp_path / "step.trace.json").write_text(json.dumps(traced(TracedStep((), ())).as_dict()))
    before = earlier.read_text()
    done = ringsim(tmp_path, "trace", *arguments.split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr
    assert earlier.read_text() == before


WARNINGS = {
    "dist.send(weights.detach(), 1); dist.recv(torch.ones(1), 1)": (
        "ringsim trace: warning: the program sends to single ranks, as pipelines do: ringsim step will refuse"
    ),
    "import torch._inductor.config as config; config._micro_pipeline_tp = True": (
        "ringsim trace: warning: asynchronous tensor parallelism is recorded as synchronous, which takes longer"
    ),
    "thread = threading.Thread(target=lambda: [][1]); thread.start(); thread.join()": (
        "ringsim trace: warning: a thread of the program has failed: "
    ),
    "mean = weights.mean(); print(mean.item(), mean.detach().numpy().tolist(), f'{mean:.1f}', int(mean.argmax()))": (
        f"train.py:{LINE + 1}: warning: the program reads values"
    ),
}


@pytest.mark.parametrize("body", WARNINGS)
def test_a_program_is_warned_once(body: str, tmp_path: Path) -> None:
    """Of a trace that ringsim step refuses or times too long; and of the line that first reads a value, which is 1."""
    (tmp_path / "train.py").write_text(f"{TRAINS}while True:\n    {body}; train(1)\n")
    done = ringsim(tmp_path, "trace", "--fake", "--ranks", 4, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == done.stderr.count(WARNINGS[body]) == 1, done.stderr
    assert done.stdout.startswith("1.0 1.0 1.0 1\n") == ("print" in body)
    assert " TFLOP, and " in done.stdout
    assert "\nmemory of tensors at the peak " in done.stdout


FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 6))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NETWORK = "--latency", "10us", "--bandwidth", "1GB/s"
STEP = "--json", *NETWORK, "--flops", "1GFLOP/s", "--memory-bandwidth", "1GB/s"


@pytest.mark.slow
def test_a_step_of_more_ranks_is_that_of_a_trace_recorded_by_hand(tmp_path: Path) -> None:
    """`ringsim step --ranks` of FSDP2, whose shares, and the rows that fill them up, depend on their number."""
    (tmp_path / "fsdp.py").write_text(HEAD + FSDP)
    for num_ranks in (2, 16):
        job = "--ranks", num_ranks, "--ranks-per-host", 1, "-o", f"{num_ranks}.json"
        assert ringsim(tmp_path, "trace", "--fake", *job, "fsdp.py").returncode == 0
    small, large = (ProgramTrace.load(tmp_path / name) for name in ("2.json", "16.json"))
    assert small.request
    assert (small.request.program, small.request.folder) == ("fsdp.py", str(tmp_path))
    # Rows are filled up to a multiple of the ranks: 7 and 6 to 8 and 6 of 2, and to 16 and 16 of 16; the biases too.
    sizes = [max(call.size_bytes for call in trace.steps[0].calls) for trace in (small, large)]
    assert sizes == [4 * (8 * 6 + 8 + 6 * 7 + 6), 4 * (16 * 6 + 16 + 16 * 7 + 16)]
    commands = ("2.json", "--ranks", 16, "--run-recorded"), ("16.json",), ("2.json",)
    curve, alone, fewer = (json.loads(ringsim(tmp_path, "step", *command, *STEP).stdout) for command in commands)
    [scaled] = curve["scaling"]
    for name in ("num_ranks", "step_s", "compute_s", "exposed_s", "communication_s"):
        assert scaled[name] == alone[name]
    assert scaled["step_s"] > fewer["step_s"]


@pytest.mark.slow
def test_a_module_is_recorded_again(tmp_path: Path) -> None:
    """With its arguments; what it prints is left out of the result."""
    program = "-m", "trainers", "--task", "mlp", "--strategy", "bucketed/0.25"
    assert ringsim(tmp_path, "trace", "--ranks", 2, "--steps", 1, *program).returncode == 0
    done = ringsim(tmp_path, "step", "step.trace.json", *STEP, "--ranks", 3, "--run-recorded")
    (scaled,) = json.loads(done.stdout)["scaling"]
    assert scaled["num_ranks"] == 3
    assert scaled["communication_s"] > 0


POOLS = f"""{IMPORTS}
from concurrent.futures import ProcessPoolExecutor
def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=8)
    train()
def train(*_):
    weights = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weights])
    for _ in range(9): optimizer.step()
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    multiprocessing.set_start_method(sys.argv[1])
    with eval(sys.argv[2])(2) as pool: assert list(pool.map(eval(sys.argv[3]), range(8))) == list(range(8))
    main(0)
"""


@pytest.mark.parametrize(
    ("way", "kind", "task"),
    [
        ("fork", "multiprocessing.Pool", "main"),
        ("spawn", "torch.multiprocessing.Pool", "train"),
        ("fork", "ProcessPoolExecutor", "main"),
        ("fork", "multiprocessing.Pool", "abs"),
    ],
)
def test_ranks_in_a_pool_are_refused(way: str, kind: str, task: str, tmp_path: Path) -> None:
    """Also if they train without a process group, or the program handles SIGTERM; not if the pool does other work."""
    (tmp_path / "train.py").write_text(POOLS)
    done = ringsim(tmp_path, "trace", "--fake", "--ranks", 8, "-o", "step.json", "train.py", way, kind, task)
    told = "ringsim trace: the program starts its ranks itself, by multiprocessing: let torchrun start them"
    code, line = (0, "wrote step.json") if task == "abs" else (2, told)
    assert done.returncode == code
    assert line in done.stderr.splitlines()


TERMINATES = f"""{IMPORTS}
for _ in range(40):
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    process.terminate()
    process.join(5)
    assert process.exitcode == -signal.SIGTERM
weights = nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weights])
for _ in range(9): optimizer.step()
"""


def test_a_process_can_be_terminated_as_soon_as_it_is_forked(tmp_path: Path) -> None:
    """Python swallows what a signal raises in its first function after a fork; a pool is left by terminating it."""
    (tmp_path / "train.py").write_text(TERMINATES)
    done = ringsim(tmp_path, "trace", "--fake", "-o", "step.json", "train.py")
    assert done.returncode == 0, done.stderr
