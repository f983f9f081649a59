"""The times of a GPU's kernels: their formulas, and its file."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from kernel_times import attentions, errors, products, rates_of_attention
from ringsim.gpus import Gpu, gpu_names, load_gpu
from ringsim.network import Network
from ringsim.traces import Attention, Group, Operator, Product, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step import (
    Computing,
    StepSimulation,
    fitted_scale,
    gpu_interval,
    predict_trace,
    with_better_steps,
    with_step_interval,
)
from tests.ringsim.made_networks import made_network
from tests.ringsim.traces.made_trace import all_reduce, call, traced

ROUND = """
name = "round numbers"
source = "none"
multiprocessors = 10
memory = "1GiB"
bandwidth = "1GB/s"
peak = {bits16 = "10GFLOP/s"}
product = {share = 0.5, depth = 0, traffic = 0, start = "0s"}
attention = {share = 0.5, backward_share = 0.25, width = 0, depth = 0, tail = 0, start = "0s"}
kernel = {memory_share = 0.5, gap = "0s"}
cpu = {operator = "0s", kernel = "0s", call = "0s"}
"""


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    """The GPU of a file, with round numbers."""
    (tmp_path / "round.toml").write_text(ROUND)
    return load_gpu(str(tmp_path / "round.toml"))


def mm(m: int, n: int, k: int, count: int = 1, size_bytes: int = 0) -> Operator:
    """Return a product."""
    product = Product(m, n, k, count)
    return Operator("aten.mm", "bfloat16", 2 * count * m * n * k, size_bytes, product=product)


@pytest.mark.parametrize(
    ("operator", "seconds"),
    [
        (mm(64, 64, 1000), 2 * 64 * 64 * 1000 / 0.5e9),  # one multiprocessor, of the ten
        (mm(640, 64, 1000), 2 * 64 * 64 * 1000 / 0.5e9),  # each has a tile
        (mm(64, 64, 1000, 10), 2 * 64 * 64 * 1000 / 0.5e9),
        (mm(704, 64, 1000), 2 * 128 * 64 * 1000 / 0.5e9),  # eleven tiles are more than a wave, six larger ones are not
        (mm(64, 64, 1000, 1, 10**9), 2.0),  # its memory takes longer
        (replace(mm(64, 64, 1000), flops=4 * 64 * 64 * 1000), 4 * 64 * 64 * 1000 / 0.5e9),  # two gradients
        (Operator("aten.add", "bfloat16", 0, 10**9), 2.0),
        (Operator("aten.lstm", "bfloat16", 10**9, 0), 0.2),  # of unknown sizes: at the rate of a product
    ],
)
def test_a_kernel_takes_as_long_as_its_waves_or_its_memory(gpu: Gpu, operator: Operator, seconds: float) -> None:
    """Worked by hand; 1 GFLOP/s for each multiprocessor, of which half is reached."""
    assert gpu.kernel_s(operator) == pytest.approx(seconds)


def test_attention_reads_the_keys_that_its_mask_leaves(gpu: Gpu) -> None:
    """Ten blocks of 128 queries, each with 256 keys; a causal mask leaves half, and the longest block has them all."""
    whole = 4 * 10 * 128 * 256 * 64
    attention = Attention(1, 10, 128, 256, 64)
    block_s = 4 * 128 * 256 * 64 / 1e9
    forward = Operator("aten.attention", "bfloat16", whole, 0, attention=attention)
    assert gpu.kernel_s(forward) == pytest.approx(block_s / 0.5)
    backward = replace(forward, name="aten.attention_backward", flops=5 * whole // 2)
    assert gpu.kernel_s(backward) == pytest.approx(2.5 * block_s / 0.25)
    wide = replace(forward, flops=100 * whole)  # values wider than queries: never below the peak rate
    assert gpu.kernel_s(wide) == pytest.approx(100 * whole / 10e9)
    many = replace(forward, flops=50 * whole, attention=replace(attention, batch=100))  # half of the pairs
    mean_s = 4 * 128 * (128 + 64) * 64 / 1e9  # a block on the diagonal computes what the mask removes
    assert gpu.kernel_s(many) == pytest.approx(100 * mean_s / 0.5)


def test_kernels_of_cudnn_have_figures_of_their_own(gpu: Gpu) -> None:
    """Where a GPU's file has them."""
    attention = Attention(1, 10, 128, 256, 64)
    whole = 4 * 10 * 128 * 256 * 64
    cudnn = Operator("aten._scaled_dot_product_cudnn_attention", "bfloat16", whole, 0, attention=attention)
    flash = replace(cudnn, name="aten._scaled_dot_product_flash_attention")
    assert gpu.kernel_s(cudnn) == gpu.kernel_s(flash)
    faster = replace(gpu, cudnn_attention=replace(gpu.attention, share=1.0))
    assert faster.kernel_s(flash) == pytest.approx(2 * faster.kernel_s(cudnn))


def test_calls_take_multiprocessors_and_leave_memory(gpu: Gpu) -> None:
    """Five of ten occupied: ten tiles are two waves."""
    event = TraceEvent(
        TraceEventKind.COMPUTE, operators=(mm(640, 64, 1000), Operator("aten.add", "bfloat16", 0, 10**8))
    )
    alone_s, together_s = (gpu.seconds(event, occupied) for occupied in (0, 5))
    assert alone_s == pytest.approx(2 * 64 * 64 * 1000 / 0.5e9 + 0.2)
    assert together_s == pytest.approx(2 * 128 * 64 * 1000 / 0.5e9 + 0.2)


def test_kernels_and_calls_wait_for_the_cpu(gpu: Gpu) -> None:
    """It issues one after the other; a step is as long as the slower of the two."""
    add = Operator("aten.add", "bfloat16", 0, 10**8, count=10)  # 2 s
    computation = TraceEvent(TraceEventKind.COMPUTE, operators=(add,))
    compiled = replace(computation, operators=(replace(add, in_graph=True),))
    for first, operator_s, call_s, expected_s in (
        (computation, 0.1, 0.0, 4.0), (computation, 0.5, 0.0, 10.0), (computation, 0.5, 7.0, 17.0),
        (computation, 0.1, 7.0, 9.0), (compiled, 0.5, 7.0, 13.0),
    ):  # fmt: skip
        step = TracedStep((first, call(0), computation), (all_reduce(8, is_async=True),))
        cpu = replace(gpu.cpu, operator_s=operator_s, kernel_s=0.1, call_s=call_s)
        computing = Computing(on_gpu=True, rates=replace(gpu, cpu=cpu))
        timeline = predict_trace(
            traced(step), Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0), computing
        ).timeline
        assert timeline.computations[-1].end_s == pytest.approx(expected_s)
        assert timeline.calls[0].begin_s >= 10 * (0.1 if first is compiled else operator_s) + call_s
        assert timeline.issuing_s == 0.0  # nothing waits for the call but the end of the step


def test_the_interval_contains_the_times_of_the_cpu(gpu: Gpu) -> None:
    """A step that the CPU bounds takes `within` times as long; the half-widths add as those of the fabric do."""
    add = Operator("aten.add", "bfloat16", 0, 2, count=100)
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(add,)),), ())
    cpu = replace(gpu.cpu, operator_s=1.0, within=(0.5, 1.0))
    computing = Computing(on_gpu=True, rates=replace(gpu, cpu=cpu, within=(0.9, 1.25)))
    prediction = predict_trace(traced(step), Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0), computing)
    middle, half = np.sqrt(0.9 * 1.25), np.log(1.25 / 0.9) / 2
    expected = middle * np.exp(-np.hypot(half, np.log(2))), 1.25
    assert prediction.issue_s == pytest.approx(100.0)
    ends_s = with_step_interval(prediction).interval.ends
    assert ends_s == pytest.approx([100 * end for end in expected], rel=1e-3)
    assert gpu_interval((0.9, 1.25), 100.0, (50.0, 80.0)).ends == pytest.approx([100 * end for end in expected])


def test_a_wait_for_the_cpu_is_not_exposed_communication(gpu: Gpu) -> None:
    """A computation of 2 s, which is issued in 1 s, and a call of 8 s, which the CPU needs 7 s to issue."""
    add = Operator("aten.add", "bfloat16", 0, 10**9)
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(add,)), call(0)), (all_reduce(8),))
    computing = Computing(on_gpu=True, rates=replace(gpu, cpu=replace(gpu.cpu, operator_s=1.0, call_s=7.0)))
    network = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    timeline = predict_trace(traced(step), network, computing).timeline
    alone_s = timeline.communication_s
    assert (timeline.compute_s, timeline.issuing_s, timeline.exposed_s) == pytest.approx((2.0, 6.0, alone_s))
    assert timeline.step_s == pytest.approx(8.0 + alone_s)


def test_without_communication_the_cpu_still_issues_the_work(gpu: Gpu) -> None:
    """A call of 8 bytes, while the CPU issues a kernel for 20 s; a program that runs on a CPU issues nothing."""
    add = Operator("aten.add", "bfloat16", 0, 10**9)
    step = TracedStep((call(0), TraceEvent(TraceEventKind.COMPUTE, operators=(add,))), (all_reduce(8),))
    computing = Computing(on_gpu=True, rates=replace(gpu, cpu=replace(gpu.cpu, operator_s=20.0)))
    network = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    prediction = predict_trace(traced(step), network, computing)
    assert prediction.mean.exposed_s > 0.0
    assert dict(with_better_steps(prediction).better)["communication that takes no time"] == pytest.approx(20.0)
    assert predict_trace(traced(step), network, dataclasses.replace(computing, on_gpu=False)).issue_s == 0.0


def test_the_interval_is_that_of_published_steps(gpu: Gpu) -> None:
    """Of the file, or that of a GPU of which only the data sheet is known; none of a step that was measured."""
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(mm(64, 64, 1000),)),), ())
    for rates, is_fitted, expected in (
        (replace(gpu, within=(0.9, 1.2)), False, (0.9, 1.2)), (gpu, False, (0.82, 1.34)),
        (replace(gpu, within=(0.9, 1.2)), True, None),
    ):  # fmt: skip
        computing = Computing(on_gpu=True, rates=rates, is_fitted=is_fitted)
        prediction = predict_trace(traced(step), Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0), computing)
        interval = with_step_interval(prediction).interval
        found = interval and tuple(end_s / prediction.mean.step_s for end_s in interval.ends)
        assert found == (expected and pytest.approx(expected))


@pytest.mark.parametrize(("ranks_per_host", "is_wider"), [(1, True), (2, False)])
def test_the_interval_contains_the_rates_across_hosts(gpu: Gpu, ranks_per_host: int, is_wider: bool) -> None:
    """The half-widths of logarithms add in quadrature around the middle of the GPU's; on one host the GPU's remains."""
    event = TraceEvent(TraceEventKind.COMPUTE, operators=(mm(64, 64, 1000),))
    program = traced(TracedStep((event, call(0)), (all_reduce(10**7),)), groups=(Group((0, 1), "nccl"),), num_ranks=2)
    computing = Computing(on_gpu=True, rates=replace(gpu, within=(0.9, 1.25)))

    known, plain, *ends = (
        with_step_interval(predict_trace(program, made_network(fabric, ranks_per_host), computing))
        for fabric in (
            "[[fabric]]\nhosts = 2\nshare = 0.5\nlow = 0.25\nhigh = 1\n", "[[fabric]]\nhosts = 2\nshare = 0.5\n",
            "[[fabric]]\nhosts = 2\nshare = 1\n", "[[fabric]]\nhosts = 2\nshare = 0.25\n",
        )
    )  # fmt: skip
    step_s, fast_s, slow_s = (prediction.mean.step_s for prediction in (plain, *ends))
    assert (fast_s < step_s < slow_s) == is_wider
    middle_s, half = np.sqrt(0.9 * 1.25) * step_s, np.log(1.25 / 0.9) / 2
    shorter, longer = np.hypot(half, np.log([step_s / fast_s, slow_s / step_s]))
    ends_s = middle_s * np.exp(-shorter), middle_s * np.exp(longer)
    assert known.interval.ends == pytest.approx(ends_s, rel=0.02)  # whose latencies are longer and shorter, too
    assert plain.interval.ends == pytest.approx((0.9 * step_s, 1.25 * step_s))


def test_a_step_waits_for_the_slowest_gpu(gpu: Gpu) -> None:
    """Relative to that of a host of eight; the median and the 95th percentile of many draws."""
    spread = replace(gpu, spread=0.02)
    draws = 1 + 0.02 * np.random.default_rng(0).standard_normal((20_000, 64))
    for num_gpus in (1, 8, 64):
        slowest = draws[:, :num_gpus].max(axis=1) / np.median(draws[:, :8].max(axis=1))
        found = spread.slowness(num_gpus), spread.slowness(num_gpus, 0.95)
        assert found == pytest.approx(np.quantile(slowest, (0.5, 0.95)), abs=5e-4)
    assert (gpu.slowness(64), spread.slowness(8)) == (1.0, 1.0)
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(mm(64, 64, 1000),)),), ())
    network = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    step_s = 2 * 64 * 64 * 1000 / 0.5e9
    for rates, is_fitted, p95 in ((spread, False, 0.95), (gpu, False, None), (spread, True, None)):
        computing = Computing(on_gpu=True, rates=rates, is_fitted=is_fitted)
        prediction = with_step_interval(predict_trace(traced(step, num_ranks=64), network, computing))
        assert prediction.mean.step_s == pytest.approx(step_s * rates.slowness(64))
        assert prediction.p95_s == (p95 and pytest.approx(step_s * rates.slowness(64, p95)))


def test_a_step_that_never_ends_has_no_numbers_in_json(gpu: Gpu) -> None:
    """A rank fails; JSON has no infinity."""
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(mm(64, 64, 1000),)), call(0)), (all_reduce(8),))
    network = made_network('[[failure]]\nrank = 1\nat = "0s"')
    computing = Computing(on_gpu=True, rates=replace(gpu, spread=0.02))
    result = with_step_interval(predict_trace(traced(step), network, computing)).as_dict()
    assert [result[name] for name in ("step_s", "predicted_low_s", "predicted_high_s", "p50_s", "p95_s")] == [None] * 5


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("a100", "a100-sxm-80gb"),
        ("h100", "h100-sxm-80gb"),
        ("h200", "h200-sxm"),
        ("b200", "b200-sxm"),
        ("b300", "b300-sxm"),
        ("gb200", "gb200"),
        ("l40s", "l40s"),
    ],
)
def test_presets_agree_with_measured_kernels(name: str, table: str) -> None:
    """Of sizes as in training; the limits are those of a fit with four numbers (scripts/kernel_times.py)."""
    gpu = load_gpu(name)
    gpu = replace(gpu, kernel=replace(gpu.kernel, clock=1.0, gap_s=0.0))
    tables = [products(table)] + ([attentions(table)] if name in ("a100", "h100", "b200", "l40s") else [])
    if name == "h100":
        tables += [rates_of_attention(table, "flash-2"), rates_of_attention(table, "cudnn", ["backward"])]
    for timed in tables:
        found = np.abs(errors(gpu, timed[:: max(1, len(timed) // 300)]))
        assert np.median(found) < 0.11
        assert np.percentile(found, 90) < 0.28


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_a_preset_or_a_file(tmp_path: Path) -> None:
    """Every preset can be read; mistakes name the file, the key, the value and the rule."""
    for name in gpu_names():
        preset = load_gpu(name)
        assert preset.roofline.memory_bytes == preset.memory_bytes
        assert preset.kernel_s(mm(4096, 4096, 4096)) > preset.roofline.seconds(
            TraceEvent(TraceEventKind.COMPUTE, operators=(mm(4096, 4096, 4096),))
        )
    with pytest.raises(ValueError, match="GPU 'h10': did you mean h100"):
        load_gpu("h10")
    for before, after, told in (
        ("share = 0.5, depth", "share = 1.5, depth", "round.toml: product.share = 1.5: must be a finite number"),
        ('memory = "1GiB"', "memory = 1", "round.toml: memory = 1: must be text"),
        ('"10GFLOP/s"', '"fast"', 'round.toml: peak.bits16 = "fast": is not a rate of computing'),
        ('memory = "1GiB"', 'memory = "0GiB"', "round.toml: memory: must not be empty"),
        ("bits16", "bf16", "round.toml: peak.bf16: must be one of bits8"),
        ('bits16 = "10GFLOP/s"', "", "round.toml: peak: must not be empty"),
        ("share = 0.5, depth", "share = 0, depth", "round.toml: product.share = 0: must be a finite number"),
        ("multiprocessors = 10", "", "round.toml: multiprocessors is missing"),
        (", tail = 0", "", "round.toml: attention: tail is missing"),
        (
            "multiprocessors = 10",
            "multiprocessors = 10\nwithin = [1.3, 0.8]",
            "within = [1.3, 0.8]: the first multiple",
        ),
        ("call = ", "within = [1, 0.5], call = ", "cpu: within = [1.0, 0.5]: the first multiple"),
        ("call = ", "within = [0.5], call = ", "cpu.within = [0.5]: must be a list of 2 values"),
    ):
        (tmp_path / "round.toml").write_text(ROUND.replace(before, after))
        with pytest.raises(ValueError, match="round.toml: ") as error:
            load_gpu(str(tmp_path / "round.toml"))
        assert told in str(error.value)


def test_a_data_sheet_suffices(tmp_path: Path) -> None:
    """Tables that are left out have typical figures: 80 % of measured GPUs lie in `within`."""
    (tmp_path / "sheet.toml").write_text("\n".join(ROUND.splitlines()[:7]))
    sheet, large = load_gpu(str(tmp_path / "sheet.toml")), mm(8192, 8192, 8192)
    assert sheet.within == (0.82, 1.34)
    h100 = load_gpu("h100")
    for table in ("attention", "kernel", "cpu"):
        typical, figures = ({**asdict(getattr(gpu, table)), "within": 1.0} for gpu in (sheet, h100))
        assert typical == pytest.approx(figures), table
    assert sheet.cpu.within == h100.cpu.within
    v100 = load_gpu("v100").roofline
    assert v100.peak("tf32") == v100.peak("float32") > v100.peak("float64") == v100.peak("uint8")
    measured = [load_gpu(name) for name in ("a100", "h100", "h200", "b200", "b300", "gb200", "l40s")]
    ratios = np.array([gpu.kernel_s(large) / replace(gpu, product=sheet.product).kernel_s(large) for gpu in measured])
    assert np.mean((sheet.within[0] < ratios) & (ratios < sheet.within[1])) > 0.8


def test_a_measured_step_is_explained_by_computations_and_their_issuing(gpu: Gpu) -> None:
    """With the scale that is found, of kernels and of their issuing, the step is the measured one."""
    add = Operator("aten.add", "bfloat16", 0, 10**8, count=10)
    step = TracedStep((TraceEvent(TraceEventKind.COMPUTE, operators=(add,)), call(0)), (all_reduce(8),))
    network = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    computing = Computing(on_gpu=True, rates=replace(gpu, cpu=replace(gpu.cpu, operator_s=0.1, call_s=0.5)))
    simulation = StepSimulation(traced(step), network, computing)
    for measured_s in (13.0, 16.0, 20.0):  # the first is shorter than the CPU takes unscaled
        scaled = dataclasses.replace(computing, scale=fitted_scale(simulation, measured_s), is_fitted=True)
        assert predict_trace(traced(step), network, scaled).mean.step_s == pytest.approx(measured_s)


def test_the_documented_file_is_the_preset(tmp_path: Path) -> None:
    """But for its source and a rate."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "files.md").read_text()
    text = page.partition("## GPU files")[2].partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "h100.toml").write_text(text)
    documented, preset = load_gpu(str(tmp_path / "h100.toml")), load_gpu("h100")
    assert replace(documented, source="", peak=preset.peak) == replace(preset, source="")
