"""`StepProfile`: a training step of one process: when each gradient is ready, and what else takes time."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ringsim.files import as_tuple, quoted, read_json, require_fields, require_text, require_whole
from ringsim.measurements import save_json
from ringsim.units import MAX_VALUE

FORMAT = "ringsim-step-profile"
VERSION = 1
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}
MAX_ELEMENTS = MAX_VALUE // 8
MAX_PARAMETERS = 100_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that has a gradient.

    elements: of the parameter, which are as many of the gradient.
    ready_s: when its gradient is, in seconds from the start of the backward pass.

    Raises ValueError for a value that cannot be.
    """

    name: str
    elements: int
    ready_s: float
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_text("name", self.name)
        if not isinstance(self.dtype, str) or self.dtype not in ELEMENT_BYTES:
            raise ValueError(f"{self.name}: dtype {quoted(self.dtype)}: must be one of {', '.join(ELEMENT_BYTES)}")
        require_text(f"{self.name}: device", self.device)
        require_whole(f"{self.name}: elements", self.elements, 0, MAX_ELEMENTS)
        _require_time(f"{self.name}: ready_s", self.ready_s)

    @property
    def size_bytes(self) -> int:
        """Of its gradient."""
        return self.elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One training step without communication, the parameters in the order in which the model registers them.

    optimizer_s: of the optimizer's step and what else follows the backward pass.
    buffer_bytes: of the model's buffers, which DDP sends from rank 0 to all before each forward pass; 0: none.
    provenance: where the figures come from.

    Raises ValueError for a step without parameters, a time that is negative, and a gradient ready after the end.
    """

    parameters: tuple[Parameter, ...]
    forward_s: float
    backward_s: float
    optimizer_s: float
    buffer_bytes: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s"):
            _require_time(name, getattr(self, name))
        require_whole("buffer_bytes", self.buffer_bytes, 0)
        if not isinstance(self.provenance, dict):
            raise ValueError(f"provenance {quoted(self.provenance)}: must be an object")
        if not self.parameters:
            raise ValueError("parameters: there must be at least one")
        require_whole("gradients of all parameters, in bytes", self.gradient_bytes, 0)
        for parameter in self.parameters:
            if parameter.ready_s > self.backward_s:
                raise ValueError(
                    f"{parameter.name}: ready_s {parameter.ready_s:g}: must not be after the backward pass, "
                    f"which takes {self.backward_s:g} s"
                )

    @property
    def step_s(self) -> float:
        """Of one process alone, without DDP."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def gradient_bytes(self) -> int:
        return sum(parameter.size_bytes for parameter in self.parameters)

    def order_of_readiness(self) -> list[int]:
        """The parameters' numbers as their gradients become ready; of equals the last registered comes first."""
        return sorted(range(len(self.parameters)), key=lambda index: (self.parameters[index].ready_s, -index))

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the name and version of the format."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The opposite of `as_dict`. Raises ValueError, in one line, for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"not a {FORMAT} file; `trainers ring --profile` writes one")
        if data.get("version") != VERSION or data["version"] is True:
            raise ValueError(f"version {quoted(data.get('version'))} of {FORMAT}: this ringsim reads version {VERSION}")
        rest = {name: value for name, value in data.items() if name not in ("format", "version")}
        require_fields(cls, rest, optional=("buffer_bytes", "provenance"))
        parameters = as_tuple("parameters", rest.pop("parameters"))
        if len(parameters) > MAX_PARAMETERS:
            raise ValueError(f"parameters: {len(parameters)} of them: must be at most {MAX_PARAMETERS}")
        return cls(tuple(_parameter(index, values) for index, values in enumerate(parameters)), **rest)

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        save_json(path, self.as_dict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises ValueError naming the file if it is not that, OSError if unreadable."""
        data = read_json(path)
        try:
            return cls.from_dict(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _parameter(index: int, data: Any) -> Parameter:
    try:
        require_fields(Parameter, data, optional=("dtype", "device"))
    except ValueError as error:
        raise ValueError(f"parameters[{index}]: {error}") from None
    return Parameter(**data)


def _require_time(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_VALUE:
        raise ValueError(f"{name} {quoted(value)}: must be a finite number of seconds, at least 0")
