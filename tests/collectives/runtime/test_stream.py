"""`StreamSync`, on streams that only note what they are asked."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from collectives.runtime import work
from collectives.runtime.work import StreamSync


class Stream:
    """Notes what it is to do, and for whom it is to wait."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes, self.device = name, notes, "cuda:1"

    def record_event(self) -> "Event":
        """A moment in it."""
        self.notes.append(f"{self.name} marks")
        return Event(self.name)

    def wait_event(self, event: "Event") -> None:
        """Go on after it."""
        self.notes.append(f"{self.name} waits for {event.name}")


class Event:
    """A moment in a stream."""

    def __init__(self, name: str) -> None:
        self.name = name

    def query(self) -> bool:
        """Whether it has passed: yes."""
        return True


class Tensor:
    """Notes who uses it."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def record_stream(self, side: Stream) -> None:
        """Keep the memory until `side` is done with it."""
        self.notes.append(f"kept for {side.name}")


class Cuda:
    """torch.cuda, with one stream that is current."""

    def __init__(self, notes: list[str]) -> None:
        self.current = Stream("caller", notes)

    def current_stream(self, device: str) -> Stream:
        """Return the stream of the block."""
        assert device == "cuda:1"
        return self.current

    def device(self, _: str) -> nullcontext[None]:
        """Nothing to do."""
        return nullcontext()

    @contextmanager
    def stream(self, side: Stream) -> Iterator[None]:
        """A block in which it is current."""
        before, self.current = self.current, side
        yield
        self.current = before


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of notes, in a world with streams."""
    noted: list[str] = []
    monkeypatch.setattr(work, "torch", SimpleNamespace(cuda=Cuda(noted), futures=torch.futures))
    return noted


def stream_sync(notes: list[str]) -> StreamSync:
    """Between the caller's stream and the group's."""
    return StreamSync(Stream("group", notes), [Tensor(notes)])  # type: ignore[arg-type, list-item]


def test_the_group_waits_for_the_caller_and_the_caller_for_the_group(notes: list[str]) -> None:
    """The call is marked when it is made; what the caller's stream does later the group's does not wait for."""
    sync = stream_sync(notes)
    assert notes == ["caller marks"]
    assert not sync.is_completed()
    sync.run(lambda: notes.append(f"turn on {work.torch.cuda.current_stream('cuda:1').name}"))
    sync.wait()
    assert sync.is_completed()
    assert notes[1:] == [
        "group waits for caller",
        "kept for group",
        "turn on group",
        "group marks",
        "caller waits for group",
    ]


def test_a_work_is_synchronised_when_it_is_waited_for(notes: list[str]) -> None:
    """Each time, since each time another stream may be current; the future does so, too."""
    sync = stream_sync(notes)
    sync.run(lambda: None)
    over = work.Work.over([], sync)
    del notes[:]
    assert over.wait()
    assert over.is_completed()
    over.get_future().wait()
    assert notes == ["caller waits for group"] * 2
