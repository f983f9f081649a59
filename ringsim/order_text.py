"""An order of ranks as people and `ringsim order` write it: 0,2,1,3, or the name of a file that holds it."""

import json
from pathlib import Path
from typing import Any


def parse_order(text: str) -> tuple[int, ...]:
    """The ranks in their order; of a file either these numbers, or JSON that is a list of them or has one as "order".

    Raises ValueError for text that is neither, and for a file that cannot be read.
    """
    if _is_numbers(text):
        return _numbers(text)
    content = _content(text)
    if _is_numbers(content):
        return _numbers(content)
    try:
        found = json.loads(content)
    except ValueError:
        raise ValueError(f"{text}: holds no order: it must be numbers as 0,2,1,3, or JSON") from None
    order = found.get("order") if isinstance(found, dict) else found
    if not isinstance(order, list) or not all(_is_rank(rank) for rank in order):
        raise ValueError(f'{text}: holds no order: JSON must be a list of ranks, or have one as "order"')
    return tuple(order)


def _is_numbers(text: str) -> bool:
    return all(part.strip().isdecimal() for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{name!r} is not an order, 0,2,1,3, and not a file: {error.strerror}") from None
