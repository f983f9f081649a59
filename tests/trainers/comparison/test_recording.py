"""From recorded steps to the time of a step."""

import pytest
from msgspec.structs import replace

from collectives.recording import Recorder
from ringsim.libraries import LIBRARIES
from ringsim.network.spec import Processor
from ringsim.traces import TraceCall, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step import GroupCalls
from tests.trainers.comparison.test_job import NETWORK
from trainers.comparison.recording import STEPS, RecordedStep, num_recorded, predict_steps, together

GROUPS = [GroupCalls(NETWORK, 2, LIBRARIES["gloo"])]
CALLS = tuple(TraceCall("all_reduce", 1000, "float32", 0, is_async) for is_async in (False, True))
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
        predict_steps(steps, [GroupCalls(network, 2, LIBRARIES["gloo"])], pace=1.0, period=8)
        for network in (NETWORK, late)
    )
    assert next(predictions) == next(predictions)


def test_whole_periods_are_recorded() -> None:
    """As far as so many steps are trained."""
    names = ("ring", "local_sgd/8", "diloco/40", "diloco/1000")
    assert [num_recorded(name, 100) for name in names] == [STEPS, 16, 40, 100]
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
