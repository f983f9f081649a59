"""`StreamSync`, on streams that only note what they are asked."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch

from collectives.runtime import queue
from collectives.runtime.queue import StreamSync


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return what notes the calls of the streams `caller`, which is the current one of torch.cuda, and `group`."""
    noted = Mock()
    noted.group.device = "cuda:1"
    cuda = SimpleNamespace(current=noted.caller, device=lambda _: nullcontext())

    @contextmanager
    def stream(side: Mock) -> Iterator[None]:
        before, cuda.current = cuda.current, side
        yield
        cuda.current = before

    cuda.stream = stream
    cuda.current_stream = lambda device: cuda.current if device == "cuda:1" else None
    monkeypatch.setattr(queue, "torch", SimpleNamespace(cuda=cuda, futures=torch.futures))
    return noted


def test_the_group_waits_for_the_caller_and_the_caller_for_the_group(calls: Mock) -> None:
    """The call is marked when it is made; what the caller's stream does later the group's does not wait for."""
    sync = StreamSync(calls.group, [calls.tensor])
    assert calls.mock_calls == [call.caller.record_event()]
    assert not sync.is_completed()
    sync.run(lambda: calls.turn(queue.torch.cuda.current_stream("cuda:1")))
    sync.wait()
    assert sync.is_completed()
    assert calls.mock_calls[1:] == [
        call.group.wait_event(calls.caller.record_event.return_value),
        call.tensor.record_stream(calls.group),
        call.turn(calls.group),
        call.group.record_event(),
        call.caller.wait_event(calls.group.record_event.return_value),
        call.group.record_event().query(),
    ]
