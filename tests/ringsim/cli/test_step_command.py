"""`ringsim step`: what it prints and draws, and one line for every mistake."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.traces import Call, Device, Group, HeldBytes, Operator, ProgramTrace, StepMemory, TracedStep, TraceRequest
from ringsim.units import format_time
from tests.ringsim.commands import as_json, invoke, printed, refused
from tests.ringsim.traces.made_trace import ALL, all_reduce, call, compute, traced, wait

OF_TENSORS = "(memory of tensors, without allocator and workspaces)"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A step of 4 ranks with a call of all of them, which is waited for, and one of two of them."""
    operators = Operator("aten.mm", "bfloat16", 10**12, 8, 2), Operator("aten.add", "bfloat16", 0, 10**9)
    events = compute(0.01, *operators), call(0), compute(0.002), wait(0), call(1)
    step = TracedStep(events, (all_reduce(2**20, is_async=True), all_reduce(4096, group=1)))
    traced(step, groups=(ALL, Group((0, 2), "gloo"))).save(tmp_path / "step.trace.json")
    return tmp_path / "step.trace.json"


def test_a_step_is_told(trace: Path) -> None:
    """Its parts add up, in words and as JSON."""
    text = printed("step", str(trace), "--network", "gbe", "--tokens", "1000")
    result = as_json("step", str(trace), "--network", "gbe", "--tokens", "1000")
    assert text.startswith("a step of 4 ranks, each on a CPU: ")
    assert result["step_s"] == pytest.approx(result["compute_s"] + result["exposed_s"])
    assert result["compute_s"] == pytest.approx(0.012)
    assert result["tokens_per_s"] == pytest.approx(1000 / result["step_s"])
    assert [call["algorithm"] for call in result["calls"]] == ["gloo_ring", "gloo_ring"]
    assert sum(call["exposed_s"] for call in result["calls"]) == pytest.approx(result["exposed_s"])
    assert result["better"]["communication that takes no time"] == pytest.approx(0.012)


def test_a_gpu_is_taken_where_the_network_describes_nccl(trace: Path) -> None:
    """With NCCL's protocols; or where it is asked for, or where the program was recorded with one."""
    result = as_json("step", str(trace), "--network", "dgx-h100-cluster")
    assert result["on_gpu"]
    assert all(call["protocol"] for call in result["calls"])
    assert not as_json("step", str(trace), "--network", "dgx-h100-cluster", "--device", "cpu")["on_gpu"]
    request = TraceRequest("train.py", (), False, 4, 0, 2, 1, "step.trace.json", device=Device.CUDA)
    replace(ProgramTrace.load(trace), request=request).save(trace)
    on_gbe = invoke("step", str(trace), "--network", "gbe", "--json")
    assert json.loads(on_gbe.stdout)["on_gpu"]
    assert "gbe has hosts of 1, but the program was recorded with --ranks-per-host 2" in on_gbe.stderr


@pytest.mark.parametrize(("collective", "peer"), [("send", "to rank 2"), ("recv", "from rank 2")])
def test_calls_of_single_ranks_are_refused(collective: str, peer: str, tmp_path: Path) -> None:
    """With the place of the call and the rank in the job, not in the group."""
    path, single = tmp_path / "step.trace.json", Call(collective, 4, "float32", 1, False, peer=1)
    traced(TracedStep((call(0), call(1)), (all_reduce(8), single)), groups=(ALL, Group((0, 2), "gloo"))).save(path)
    result = invoke("step", path, "--network", "gbe")
    assert result.exit_code == 2
    assert (
        f"steps[0].calls[1]: {collective} {peer}: the recording of one rank cannot predict programs whose ranks do"
        in result.stderr
    )


def test_computations_can_be_those_of_another_device(trace: Path) -> None:
    """By a scale, by FLOPs and bytes, or by a step that was measured."""
    command = "step", str(trace), "--network", "dgx-h100-cluster"
    assert as_json(*command, "--compute-scale", "3")["compute_s"] == pytest.approx(0.036)
    by_rates = as_json(*command, "--flops", "100TFLOP/s", "--memory-bandwidth", "1TB/s")
    assert by_rates["compute_s"] == pytest.approx(2 * 0.01 + 0.001)
    # The second computation has no operators, and so takes no time.
    assert as_json(*command, "--gpu", "h100")["compute_s"] == pytest.approx(2e12 / 989.4e12 + 1e9 / 3.35e12)
    measured = as_json(*command, "--gpu", "h100", "--measured-step", "5ms")
    assert measured["step_s"] == pytest.approx(5e-3)
    text = printed(*command, "--gpu", "h100", "--measured-step", "5ms")
    assert f"{1 / measured['compute_scale']:.1%} of the peak rates" in text


@pytest.mark.parametrize(
    ("gib", "options", "told"),
    [
        (80, ("--gpu", "h100"), f"80 GiB at the peak, of 80 GiB {OF_TENSORS}"),
        (81, ("--gpu", "h100"), f"81 GiB at the peak: MORE THAN THE 80 GiB of the GPU {OF_TENSORS}"),
        (81, ("--gpu", "h200", "--flops", "100TFLOP/s"), f"81 GiB at the peak, of 141 GiB {OF_TENSORS}"),
        (81, ("--flops", "100TFLOP/s", "--memory-bandwidth", "1TB/s"), f"81 GiB at the peak {OF_TENSORS}"),
    ],
)
def test_memory_is_compared_with_the_gpu(trace: Path, gib: int, options: tuple[str, ...], told: str) -> None:
    """If its memory is known; a trace that does not say what it needs has no such line."""
    command = "--network", "dgx-h100-cluster", *options
    assert "memory" not in printed("step", str(trace), *command)
    held = HeldBytes(2**30, 2**30, 2**30, (gib - 3) * 2**30)
    replace(ProgramTrace.load(trace), memory=StepMemory(held, held)).save(trace)
    lines = printed("step", str(trace), *command).splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("  memory ")] == [told]
    assert as_json("step", str(trace), *command)["memory"]["peak"]["rest"] == (gib - 3) * 2**30


def everywhere(trace: Path, *options: str) -> tuple[str, str, dict[str, Any]]:
    """What a command prints, its page without the marks of HTML, and its JSON."""
    command = "step", str(trace), "--network", "dgx-h100-cluster", *options
    text = printed(*command, "-o", str(trace.with_suffix(".html")))
    page = re.sub(r"<[^>]*>", "", trace.with_suffix(".html").read_text())
    return text, page, as_json(*command)


@pytest.mark.parametrize(
    ("options", "basis"),
    [
        (("--gpu", "h100"), "lower bound (roofline at peak rates)"),
        (("--gpu", "h100", "--measured-step", "5ms"), "prediction (computations scaled to a measured step)"),
        (("--gpu", "h100", "--compute-scale", "0.5"), "prediction (computations scaled as asked for)"),
        ((), "prediction (computations as recorded)"),
    ],
)
def test_how_sure_a_step_is_stands_beside_its_time(trace: Path, options: tuple[str, ...], basis: str) -> None:
    """In the text, in the page's title and heading and in its picture, and as JSON; of a bound also for the tokens."""
    text, page, result = everywhere(trace, *options, "--tokens", "9")
    is_bound = basis.startswith("lower bound")
    time = f": {'at least ' if is_bound else ''}{format_time(result['step_s'])}, {basis}"
    assert text.splitlines()[0].endswith(time)
    assert page.count(time) == 3
    assert result["basis"] == basis
    assert ("at most" in text) == is_bound
    assert ("which no GPU can be" in text) == ("0.5" in options)


def test_a_compiled_program_has_a_range(trace: Path) -> None:
    """From what no compiler can remove to eager mode, without a verdict on its memory; a measured step is one."""
    recorded, held = ProgramTrace.load(trace), HeldBytes(0, 0, 0, 2**40)
    extern = Operator("aten.sort_of_mine", "float32", 0, 10**9, is_counted=False)
    own, chain = Operator("aten._fused_adamw_", "float32", 0, 10**9), Operator("aten.add", "float32", 0, 10**10)
    step = TracedStep((compute(0.01, extern, own, chain, Operator("aten.mm", "tf32", 494_700_000_000, 8)),), ())
    replace(recorded, steps=(step,), memory=StepMemory(held, held), is_compiled=True).save(trace)
    text, page, result = everywhere(trace, "--gpu", "h100")
    both = 1e-3 + 2e9 / 3.35e12
    assert result["compiled_between_s"] == pytest.approx([both, both + 1e10 / 3.35e12])
    assert (
        page.count(
            "compiled program: between 1.597 ms and 4.582 ms in eager mode, lower bound (roofline at peak rates)"
        )
        == 3
    )
    assert f"1 TiB at the peak in eager mode {OF_TENSORS}\n" in text
    assert "would take" not in text + page
    text, _, result = everywhere(trace, "--gpu", "h100", "--measured-step", "2ms")
    assert result["compiled_between_s"] is None
    assert "times as long as at the peak rates, recorded in eager mode, though the program compiles its code" in text


def test_operators_that_are_not_counted_are_named(trace: Path) -> None:
    """On the picture too, the most bytes first, unless times were recorded; so are calls by Gloo beside NCCL."""
    operators = [Operator(name, "float32", 0, 2**20, count, is_counted=False) for name, count in (("a.b", 1), ("c", 3))]
    traced(TracedStep((compute(0.01, *operators),), ())).save(trace)
    told = ["3 calls of c, 3 MiB", "1 call of a.b, 1 MiB"]
    text, page, result = everywhere(trace, "--gpu", "h100")
    assert f"  not counted: {'; '.join(told)}\n" in text
    assert page.count("; ".join(told)) == 2
    assert result["not_counted"] == told
    assert "not counted" not in everywhere(trace)[0]
    calls, groups = (all_reduce(2**20), all_reduce(2**20, group=1)), (replace(ALL, backend="nccl"), ALL)
    traced(TracedStep((compute(0.01), call(0), call(1)), calls), groups=groups).save(trace)
    text, page, result = everywhere(trace)
    assert result["not_counted"] == ["1 call of all_reduce by Gloo, timed as NCCL's, 1 MiB"]
    assert f"  not counted: {result['not_counted'][0]}\n" in text
    assert "not counted" not in printed("step", str(trace), "--network", "dgx-h100-cluster", "--device", "cpu")


@pytest.mark.parametrize(("awaited", "unawaited"), [(0, "1 call, 1 MiB"), (1, None)])
def test_calls_that_nobody_waits_for_are_told(trace: Path, awaited: int, unawaited: str | None) -> None:
    """Such as those whose results the next step takes; who waits for a call waits for those before it in its group."""
    calls = all_reduce(2**20, is_async=True), all_reduce(2**20, is_async=True)
    traced(TracedStep((compute(0.01), call(0), call(1), wait(awaited)), calls)).save(trace)
    text, page, result = everywhere(trace)
    told = f"taken to end in their steps, where the program does not wait for them: {unawaited}"
    assert result["unawaited"] == (unawaited and told)
    assert (told in " ".join(text.split()), told in page) == (bool(unawaited), bool(unawaited))


def test_what_happens_every_nth_step_is_in_the_mean(trace: Path) -> None:
    """All figures are those of the mean step, and add up; the picture is of a step with the calls."""
    product = compute(0.0, Operator("aten.mm", "bfloat16", 989_400_000_000, 8))
    plain, calling = TracedStep((product,), ()), TracedStep((product, call(0)), (all_reduce(2**30),))
    traced(*[plain, plain, plain, calling] * 2).save(trace)
    text, page, result = everywhere(trace, "--gpu", "h100")
    long_s = result["steps_s"][3]
    assert result["step_s"] == pytest.approx((3 * 1e-3 + long_s) / 4)
    assert result["exposed_s"] == pytest.approx(result["communication_s"]) == pytest.approx((long_s - 1e-3) / 4)
    assert result["better"]["communication that takes no time"] == pytest.approx(1e-3)
    assert re.search(r"steps +the mean of 8, of 1 ms to .*, median 1 ms\n", text)
    assert re.search(r"all_reduce +4 .* 0\.25  256 MiB", text)
    assert "drawn: step 4 of 8" in page
    traced(calling).save(trace)
    assert "1 recorded, without what is done every n-th step" in everywhere(trace, "--gpu", "h100")[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("network", "suffix"), [("gbe", "png"), ("dgx-h100-cluster", "svg")])
def test_a_step_is_drawn(tmp_path: Path, network: str, suffix: str) -> None:
    """On a CPU and a GPU; every collective is in the legend, however many there are."""
    names = "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "barrier"
    calls = tuple(replace(all_reduce(2**18), collective=name) for name in names)
    traced(TracedStep(tuple(call(index) for index in range(len(calls))), calls)).save(tmp_path / "many.trace.json")
    picture = tmp_path / f"step.{suffix}"
    printed("step", str(tmp_path / "many.trace.json"), "--network", network, "-o", str(picture))
    assert picture.stat().st_size > 1000


def test_a_step_for_perfetto(trace: Path, tmp_path: Path) -> None:
    """A slice for each computation, wait and call, on threads with names."""
    printed("step", str(trace), "--network", "gbe", "-o", str(tmp_path / "step.json"))
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    slices = [event["name"] for event in events if event["ph"] == "X"]
    assert slices == ["compute", "compute", "wait for all_reduce 0", "wait for all_reduce 1", "all_reduce 0",
                      "all_reduce 1"]  # fmt: skip
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == ["compute", "ranks 0 to 3", "ranks 0 to 2 by 2"]


def test_a_step_that_never_ends_is_told(trace: Path, tmp_path: Path) -> None:
    """Without a number that is none."""
    (tmp_path / "broken.toml").write_text(
        """[host]\nranks = 1\n[host.nic]\nlatency = "1us"\nbandwidth = "1GB/s"\n[[failure]]\nrank = 2\nat = "0s"\n"""
    )
    text = printed("step", str(trace), "--network", str(tmp_path / "broken.toml"), "--tokens", "9")
    assert text.startswith("a step of 4 ranks, each on a CPU: never")
    assert "nan" not in text
    assert "inf" not in text
    for name in ("step.json", "step.svg"):
        result = invoke("step", str(trace), "--network", str(tmp_path / "broken.toml"), "-o", str(tmp_path / name))
        assert result.exit_code == 2
        assert f"{name}: the step never ends, as something fails: there is nothing to draw" in result.stderr
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--network", "gbe", "--measured-step", "1us"), "communication alone takes"),
        (("--network", "gbe", "--flops", "1TFLOP/s"), "give --gpu, or both --flops and --memory-bandwidth"),
        (("--network", "gbe", "--flops", "fast"), "'fast' is not a rate of computing: write it as 400TFLOP/s"),
        (("--network", "gbe", "--flops", "0"), "must be at least 1 FLOP/s"),
        (("--compute-scale", "inf"), "inf is not in the range 0<x<=1000000000.0"),
        (("--compute-scale", "2", "--measured-step", "1s"), "--compute-scale and --measured-step exclude each other"),
        (("--network", "gbe", "--style", "dark"), "--style has no effect without --output"),
        (("--network", "gbe", "-o", "step.txt"), "step.txt: must end in .png, .pdf, .svg, .html, .json"),
    ],
)
def test_mistakes(trace: Path, options: tuple[str, ...], message: str) -> None:
    """One line each."""
    assert message in refused("step", str(trace), *options)


def test_a_step_without_times_needs_a_device(tmp_path: Path) -> None:
    """As one that was recorded with --fake; on a GPU its operators have times."""
    path = tmp_path / "fake.trace.json"
    for operator in (Operator("aten.mm", "bfloat16", 10**12, 8), Operator("aten.embedding", "bfloat16", 0, 10**9)):
        traced(TracedStep((compute(0.0, operator), call(0)), (all_reduce(2**20),))).save(path)
        assert "recorded with --fake" in refused("step", path, "--network", "dgx-h100-cluster")
        assert as_json("step", path, "--network", "dgx-h100-cluster", "--gpu", "h100")["compute_s"] > 0


def test_a_gpu_times_only_steps_whose_operators_are_known(tmp_path: Path) -> None:
    """A step with other calls than the watched one has only its times, which are not those of a GPU."""
    product = Operator("aten.mm", "bfloat16", 10**12, 8)
    watched = TracedStep((compute(0.01, product), call(0)), (all_reduce(2**20),))
    others = [TracedStep((compute(0.01), call(0)), (all_reduce(2**10),))] * 2
    path = tmp_path / "step.trace.json"
    for steps in ((watched, *others), (*others, watched)):
        traced(*steps).save(path)
        result = as_json("step", path, "--network", "dgx-h100-cluster", "--gpu", "h100")
        assert result["steps_s"] == [result["step_s"]]
        assert result["compute_s"] == pytest.approx(1e12 / 989.4e12)
        text = printed("step", str(path), "--network", "dgx-h100-cluster", "--gpu", "h100")
        assert "; 2 left out, whose calls are not those of the watched step" in text
    assert len(as_json("step", path, "--network", "dgx-h100-cluster")["steps_s"]) == 3
