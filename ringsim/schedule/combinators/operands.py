"""`require_schedules`: whether what is to be combined are schedules."""

from ringsim.files import quoted
from ringsim.schedule.schedule import Schedule


def require_schedules(combinator: str, *operands: object) -> None:
    """Raise ValueError, which names the combinator, unless all of them are."""
    for operand in operands:
        if not isinstance(operand, Schedule):
            raise ValueError(f"{combinator}: {quoted(operand)} is no Schedule")
