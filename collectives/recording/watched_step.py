"""A step whose operators were watched, and steps that were timed: together they make steps that say both.

Watching an operator takes as long as a small one does, so that no step can be watched and timed at once.
"""

from dataclasses import replace

from ringsim.traces import Call, TracedStep, TraceEvent, TraceEventKind

_OF_BOTH = (TraceEventKind.CALL, TraceEventKind.WAIT)


def with_times_of(timed: TracedStep, watched: TracedStep) -> TracedStep:
    """Return the watched step with the times of another one, or the other one if it makes other calls.

    Both steps compute for a while between one call or wait and the next. Where a READ divides that in the watched step,
    the time of the timed step is divided in the same proportion.
    """
    if _skeleton(timed) != _skeleton(watched):
        return timed
    timed_s, watched_s = _computing_s(timed), _computing_s(watched)
    stretch = 0
    events: list[TraceEvent] = []
    for event in watched.events:
        seconds = 0.0
        if event.kind in _OF_BOTH:
            stretch += 1
        elif event.seconds:
            seconds = timed_s[stretch] * event.seconds / watched_s[stretch]
        events.append(replace(event, seconds=seconds))
    calls = [replace(call, after=seen.after) for call, seen in zip(timed.calls, watched.calls, strict=True)]
    return TracedStep(tuple(events), tuple(calls))


def _skeleton(step: TracedStep) -> tuple[list[tuple[TraceEventKind, int]], list[Call]]:
    """Return all that two steps of one program have in common, watched or not."""
    events = [(event.kind, event.call) for event in step.events if event.kind in _OF_BOTH]
    return events, [replace(call, local_s=0.0, after=None) for call in step.calls]


def _computing_s(step: TracedStep) -> list[float]:
    """Return the seconds of computing before the first call or wait, between it and the next, and so on."""
    stretches_s = [0.0]
    for event in step.events:
        if event.kind in _OF_BOTH:
            stretches_s.append(0.0)
        else:
            stretches_s[-1] += event.seconds
    return stretches_s
