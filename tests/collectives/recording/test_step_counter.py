"""The recorded step is a usual one, also where some steps contain a validation or have another batch."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from collectives.recording.step_counter import StepWork, usual_step
from ringsim.traces import Device, ProgramTrace, TraceRequest
from tests.collectives.recording.recorded import IMPORTS, record, recorded, trace_of

PROGRAM = f"""{IMPORTS}
sizes, every, device = eval(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("nccl" if device == "cuda" else "gloo")
model = nn.Linear(64, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    if step and step % every == 0:
        with torch.no_grad():
            metric = model(torch.ones(4096, 64, device=device)).relu().mean()
        if device == "cuda":  # on a CPU the steps whose times are measured are recorded as they come
            dist.all_reduce(metric)
    loss = model(torch.ones(sizes[step % len(sizes)], 64, device=device)).sum()
    loss.backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
"""


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("device", Device)
def test_a_validation_is_not_part_of_the_step(tmp_path: Path, every: int, device: Device) -> None:
    """Nor is its memory, which is more than that of the training."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    is_fake = device is Device.CUDA
    trace = trace_of(program, "[32]", str(every), device.value, is_fake=is_fake, device=device)
    assert trace.steps[0].flops == 2 * 2 * 32 * 64 * 64
    assert [call.size_bytes for call in trace.steps[0].calls] == [64 * 64 * 4]
    assert trace.memory is not None
    assert trace.memory.peak.total < 4096 * 64 * 4


def test_all_steps_are_recorded_as_they_come_where_many_are_asked_for(tmp_path: Path) -> None:
    """Then the validation counts in the mean."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    trace = trace_of(program, "[32]", "2", "cuda", num_steps=2, is_fake=True, device=Device.CUDA)
    assert [step.flops // (2 * 64 * 64) for step in trace.steps] == [2 * 32 + 4096, 2 * 32]


ROLLOUTS = f"""{IMPORTS}
import warnings
warnings.filterwarnings("ignore")
dist.init_process_group("nccl")
model = nn.Linear(64, 64, device="cuda")
optimizer, outer = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters())
for step in range(99):
    if step % 4 == 0:
        with torch.inference_mode():
            reward = model(torch.ones(4096, 64, device="cuda")).mean()
        dist.all_reduce(reward)
    model(torch.ones(32, 64, device="cuda")).sum().backward()
    optimizer.step()
    if step % 4 == 3:
        outer.step()
"""


NO_CALLS = "the ranks do not communicate in the recorded step: if they do every few steps"


def steps_and_warnings(request: TraceRequest) -> tuple[list[tuple[int, int]], list[str]]:
    """Return rows of products and calls of each step, and what the user is told."""
    with warnings.catch_warnings(record=True) as told:
        trace = record(request)
    assert isinstance(trace, ProgramTrace), trace
    steps = [(step.flops // (2 * 64 * 64), len(step.calls)) for step in trace.steps]
    return steps, [str(warning.message).partition(",")[0] for warning in told]


@pytest.mark.parametrize("num_steps", [1, 4])
def test_what_precedes_every_fourth_step_is_recorded_or_told(num_steps: int) -> None:
    """A rollout and an outer optimizer, although the program ignores warnings."""
    options = {"is_fake": True, "device": Device.CUDA, "num_steps": num_steps}
    steps, told = recorded(ROLLOUTS, call=steps_and_warnings, **options)
    if num_steps == 1:
        assert (steps, told) == ([(64, 0)], ["one of the first two steps", "an optimizer", NO_CALLS])
    else:
        assert (steps, told) == ([(64, 0), (64, 0), (64 + 4096, 1), (64, 0)], [])


def test_a_first_step_with_little_more_work_is_not_told() -> None:
    """Whether or not that recurs, the step takes as long within the error of a prediction."""
    program = ROLLOUTS.replace("4096", "2")
    _, told = recorded(program, call=steps_and_warnings, is_fake=True, device=Device.CUDA)
    assert told == ["an optimizer", NO_CALLS]


def messages(request: TraceRequest) -> list[str]:
    """Return the warnings of a recording."""
    with warnings.catch_warnings(record=True) as told:
        record(request)
    return [str(warning.message) for warning in told]


def test_all_runs_of_a_compiled_rollout_are_counted() -> None:
    """Also those after the first, of which only what has effects is run."""
    halves = "reward = sum(part(torch.ones(2048, 64, device='cuda')).mean() for _ in range(2))"
    program = ROLLOUTS.replace('reward = model(torch.ones(4096, 64, device="cuda")).mean()', halves)
    program = program.replace("for step in", "part = torch.compile(model)\nfor step in")
    assert program.count("part") == 2
    first, *_ = recorded(program, call=messages, is_fake=True, device=Device.CUDA)
    flops = 2 * 64 * 64 * (4096 + 2 * 32)  # and a step
    assert f" has {flops / 1e12:.4g} TFLOP, and no later one more than" in first


BY_GROUPS = f"""{IMPORTS}
dist.init_process_group("nccl")
models = [nn.Linear(64, 64, device="cuda") for _ in range(3)]
optimizer = torch.optim.Adam([{{"params": list(model.parameters())}} for model in models])
groups = optimizer.param_groups
for _ in range(9):
    nn.Sequential(*models)(torch.ones(32, 64, device="cuda")).sum().backward()
    for model in models:
        dist.all_reduce(model.weight.grad)
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()
"""


def test_an_optimizer_that_updates_group_by_group_ends_a_step_once() -> None:
    """As within DeepSpeed's ZeRO, which steps it for one group after the other."""
    steps, told = recorded(BY_GROUPS, call=steps_and_warnings, is_fake=True, device=Device.CUDA)
    assert (steps, told) == ([(32 * 8, 3)], [])


def test_what_follows_an_epoch_may_be_calls_alone() -> None:
    """Such as those that average a metric."""
    plain, with_metric = (
        StepWork(5, (("all_reduce", 64, 0),)),
        StepWork(5, (("all_reduce", 64, 0), ("all_reduce", 4, 0))),
    )
    assert usual_step([StepWork(0), plain, with_metric, plain], is_last=False) == 3
    of_new_buckets = StepWork(5, (("all_reduce", 60, 0), ("all_reduce", 4, 0)))
    assert usual_step([StepWork(0), of_new_buckets, with_metric, plain, with_metric], is_last=False) == 3


@pytest.mark.parametrize(
    ("flops", "is_last", "usual"),
    [
        ([0, 5, 5], False, 2),
        ([0, 5, 9], False, None),
        ([0, 5, 9, 5], False, 3),
        ([0, 5, 9, 9], False, 2),
        ([0, 9, 5, 9, 5], False, 2),  # every second step follows an epoch
        ([0, 5, 3, 9, 5], False, 4),
        ([0, 1, 4, 3, 2], True, 3),  # all differ
        ([0, 5, 9], True, 2),
        ([0, 5], True, None),
    ],  # of the operations of each step
)
def test_the_usual_step_is_like_another(flops: list[int], is_last: bool, usual: int | None) -> None:
    """Where none is, it is one with the median operations; the first two steps differ in their calls."""
    assert usual_step([StepWork(number) for number in flops], is_last) == usual


BUCKETS = f"""{IMPORTS}
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters())
first, last = int(sys.argv[1]), int(sys.argv[2])
for step in range(last + 1):
    model.require_backward_grad_sync = step >= first  # as no_sync sets it
    model(torch.ones(32, 64)).sum().backward()
    optimizer.step()
raise AssertionError
"""


@pytest.mark.parametrize(
    ("first", "last", "options"),
    [
        (0, 2, {"is_fake": True}),
        (2, 4, {"is_fake": True}),
        (4, 6, {"is_fake": True}),
        (4, 7, {"is_fake": True, "num_steps": 2}),
        (2, 5, {}),
    ],
)
def test_three_steps_of_ddp_suffice(first: int, last: int, options: dict[str, Any]) -> None:
    """From the first one that synchronises; the next is as usual but for broadcasts of the sizes of its buckets."""
    for step in trace_of(BUCKETS, str(first), str(last), **options).steps:
        assert [call.collective for call in step.calls] == ["all_reduce"] * 2


LOCAL = f"""{IMPORTS}
import warnings
warnings.filterwarnings("ignore")
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters())
for step in range(99):
    model.require_backward_grad_sync = step % 4 == 3
    model(torch.ones(32, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("num_steps", "calls", "told"), [(1, [0], [NO_CALLS]), (4, [0, 2, 0, 0], [])], ids=["usual", "all"]
)
def test_ranks_that_communicate_every_few_steps_are_told(num_steps: int, calls: list[int], told: list[str]) -> None:
    """If no recorded step has calls."""
    steps, warned = recorded(LOCAL, call=steps_and_warnings, is_fake=True, num_steps=num_steps)
    assert ([num_calls for _, num_calls in steps], warned) == (calls, told)
