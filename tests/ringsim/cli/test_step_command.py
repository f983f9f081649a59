"""`ringsim step`: what it prints and draws, and one line for every mistake."""

import json
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim.traces import Device, Group, HeldBytes, Operator, ProgramTrace, StepMemory, TracedStep, TraceRequest
from tests.ringsim.commands import as_json, in_lines, invoke, printed, refused, run, written
from tests.ringsim.traces.made_trace import ALL, all_reduce, call, compute, traced, wait

ON_GPUS = ("--network", "dgx-h100-cluster")
KERNELS = (*ON_GPUS, "--gpu", "h100")
H100 = (*KERNELS, "--roofline")


def plain() -> ProgramTrace:
    """A step of 4 ranks with a call of all of them, which is waited for, and one of two of them."""
    operators = Operator("aten.mm", "bfloat16", 10**12, 8, 2), Operator("aten.add", "bfloat16", 0, 10**9)
    events = compute(0.01, *operators), call(0), compute(0.002), wait(0), call(1)
    step = TracedStep(events, (all_reduce(2**20, is_async=True), all_reduce(4096, group=1)))
    return traced(step, groups=(ALL, Group((0, 2), "gloo")))


def holding(gib: int, reserved_gib: int = 0) -> ProgramTrace:
    """The step, the memory that it needs at its peak, and what the allocator makes of it."""
    held = HeldBytes(2**30, 2**30, 2**30, (gib - 3) * 2**30)
    return replace(plain(), memory=StepMemory(held, held, reserved_gib * 2**30))


def compiled() -> ProgramTrace:
    """A program that compiles its code: a chain of operators that may be fused, and others that may not."""
    extern = Operator("aten.sort_of_mine", "float32", 0, 10**9, is_counted=False)
    own, chain = Operator("aten._fused_adamw_", "float32", 0, 10**9), Operator("aten.add", "float32", 0, 10**10)
    step = TracedStep((compute(0.01, extern, own, chain, Operator("aten.mm", "tf32", 494_700_000_000, 8)),), ())
    held = HeldBytes(0, 0, 0, 2**40)
    return replace(traced(step), memory=StepMemory(held, held), is_compiled=True)


def uncounted() -> ProgramTrace:
    """Operators of unknown FLOPs, the one with the fewest bytes first, and a call by Gloo beside one by NCCL."""
    operators = [Operator(name, "float32", 0, 2**20, count, is_counted=False) for name, count in (("a.b", 1), ("c", 3))]
    calls, groups = (all_reduce(2**20), all_reduce(2**20, group=1)), (replace(ALL, backend="nccl"), ALL)
    return traced(TracedStep((compute(0.01, *operators), call(0), call(1)), calls), groups=groups)


def small() -> ProgramTrace:
    """A hundred operators of a kilobyte, for which a GPU waits."""
    return traced(TracedStep((compute(0.01, Operator("aten.add", "float32", 0, 2**10, 100)),), ()))


def awaiting(*indices: int) -> ProgramTrace:
    """Two calls that are asynchronous, of which these are waited for."""
    calls = all_reduce(2**20, is_async=True), all_reduce(2**20, is_async=True)
    return traced(TracedStep((compute(0.01), call(0), call(1), *map(wait, indices)), calls))


def every_fourth(num_steps: int = 8) -> ProgramTrace:
    """Of these steps every fourth one has a call."""
    product = compute(0.0, Operator("aten.mm", "bfloat16", 989_400_000_000, 8))
    silent, calling = TracedStep((product,), ()), TracedStep((product, call(0)), (all_reduce(2**30),))
    return traced(*[silent, silent, silent, calling] * (num_steps // 4) or [calling])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The file of a plain step."""
    plain().save(tmp_path / "step.trace.json")
    return tmp_path / "step.trace.json"


TRACES = {
    "plain": plain(),
    "80 GiB": holding(80),
    "81 GiB": holding(81),
    "70 of 80 GiB": holding(70, 80),
    "80 of 90 GiB": holding(80, 90),
    "81 of 90 GiB": holding(81, 90),
    "compiled": compiled(),
    "uncounted": uncounted(),
    "small": small(),
    "awaiting 0": awaiting(0),
    "awaiting 1": awaiting(1),  # the first one, which comes before it in its group, is over as well
    "8 steps": every_fourth(),
    "1 step": every_fourth(0),
}


ASKED = [
    ("plain", ("--network", "gbe", "--tokens", "1000")),
    ("plain", (*H100, "--tokens", "9")),
    ("plain", (*H100, "--measured-step", "5ms", "--tokens", "9")),
    ("plain", (*H100, "--compute-scale", "0.5")),
    ("plain", (*ON_GPUS, "--device", "cpu")),
    ("81 GiB", (*ON_GPUS, "--gpu", "h200", "--roofline", "--flops", "100TFLOP/s")),
    ("compiled", (*H100, "--measured-step", "2ms")),
    *((name, (*ON_GPUS, "--flops", "100TFLOP/s", "--memory-bandwidth", "1TB/s")) for name in ("plain", "81 GiB")),
    *((name, H100) for name in ("80 GiB", "81 GiB", "compiled", "uncounted", "8 steps", "1 step")),
    *((f"{needed} of {reserved} GiB", H100) for needed, reserved in ((70, 80), (80, 90), (81, 90))),
    *((name, KERNELS) for name in ("81 GiB", "compiled", "small")),
    ("small", (*KERNELS, "--measured-step", "1ms")),
    ("plain", (*KERNELS, "--measured-step", "5ms")),
    ("plain", (*KERNELS, "--memory-bandwidth", "1.675TB/s")),
    *((name, ON_GPUS) for name in ("uncounted", "awaiting 0", "awaiting 1")),
]


@pytest.mark.parametrize(
    ("name", "options"), ASKED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else value
)
def test_what_is_told(name: str, options: Sequence[str], tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Time and how sure it is, what is in it and what not; a page has the same time in title, heading and picture.

    All of it is in JSON as well, where the parts of a step add up, also of a mean step.
    """
    TRACES[name].save(tmp_path / "step.trace.json")
    command, page = ("step", tmp_path / "step.trace.json", *options), tmp_path / "step.html"
    text = run(*command, "-o", page).stdout
    assert text == snapshot
    on_page = " ".join(unescape(re.sub(r"<[^>]*>", "", page.read_text())).split())
    assert on_page.count(text.splitlines()[0].partition(": ")[2]) == 3
    for noted in re.findall(r"not counted: (.*)", text):
        assert on_page.count(noted) == 2  # in the picture, and below it
    assert ("drawn: step 4 of 8" in on_page) == ("the mean of 8" in text)
    data = printed(*command, "--json")
    assert in_lines(data) == snapshot(name="JSON")
    step = json.loads(data)
    assert step["step_s"] == pytest.approx(step["compute_s"] + step["issuing_s"] + step["exposed_s"])


def test_a_gpu_is_taken_where_the_program_was_recorded_with_one(trace: Path) -> None:
    """The same holds with --device cuda, and where the network describes NCCL."""
    request = TraceRequest("train.py", (), False, 4, 0, 2, 1, "step.trace.json", device=Device.CUDA)
    replace(ProgramTrace.load(trace), request=request).save(trace)
    on_gbe = run("step", trace, "--network", "gbe", "--json")
    assert json.loads(on_gbe.stdout)["on_gpu"]
    assert "gbe has hosts of 1, but the program was recorded with --ranks-per-host 2" in on_gbe.stderr


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("network", "suffix"), [("gbe", "png"), ("dgx-h100-cluster", "svg")])
def test_a_step_is_drawn(tmp_path: Path, network: str, suffix: str) -> None:
    """On a CPU and a GPU; every collective is in the legend, however many there are."""
    names = "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "barrier"
    calls = tuple(replace(all_reduce(2**18), collective=name) for name in names)
    traced(TracedStep(tuple(call(index) for index in range(len(calls))), calls)).save(tmp_path / "many.trace.json")
    picture = tmp_path / f"step.{suffix}"
    printed("step", tmp_path / "many.trace.json", "--network", network, "-o", picture)
    assert picture.stat().st_size > 1000


def test_a_step_for_perfetto(trace: Path, tmp_path: Path) -> None:
    """A slice for each computation, wait and call, on threads with names."""
    printed("step", str(trace), "--network", "gbe", "-o", str(tmp_path / "step.json"))
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    slices, calls = [event["name"] for event in events if event["ph"] == "X"], ["all_reduce 0", "all_reduce 1"]
    assert slices == ["compute", "compute", *(f"wait for {call}" for call in calls), *calls]
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == ["compute", "ranks 0 to 3", "ranks 0 to 2 by 2"]


def test_a_step_that_never_ends_is_told(trace: Path, tmp_path: Path) -> None:
    """Without a number that is none."""
    broken = '[host]\nranks = 1\nnic = { latency = "1us", bandwidth = "1GB/s" }\n[[failure]]\nrank = 2\nat = "0s"\n'
    options = ("step", trace, "--network", written(tmp_path / "broken.toml", broken))
    text = printed(*options, "--tokens", "9")
    assert text.startswith("a step of 4 ranks, each on a CPU: never")
    assert not re.search("nan|inf", text)
    for name in ("step.json", "step.svg"):
        result = invoke(*options, "-o", tmp_path / name)
        assert result.exit_code == 2
        assert f"{name}: the step never ends, as something fails: there is nothing to draw" in result.stderr
        assert not (tmp_path / name).exists()


MISTAKES = (
    "--network gbe --measured-step 1us",
    "--network gbe --flops 1TFLOP/s",
    "--network gbe --flops fast",
    "--network gbe --flops 0",
    "--network gbe --gpu h10",
    "--network gbe --roofline",
    "--network gbe --gpu h100 --flops 1TFLOP/s",
    "--compute-scale inf",
    "--compute-scale 2 --measured-step 1s",
    "--network gbe --style dark",
    "--network gbe -o step.txt",
)


def test_mistakes(trace: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """One line each; calls of single ranks have their place, and the rank in the job, not in the group.

    A step without times, as of a program that was recorded with --fake, needs a device.
    """
    monkeypatch.chdir(trace.parent)
    told = [f"{options}: {refused('step', trace.name, *options.split())}" for options in MISTAKES]
    for collective in ("send", "recv"):
        single = replace(all_reduce(4, group=1), collective=collective, peer=1)
        step = TracedStep((call(0), call(1)), (all_reduce(8), single))
        traced(step, groups=(ALL, Group((0, 2), "gloo"))).save(trace)
        told.append(refused("step", trace.name, "--network", "gbe"))
    for operator in (Operator("aten.mm", "bfloat16", 10**12, 8), Operator("aten.embedding", "bfloat16", 0, 10**9)):
        traced(TracedStep((compute(0.0, operator), call(0)), (all_reduce(2**20),))).save(trace)
        told.append(refused("step", trace.name, *ON_GPUS))
        assert as_json("step", trace, *H100)["compute_s"] > 0
    assert "".join(told) == snapshot


def test_a_gpu_times_only_steps_whose_operators_are_known(trace: Path) -> None:
    """A step with other calls than the watched one has only its times, which are not those of a GPU."""
    product = Operator("aten.mm", "bfloat16", 10**12, 8)
    watched = TracedStep((compute(0.01, product), call(0)), (all_reduce(2**20),))
    others = [TracedStep((compute(0.01), call(0)), (all_reduce(2**10),))] * 2
    for steps in ((watched, *others), (*others, watched)):
        traced(*steps).save(trace)
        result = as_json("step", trace, *H100)
        assert result["steps_s"] == [result["step_s"]]
        assert result["compute_s"] == pytest.approx(1e12 / 989.4e12)
        assert "; 2 left out, whose calls are not those of the watched step" in printed("step", trace, *H100)
    assert len(as_json("step", trace, *ON_GPUS)["steps_s"]) == 3
