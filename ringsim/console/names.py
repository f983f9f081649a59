"""Types of options that hold names: suggestions for what is unknown, and completion by the shell."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from ringsim.suggestions import nearest

Known = Callable[[click.Context], Iterable[str]]


class Choice(click.Choice[str]):
    """One of a few texts; for any other the message says which may have been meant."""

    def __init__(self, choices: Iterable[str]) -> None:
        super().__init__(list(choices))

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        meant = nearest(str(value), self.choices)
        return f"{message} Did you mean {meant!r}?" if meant else message


class Name(click.ParamType[str]):
    """A name that the command checks itself, such as that of an algorithm, which may also be a file's.

    known: those that the shell completes, given the context with the options before this one.
    several: whether there may be several, with commas between.
    """

    def __init__(self, name: str, known: Known | Sequence[str], *, several: bool = False) -> None:
        self.name = name
        self._known = known
        self._several = several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        known = self._known(ctx) if callable(self._known) else self._known
        before, comma, begun = incomplete.rpartition(",") if self._several else ("", "", incomplete)
        fitting = [CompletionItem(f"{before}{comma}{name}") for name in known if name.startswith(begun)]
        return fitting or [CompletionItem(incomplete, type="file")]
