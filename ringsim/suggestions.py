"""Suggestions in messages: a similar known name, and how to install an extra."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, ignoring case; None if there is none.

    >>> nearest("Rign", ["ring", "direct"])
    'ring'
    """
    by_lower_case = {other.lower(): other for other in known}
    matches = get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question to put before a list of known names; "" if none is similar.

    >>> did_you_mean("rign", ["ring", "direct"])
    'did you mean ring? '
    """
    meant = nearest(name, known)
    return f"did you mean {meant}? " if meant else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a question to put after a message about an unknown name; "" if none is similar.

    >>> suggestion("rign", ["ring", "direct"])
    '; did you mean ring?'
    >>> suggestion("tree", ["ring", "direct"])
    ''
    """
    meant = nearest(name, known)
    return f"; did you mean {meant}?" if meant else ""


def to_install(extra: str) -> str:
    """Return how to install an extra; this project is on no package index.

    >>> to_install("torch")
    "run pip install '.[torch]' in your clone of ringsim"
    """
    return f"run pip install '.[{extra}]' in your clone of ringsim"
