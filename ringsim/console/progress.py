"""`progress_bar`: the one progress bar of all commands."""

import sys
from typing import Any

import click


def progress_bar(length: int, label: str, *, rank: int = 0, done: int = 0) -> Any:
    """Returns click's progress bar on stderr, hidden where that is no terminal and on every rank but 0.

    length: of what is to be done; done: of that, what an earlier run has done. The text given to `update` is shown.
    """
    hidden = rank != 0 or not sys.stderr.isatty()
    bar: Any = click.progressbar(
        length=length, label=label, file=sys.stderr, hidden=hidden, show_pos=True, item_show_func=lambda text: text
    )
    if done:
        bar.update(done)
    return bar
