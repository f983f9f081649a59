"""`watched_streams`: tells the recorder which stream of a program waits for which."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from collectives.runtime import Recorder, StreamMoment


@contextmanager
def watched_streams(recorder: Recorder, device: Any) -> Iterator[None]:
    """In the block the recorder is told of each wait that the program asks of the streams of a device.

    device: a module such as torch.cuda, or torch.cpu with its placeholders, or what stands in for one: it has classes
    Stream and Event, and current_stream(). A stream's methods do what those of torch.cuda do, by those of events.
    """
    marks: WeakKeyDictionary[Any, StreamMoment] = WeakKeyDictionary()
    record, wait = device.Event.record, device.Event.wait

    def record_on(event: Any, stream: Any = None) -> None:
        stream = device.current_stream() if stream is None else stream
        marks[event] = recorder.mark(stream)
        record(event, stream)

    def wait_on(event: Any, stream: Any = None) -> None:
        stream = device.current_stream() if stream is None else stream
        if event in marks:
            recorder.wait_for(marks[event], stream)
        wait(event, stream)

    def record_event(stream: Any, event: Any = None) -> Any:
        event = device.Event() if event is None else event
        event.record(stream)
        return event

    def wait_event(stream: Any, event: Any) -> None:
        if event is not None:  # a placeholder takes None for an event, too
            event.wait(stream)

    def wait_stream(stream: Any, other: Any) -> None:
        stream.wait_event(other.record_event())

    of_streams: dict[str, Any] = {"record_event": record_event, "wait_event": wait_event, "wait_stream": wait_stream}
    with patch.multiple(device.Event, record=record_on, wait=wait_on), patch.multiple(device.Stream, **of_streams):
        yield
