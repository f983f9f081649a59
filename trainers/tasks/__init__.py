"""The tasks to train. Making a built-in task checks its options without loading torch."""

from collections.abc import Iterable
from typing import Any

from ringsim.suggestions import suggestion
from trainers.tasks.base import Task, check_seed
from trainers.tasks.classifier import Docstrings, Mlp, Wine
from trainers.tasks.lm import LanguageModel
from trainers.tasks.user import load_user_task

TASKS: dict[str, type[LanguageModel | Mlp | Wine | Docstrings]] = {
    "lm": LanguageModel, "mlp": Mlp, "wine": Wine, "docstrings": Docstrings
}  # fmt: skip
TASK_NAMES = tuple(TASKS)


def load_task(name: str, seed: int, **options: Any) -> Task:
    """Return the task called `name`: one of TASK_NAMES, or a user's own, `MODULE:FUNCTION`.

    Raises ValueError, in one line, for wrong arguments and unreadable data.
    """
    check_seed(seed)
    if ":" in name:
        return load_user_task(name, seed, options)
    if name not in TASKS:
        raise ValueError(
            f"task {name!r}: is not one of {', '.join(TASK_NAMES)}; or give your own as MODULE:FUNCTION"
            f"{suggestion(name, TASK_NAMES)}"
        )
    task = TASKS[name]
    for option in options:
        require_option(name, option)
    return task(seed, **options)


def require_option(name: str, option: str, others: Iterable[str] = ()) -> None:
    """Raise ValueError if a built-in task lacks this option. others: options to suggest, such as --strategy."""
    task = TASKS.get(name)
    if task is not None and option not in task.options:
        known = [f"`{known}`" for known in task.options]
        meant = suggestion(f"`{option}`", [*known, *(f"`{other[2:].replace('-', '_')}`" for other in others)])
        raise ValueError(f"`{option}`: the task {name} has no such option; it has {', '.join(known)}{meant}")
