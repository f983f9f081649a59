"""A rank placement as people and `ringsim order` write it: 0,2,1,3, or the name of a file that holds it."""

from pathlib import Path

from ringsim.files import parse_json, quoted, read_text, values
from ringsim.units import whole_number


def parse_placement(text: str) -> tuple[int, ...]:
    """Return the ranks in the order of their places, from numbers or the name of a file.

    A file holds either these numbers, or JSON that is a list of them or has one as "order".

    Raises ValueError for text that is neither, and for a file that cannot be read.
    """
    if numbers := _numbers(text):
        return numbers
    content = _content(text)
    if numbers := _numbers(content):
        return numbers
    try:
        data = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{text}: holds no order: it must be numbers as 0,2,1,3, or JSON: {error}") from None
    ranks = data.get("order") if isinstance(data, dict) else data
    if not isinstance(ranks, list) or not all(values.is_whole(rank) for rank in ranks):
        raise ValueError(f'{text}: holds no order: JSON must be a list of ranks, or have one as "order"')
    return tuple(ranks)


def _numbers(text: str) -> tuple[int, ...] | None:
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _content(name: str) -> str:
    try:
        return read_text(Path(name))
    except OSError as error:
        raise ValueError(f"{quoted(name, 300)} is not an order, 0,2,1,3, and not a file: {error.strerror}") from None
