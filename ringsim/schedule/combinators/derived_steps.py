"""`DerivedSteps`: steps made from those of another schedule, and what all combinators need for that."""

from abc import abstractmethod
from collections.abc import Callable

from ringsim.files import quoted
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Ints, Steps, constant, only_value

_MAX_KNOWN = 64


def require_schedules(combinator: str, *operands: object) -> None:
    """Raise ValueError, which names the combinator, unless all of them are."""
    for operand in operands:
        if not isinstance(operand, Schedule):
            raise ValueError(f"{combinator}: {quoted(operand)} is no Schedule")


class MadeSteps(Steps):
    """Steps made of others, of which they find out alike what was written last and what was sent last."""

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        return self.last("last_write", rank, chunk)

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        return self.last("last_send", rank, chunk)

    @abstractmethod
    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        """Return `last_write` or `last_send` by that of the steps these are made of."""


class DerivedSteps(MadeSteps):
    """Steps that answer as `steps` does whatever a subclass does not override."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def lookback(self) -> int:
        return self._steps.lookback

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers

    @property
    def num_channels(self) -> int:
        return self._steps.num_channels

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        last: Ints = getattr(self._steps, query)(rank, chunk)
        return last


class Remembered:
    """Steps that share their columns go on sharing them; the step engine looks at who sends to whom only once."""

    def __init__(self, function: Callable[[Ints], Ints]) -> None:
        self._function = function
        self._known: dict[int, tuple[Ints, Ints]] = {}

    def __call__(self, column: Ints) -> Ints:
        if id(column) not in self._known:
            if len(self._known) == _MAX_KNOWN:
                self._known.clear()
            self._known[id(column)] = column, self._function(column)  # the column is kept, so that its id stays its own
        return self._known[id(column)][1]


def renumbered(factor: int, offset: int) -> Remembered:
    """Return a function that turns channel c into channel `factor * c + offset`."""

    def renumber(channel: Ints) -> Ints:
        only = only_value(channel)
        return channel * factor + offset if only is None else constant(only * factor + offset, len(channel))

    return Remembered(renumber)
