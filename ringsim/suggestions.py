"""Suggestions in messages: the known name that a user may have meant, and how to install an extra."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, in any case; None if none is.

    >>> nearest("Rign", ["ring", "direct"])
    'ring'
    """
    by_lower_case = {other.lower(): other for other in known}
    matches = get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the same as a question before the list of known names.

    >>> did_you_mean("rign", ["ring", "direct"])
    'did you mean ring? '
    """
    meant = nearest(name, known)
    return f"did you mean {meant}? " if meant else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the same for the end of a message about an unknown name, "" if there is none.

    >>> suggestion("rign", ["ring", "direct"])
    '; did you mean ring?'
    >>> suggestion("tree", ["ring", "direct"])
    ''
    """
    meant = nearest(name, known)
    return f"; did you mean {meant}?" if meant else ""


def to_install(extra: str) -> str:
    """Return how to install an optional part; this project is on no package index.

    >>> to_install("torch")
    "run pip install '.[torch]' in your clone of ringsim"
    """
    return f"run pip install '.[{extra}]' in your clone of ringsim"
