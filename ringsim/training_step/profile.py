"""`StepProfile`: a training step of one process: when each gradient is ready, and what else takes time."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from ringsim.files import FileFormat, JsonFile, check, values
from ringsim.units import MAX_VALUE

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}
MAX_ELEMENTS = MAX_VALUE // 8
MAX_PARAMETERS = 100_000
_Seconds = Annotated[float, values.number(0, MAX_VALUE, "a finite number of seconds")]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that has a gradient.

    elements: of the parameter, which are as many of the gradient.
    ready_s: when its gradient is, in seconds from the start of the backward pass.

    Raises ValueError for a value that cannot be.
    """

    name: str
    elements: Annotated[int, values.whole(0, MAX_ELEMENTS)]
    ready_s: _Seconds
    dtype: Annotated[str, values.one_of(*ELEMENT_BYTES)] = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of its gradient."""
        return self.elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StepProfile(JsonFile):
    """One training step without communication, the parameters in the order in which the model registers them.

    optimizer_s: of the optimizer's step and what else follows the backward pass.
    buffer_bytes: of the model's buffers, which DDP sends from rank 0 to all before each forward pass; 0: none.
    provenance: where the figures come from.

    Raises ValueError for a step without parameters, a time that is negative, and a gradient ready after the end.
    """

    parameters: tuple[Parameter, ...]
    forward_s: _Seconds
    backward_s: _Seconds
    optimizer_s: _Seconds
    buffer_bytes: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)

    FORMAT: ClassVar = FileFormat("ringsim-step-profile", 1, made_by="trainers compare-strategies --profile")

    def __post_init__(self) -> None:
        check(self, not_empty=("parameters",))
        if len(self.parameters) > MAX_PARAMETERS:
            raise ValueError(f"parameters: {len(self.parameters)} of them: must be at most {MAX_PARAMETERS}")
        if self.gradient_bytes > MAX_VALUE:
            raise ValueError(f"gradients of all parameters: {self.gradient_bytes} bytes: must be at most {MAX_VALUE}")
        for parameter in self.parameters:
            if parameter.ready_s > self.backward_s:
                raise ValueError(
                    f"{parameter.name}: ready_s {parameter.ready_s:g}: must not be after the backward pass, "
                    f"which takes {self.backward_s:g} s"
                )

    @property
    def step_s(self) -> float:
        """The seconds of a step of one process alone, without DDP."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def gradient_bytes(self) -> int:
        return sum(parameter.size_bytes for parameter in self.parameters)

    def order_of_readiness(self) -> list[int]:
        """Return the parameters' numbers as their gradients become ready; of equals the last registered is first."""
        return sorted(range(len(self.parameters)), key=lambda index: (self.parameters[index].ready_s, -index))
