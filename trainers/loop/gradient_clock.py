"""`GradientClock`: when each gradient of a backward pass is ready."""

import time
from collections.abc import Callable

from torch import Tensor, nn


class GradientClock:
    """Notes, in every backward pass, the time at which each parameter's gradient has been accumulated.

    Synchronisation is timed from the last of these moments, with every strategy: one that overlaps with the
    backward pass is then charged only for what it could not hide.
    """

    def __init__(self, model: nn.Module) -> None:
        self._ready_s: dict[int, float] = {}
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            self._ready_s[index] = time.perf_counter()

        return note

    @property
    def last_s(self) -> float:
        """When the last gradient was ready, on the clock of `time.perf_counter`."""
        return max(self._ready_s.values())

    def since_s(self, begin_s: float) -> list[float]:
        """How long after `begin_s`, on that clock, each parameter's was ready, in the order of the parameters."""
        return [self._ready_s[index] - begin_s for index in range(len(self._parameters))]

    def before_last_s(self) -> list[float]:
        """How long before the last gradient each parameter's was ready, in the order of the parameters."""
        return [self.last_s - self._ready_s[index] for index in range(len(self._parameters))]
