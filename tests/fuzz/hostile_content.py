"""Hostile content for files: a valid example in which a little is wrong, or all of it."""

import json
import random as of_random
import re
from typing import Any

DEEP = 100_000
HUGE = "1" + "0" * 5000
# As Python, for JSON; as text, for whatever is put in the place of a word or a number.
VALUES: tuple[Any, ...] = (
    float("nan"), float("inf"), -float("inf"), -1, 0, 1, 1.5, -0.5, 1e-320, 1e308, 2**31, 2**53, 2**63 - 1, 2**64,
    10**400, True, False, None, "", "x", "a\nb", "\x1b[1m", "\ud800", "é", "9" * 5000,
    [], {}, [0], [None], [[]], {"x": 1},
)  # fmt: skip
WORDS = (
    "nan", "inf", "-inf", "-1", "0", "1.5", "-0.5", "1e400", "1e-400", "1e18", "9223372036854775807", "1_0", "٣", "²",
    HUGE, f"-{HUGE}", f"0x{'f' * 5000}", "true", "null", "", "x", "x" * 5000, "é", "\x00",
    "[]", "{}", '""', '"x"', "[[]]", "0GB/s", "1e-9bit/s", "-1us", "1e18s", "1e18GB/s", "inf s",
    "[" * DEEP, '{"a":' * DEEP, "(" * DEEP,
)  # fmt: skip
WHOLE = (
    b"", b"\n", b"\0", b"\xff\xfe\x00", b"\xef\xbb\xbf", b"NaN", b"null", b"1e999", b"[]", b"{}", HUGE.encode(),
    b"[" * DEEP, b'{"a":' * DEEP, b"<a>" * DEEP, b"{" * DEEP, b"[" * DEEP + b"]" * DEEP, b"a = " + b"[" * DEEP,
    b"x = 0x" + b"f" * DEEP, b"," * DEEP, b"\n" * DEEP, b"0," * DEEP, b"x" * 10**6,
    bytes(range(256)) * 16,
)  # fmt: skip
_NESTED = "nested 100,000 deep"  # stands for what json.dumps cannot write
_WORD = re.compile(rb"[\w.+-]+")


def hostile(random: of_random.Random, content: bytes, is_json: bool) -> bytes:
    """The content of an example with one or a few faults."""
    ways = [truncated, flipped, _without_slice, _doubled_slice, _other_word, _other_word, other_line, _whole]
    ways += [_other_json] * 12 if is_json else []
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(ways)(random, content)
    return content


def truncated(random: of_random.Random, content: bytes) -> bytes:
    """The first bytes."""
    return content[: random.randint(0, len(content))]


def flipped(random: of_random.Random, content: bytes) -> bytes:
    """Other bytes in one or a few places."""
    made = bytearray(content)
    for _ in range(random.choice((1, 2, 8))):
        if made:
            made[random.randrange(len(made))] = random.randrange(256)
    return bytes(made)


def _slice(random: of_random.Random, content: bytes) -> slice:
    first = random.randint(0, len(content))
    return slice(first, min(first + random.choice((1, 10, 100, 1000)), len(content)))


def _without_slice(random: of_random.Random, content: bytes) -> bytes:
    cut = _slice(random, content)
    return content[: cut.start] + content[cut.stop :]


def _doubled_slice(random: of_random.Random, content: bytes) -> bytes:
    cut = _slice(random, content)
    return content[: cut.stop] + content[cut] + content[cut.stop :]


def _other_word(random: of_random.Random, content: bytes) -> bytes:
    """Another word or number: a value of TOML, an attribute of XML, a cell of a table, a name."""
    words = list(_WORD.finditer(content))
    if not words:
        return content
    found = random.choice(words)
    other = random.choice((*WORDS, random.choice(words)[0].decode("latin-1"))).encode("utf-8", "surrogatepass")
    return content[: found.start()] + other + content[found.end() :]


def other_line(random: of_random.Random, content: bytes) -> bytes:
    """A line less, a line twice, or in another place."""
    lines = content.split(b"\n")
    line = lines.pop(random.randrange(len(lines)))
    for _ in range(random.choice((0, 1, 2))):
        lines.insert(random.randint(0, len(lines)), line)
    return b"\n".join(lines)


def _whole(random: of_random.Random, content: bytes) -> bytes:
    """Something else instead, or with the example after it."""
    return random.choice(WHOLE) + random.choice((b"", content))


def _other_json(random: of_random.Random, content: bytes) -> bytes:
    """One value exchanged, left out, or one that nobody asked for."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content
    inner = list(_containers(data))
    if not inner:
        return content
    _change(random, random.choice(inner))
    text = json.dumps(data)
    return text.replace(json.dumps(_NESTED), "[" * DEEP).encode()


def _containers(data: Any) -> list[Any]:
    """All objects and lists that hold something, those far up as often as all that are in long lists."""
    found, todo = [], [data]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list) and value:
            found.append(value)
            todo += value.values() if isinstance(value, dict) else value[:20]
    return found


def _change(random: of_random.Random, inside: Any) -> None:
    key = random.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    value = random.choice((*VALUES, _NESTED, inside[key], [inside[key]]))
    way = random.randrange(6)
    if way == 0:
        del inside[key]
    elif way == 1 and isinstance(inside, dict):
        inside[random.choice(("x", "", "a\nb", "__class__", "self"))] = value
    elif way == 1:
        inside.insert(key, value)
    else:
        inside[key] = value
