"""Random delays before sends and receives of process groups, which bring ranks into orders that are rare otherwise."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

SHARE = 0.2  # of the sends and receives


@contextmanager
def before_transfers(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` before every send and every receive that is posted in this process."""
    kept = {name: vars(dist.ProcessGroup)[name] for name in ("send", "recv")}
    for name, method in kept.items():
        setattr(dist.ProcessGroup, name, _after(act, name, method))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(dist.ProcessGroup, name, method)


def _after(act: Callable[[], object], name: str, method: Any) -> Callable[..., Any]:
    def acting(self: Any, *arguments: Any, **options: Any) -> Any:
        act()
        return method.__get__(self)(*arguments, **options)

    # A group of ours is a Python subclass: by this name torch knows that it is being called from the override itself.
    acting.__code__ = acting.__code__.replace(co_name=name)
    return acting


@contextmanager
def delays(milliseconds: int, seed: int) -> Iterator[None]:
    """Sleep for up to so long before some of them; not at all for 0."""
    draw = random.Random(seed)

    def act() -> None:
        if draw.random() < SHARE:
            time.sleep(draw.uniform(0, milliseconds / 1000))

    if not milliseconds:
        yield
        return
    with before_transfers(act):
        yield
