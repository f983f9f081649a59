"""What is recorded of a job's strategies, and the time of a step that is made of it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch.distributed as dist

from collectives.runtime import Recorder
from ringsim.native import BACKENDS
from ringsim.network import Cluster
from ringsim.network.spec import Host, Link, Processor, Spec
from ringsim.traces import Call, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step import GroupCalls
from tests.ranks import RankPool
from trainers.comparison.config import JobConfig
from trainers.comparison.profile import Memory, measure_memory
from trainers.comparison.recorded_steps import RecordedStep, predict_steps, together
from trainers.comparison.recording import STEPS, RecordedRuns, num_recorded
from trainers.loop.config import StepConfig
from trainers.loop.train_step import StepResult, TrainStep
from trainers.strategy_names import STRATEGY_INFOS
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, learning_rate=1e-2, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
NAMES = tuple(name for name in STRATEGY_INFOS if name not in ("flat", "rs_ag", "ddp_hook_bf16", "fsdp_backend_ring"))
CONFIG = JobConfig(TASK, StepConfig(batch_size=3, seed=5), NAMES, steps=20)
HOST = Host(link=Link(latency_s=1e-3, bandwidth_bytes_per_s=1e6))
NETWORK = Cluster("two", Spec(host=HOST), "", "")
GROUPS = [GroupCalls(NETWORK, 2, BACKENDS["gloo"])]
CALLS = (Call("all_reduce", 1000, "float32", 0, is_async=False), Call("all_reduce", 1000, "float32", 0, is_async=True))
SENT_S = GROUPS[0].alone_s(GROUPS[0].call(CALLS[0]))


def event(kind: TraceEventKind, call: int) -> TraceEvent:
    """A call, or a wait."""
    return TraceEvent(kind, call=call)


def step_of(*seconds: float) -> TracedStep:
    """A step that computes five times: before a call, another, a wait for that, and some more in two parts."""
    first, second, third, fourth, fifth = (TraceEvent(TraceEventKind.COMPUTE, one) for one in seconds)
    calls = event(TraceEventKind.CALL, 0), event(TraceEventKind.CALL, 1), event(TraceEventKind.WAIT, 1)
    return TracedStep((first, calls[0], second, calls[1], third, calls[2], fourth, fifth), CALLS)


def test_computations_are_cut_at_moments() -> None:
    """Also several times; what is before the first moment and after the last one is left out."""
    cut = RecordedStep.cut_from(step_of(1.0, 2.0, 4.0, 8.0, 16.0), [0.25, 0.5, 3.5, 5.0, 31.0])
    kinds = [one.kind is TraceEventKind.COMPUTE for one in cut.step.events]
    assert [one.seconds for one in cut.step.events] == [0.25, 0.5, 0.0, 2.0, 0.0, 0.5, 1.5, 2.0, 0.0, 8.0, 16.0]
    assert kinds == [True, True, False, True, False, True, True, True, False, True, True]
    assert cut.moments == (0, 1, 6, 7, 11)


# The moments at which the forward pass, the exchange of losses, the last gradient, the backward pass, the gathering of
# parameters and the step end. The fourth computation is the optimizer's.
MOMENTS = (0, 1, 2, 4, 6, 7, 7, 8)


def test_the_slowest_rank_counts_up_to_each_call() -> None:
    """After the last call it is the rank that is asked for; a call needs what it needs on the slower rank."""
    one = RecordedStep(step_of(1.0, 2.0, 3.0, 4.0, 5.0), MOMENTS)
    other_step = step_of(0.5, 2.5, 3.5, 6.0, 7.0)
    calls = tuple(replace(call, local_s=0.25) for call in CALLS)
    other = RecordedStep(replace(other_step, calls=calls), MOMENTS)
    both = together([one, other], typical=0)
    seconds = [event.seconds for event in both.step.events if event.kind is TraceEventKind.COMPUTE]
    assert seconds == [1.0, 2.5, 3.5, 4.0, 5.0]
    assert both.step.calls == calls
    assert both.moments == MOMENTS
    assert together([one, other], typical=1).step.compute_s == 1.0 + 2.5 + 3.5 + 6.0 + 7.0


def test_a_step_is_computing_and_what_it_waits_for() -> None:
    """Synchronising begins with the last gradient; with one core computing is slower while the second call goes on."""
    recorded = RecordedStep(step_of(1.0, 2.0, 0.001, 4.0, 5.0), MOMENTS)
    hidden = predict_steps([[recorded], [recorded]], GROUPS, pace=1.0, period=1)
    assert hidden.sync_s == pytest.approx(SENT_S)
    assert hidden.step_s == pytest.approx(1.0 + SENT_S + 2.0 + SENT_S + 4.0 + 5.0)
    behind = predict_steps([[recorded], [recorded]], GROUPS, pace=0.5, period=1)
    assert behind.sync_s == pytest.approx(0.001 + SENT_S)
    assert behind.step_s == pytest.approx(hidden.step_s + 0.001)


def test_a_period_counts_as_a_whole() -> None:
    """The mean of its steps, and then the median of periods."""
    calls = step_of(1.0, 2.0, 3.0, 4.0, 5.0)
    alone = TracedStep((TraceEvent(TraceEventKind.COMPUTE, 3.0),), ())
    steps = [RecordedStep(alone, (0, 0, 0, 1, 1, 1, 1, 1)), RecordedStep(calls, MOMENTS)] * 3
    period = predict_steps([steps], GROUPS, pace=0.5, period=2)
    whole = predict_steps([steps[1:2]], GROUPS, pace=0.5, period=1)
    assert period.sync_s == pytest.approx(whole.sync_s / 2)
    assert period.step_s == pytest.approx((3.0 + whole.step_s) / 2)


def test_late_calls_of_a_period_are_spread_over_its_calls() -> None:
    """A strategy that calls once in eight steps has as many late calls as one that calls in each."""
    late = NETWORK.with_spec(processor=Processor(torch_late_share=0.1, torch_late_s=80.0))
    silent = RecordedStep(TracedStep((), ()), (0, 0, 0, 0, 0, 0, 0, 0))
    calling = RecordedStep(TracedStep((event(TraceEventKind.CALL, 0),), CALLS[:1]), (0, 0, 0, 0, 0, 1, 1, 1))
    steps = [[*[silent] * 7, calling] * 2]
    predictions = (
        predict_steps(steps, [GroupCalls(network, 2, BACKENDS["gloo"])], pace=1.0, period=8)
        for network in (NETWORK, late)
    )
    assert next(predictions) == next(predictions)


def test_whole_periods_are_recorded() -> None:
    """As far as so many steps are trained."""
    assert [num_recorded(name, 100) for name in ("ring", "local_sgd/8", "diloco/40", "diloco/1000")] == [
        STEPS,
        16,
        40,
        100,
    ]
    assert num_recorded("local_sgd/8", 2) == STEPS


def test_a_recorder_knows_when_it_had_computed_how_much() -> None:
    """What passes while it is stopped does not count; the next step begins with nothing."""
    readings_s = iter([10.0, 11.0, 14.0, 16.0, 17.0, 17.5, 18.0])
    recorder = Recorder(clock=lambda: next(readings_s))  # begins at 10; stopped from 11 to 14, and from 16 to 17
    for _ in range(2):
        with recorder.stopped():
            pass
    computed_s = [recorder.computed_s(moment_s) for moment_s in (10.0, 10.5, 12.0, 14.5, 15.0, 16.5, 17.25)]
    assert computed_s == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 3.25]


def recorded_of_all(group: dist.ProcessGroup) -> tuple[dict[str, tuple[float, float]], int, set[str], int]:
    """The predictions, how many steps were told of, the groups that are left, and the steps that were to be told of."""
    told: list[str] = []
    before = set(dist.distributed_c10d._world.pg_names.values())
    with RecordedRuns(CONFIG, group) as runs:
        for share in (0.0, 0.5, 1.0):
            runs.take_until(share, told.append)
        runs.gather()
    left = set(dist.distributed_c10d._world.pg_names.values()) - before
    return runs.predict(NAMES, NETWORK, 1.0), len(told), left, runs.num_steps


def test_every_strategy_is_recorded_and_predicted(ranks: RankPool) -> None:
    """All ranks predict the same; without synchronisation it takes less, and no group is left."""
    (first, told, left, expected), (second, *_) = ranks.run(recorded_of_all, num_ranks=2)
    assert first == second
    assert list(first) == list(NAMES)
    assert told == expected
    assert not left
    for name in NAMES:
        sync_s, step_s = first[name]
        # What is sent before the last gradient is ready, with fsdp all, is in the step alone.
        assert 0 <= sync_s < step_s
        assert (sync_s < 1e-3) == (name in ("none", "fsdp")), name


def losses_recorded(group: dist.ProcessGroup) -> list[list[float]]:
    """Return the losses of all steps, without synchronisation and with three strategies that step shares."""
    with RecordedRuns(replace(CONFIG, strategies=("none", "zero1", "zero2", "zero3")), group) as runs:
        taken: dict[str, list[float]] = {run.name: [] for run in runs._runs}
        for run in runs._runs:
            plain = run.train_step.run
            run.train_step.run = partial(_noting, plain, taken[run.name])  # type: ignore[method-assign]
        runs.take_until(1.0)
    return list(taken.values())


def _noting(plain: Callable[[int], StepResult], losses: list[float], step: int) -> StepResult:
    result = plain(step)
    losses.append(result.loss)
    return result


def test_each_recorded_step_begins_with_the_initial_parameters(ranks: RankPool) -> None:
    """Also where what is gathered is made up, so that it computes with numbers as those of training."""
    for none, zero1, zero2, zero3 in ranks.run(losses_recorded, num_ranks=2):
        assert zero1 == zero2 == zero3
        assert len(set(zero1)) > STEPS  # each has its batch
        assert zero1[0] == none[0]
        assert zero1[-1] == pytest.approx(zero1[0], rel=0.02)
        assert none[-1] < 0.98 * none[0]  # it trains


def recorded_and_held(group: dist.ProcessGroup) -> tuple[dict[str, Memory], dict[str, Memory]]:
    """What was recorded of the rank that holds most, and what this rank holds after two real steps, by strategy."""
    names = (*NAMES, "bucketed/0.004", "zero2/0.004", "powersgd/1")
    with RecordedRuns(replace(CONFIG, strategies=names), group) as runs:
        runs.take_until(1.0)
        runs.gather()
        recorded = runs.memory(names)
    held = {}
    for name in names:
        train_step = TrainStep(TASK, replace(CONFIG.step, strategy=name), group)
        for step in range(2):
            train_step.run(step)
        held[name] = measure_memory(train_step)
    return recorded, held


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_memory_is_predicted_to_the_byte(ranks: RankPool, num_ranks: int) -> None:
    """In each of its kinds, on the rank that holds most; the sharded strategies hold less of what they share."""
    answers = ranks.run(recorded_and_held, num_ranks=num_ranks)
    recorded = answers[0][0]
    assert all(answer == recorded for answer, _ in answers)
    for name, predicted in recorded.items():
        assert max((held[name] for _, held in answers), key=lambda memory: memory.total) == predicted, name
    whole, zero1, zero2, zero3 = (recorded[name] for name in ("none", "zero1", "zero2", "zero3"))
    assert whole.optimizer == 2 * whole.parameters
    assert zero1.optimizer == zero2.optimizer == 2 * zero2.gradients
    assert zero2.gradients < whole.gradients / num_ranks * 1.01 < zero1.gradients
    assert zero3.parameters == zero3.gradients < whole.parameters / num_ranks * 1.01 < zero2.parameters
