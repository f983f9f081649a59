"""How tensors are cut: layouts are kept, but not without bound."""

from types import SimpleNamespace
from typing import Any

import pytest

from collectives.runtime import chunks, preposted
from collectives.runtime.chunks import ChunkLayouts, LayoutKey
from collectives.runtime.preposted import PrepostedReceives, is_eager
from ringsim.algorithms import ring_all_reduce
from ringsim.algorithms.all_to_all import direct_all_to_all

OF_TWO: Any = SimpleNamespace(size=lambda: 2)  # a group, as far as its size goes


def key(num_elements: int) -> LayoutKey:
    """Of a call whose fingerprint has that number."""
    return LayoutKey(num_elements, 4, eager=True, number=num_elements, stamped=False, portion_bytes=None)


def test_layouts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes; made again it is as it was, and takes no more of the memory that is set aside for messages."""
    monkeypatch.setattr(chunks, "MAX_KEPT", 5)
    monkeypatch.setattr(preposted, "LIMIT_BYTES", 12 * preposted.BUFFERS_PER_CLASS * preposted.MIN_BUFFER_BYTES)
    layouts = ChunkLayouts(ring_all_reduce(2), PrepostedReceives(OF_TWO), tag=7)
    made = [layouts.of(key(length)) for length in range(1, 21)]
    assert len(layouts._known) == 5
    assert layouts.of(key(20)) is made[-1]
    assert [is_eager(layout.portions[0].tags[0]) for layout in made] == [True] * 12 + [False] * 8
    assert [layouts.of(key(length)) for length in range(1, 21)] == made
    assert layouts.of(key(1)) is not made[0]
    assert len(layouts._known) == 5


def test_layouts_of_many_chunks_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of exchanges may have other lengths in each call; memory does not grow with all of them."""
    monkeypatch.setattr(chunks, "MAX_KEPT_CHUNKS", 50)
    layouts = ChunkLayouts(direct_all_to_all(4), PrepostedReceives(OF_TWO), tag=7)
    for length in range(10):
        layout = layouts.of(key(length + 15)._replace(splits=(length, *[1] * 15)))
        assert layout.lengths == [length, *[1] * 15]
    assert len(layouts._known) == 50 // 16
