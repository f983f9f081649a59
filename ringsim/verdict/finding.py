"""`Finding`: one answer of a verdict in plain words, as the template answers.j2 makes it of facts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringsim.calibration import PredictedTime
from ringsim.console import in_one_line
from ringsim.units import format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from jinja2 import Template


class Topic(Enum):
    """The questions that a verdict answers, in the order in which it is asked."""

    BOUND = "What limits performance?"
    ALGORITHM = "Which algorithm should you use?"
    BUCKET = "Which bucket size should you use?"
    RANKS = "What happens with twice as many ranks?"
    RELIABILITY = "How reliable are these answers?"


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer and its reasons, each a sentence; command: what to run where the data do not suffice, else empty."""

    topic: Topic
    answer: str
    reasons: tuple[str, ...] = ()
    command: str = ""


def findings_from(facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the answers that the template makes of these facts.

    In its text "# TOPIC" begins an answer, "- " a reason, and "$ " a command; other lines continue the one before.
    """
    sections = re.split(r"^# ", _template().render(facts), flags=re.MULTILINE)[1:]
    findings = []
    for section in sections:
        paragraphs = [" ".join(text.split()) for text in re.split(r"^(?=[-$] )", section, flags=re.MULTILINE)]
        topic, answer = paragraphs[0].split(" ", 1)
        reasons = tuple(text[2:] for text in paragraphs if text.startswith("- "))
        command = "".join(text[2:] for text in paragraphs if text.startswith("$ "))
        findings.append(Finding(Topic[topic], answer, reasons, command))
    return tuple(findings)


@cache
def _template() -> "Template":
    """Return the template; whatever files name something stays within a line of its text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  not needed by other commands

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,
        finalize=lambda value: in_one_line(str(value)),
    )
    environment.filters |= {
        "percent": percent, "rounded": rounded, "interval": interval, "by_size": by_size,
        "size": format_size, "rate": format_rate, "plural": plural,
    }  # fmt: skip
    return environment.get_template("answers.j2")


def percent(share: float) -> str:
    """Return such as 12 %; less than one per cent keeps a digit, down to a tenth."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or abs(share) < 0.0005 else f"{100 * share:.1f} %"


def rounded(time_s: float) -> str:
    """Return a time with two digits, as many as a verdict needs."""
    return format_time(float(f"{time_s:.2g}"))


def interval(predicted: PredictedTime) -> str:
    """Return such as 2.1 ms (1.9 ms to 2.4 ms)."""
    low, high = rounded(predicted.low_s), rounded(predicted.high_s)
    return rounded(predicted.time_s) + (f" ({low} to {high})" if low != high else "")


def by_size(items: Iterable[Any], form: str) -> str:
    """Return which name holds for which sizes: a up to 64 KiB, b from 256 KiB.

    items: with `size_bytes`, by size. form: makes the name of an item, such as "by {0.bound.value}".
    """
    runs = [(name, list(run)) for name, run in groupby(items, key=form.format)]
    starts = [f"{name} from {format_size(run[0].size_bytes)}" for name, run in runs[1:]]
    first, run = runs[0]
    return ", ".join([f"{first} up to {format_size(run[-1].size_bytes)}", *starts]) if starts else first
