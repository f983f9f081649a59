"""`Predictor`: the steps of published rows by the kernels of a GPU and a network; `fit`: figures of a GPU from rows."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from scipy.optimize import minimize

from published_steps.rows import Recording, Row
from ringsim.estimates import Estimate
from ringsim.gpus import Gpu, load_gpu
from ringsim.network import load_network
from ringsim.traces import ProgramTrace
from ringsim.training_step import Computing, StepSimulation, gpu_interval

NETWORKS = {"a100": "dgx-a100", "a100-40gb": "dgx-a100", "h100": "p5-efa-2024"}
FIGURES = (("kernel", "clock"), ("kernel", "memory_share"), ("cpu", "operator_s"), ("cpu", "call_s"))
MOST_PROGRAMS = 18  # of a table, to fit


class Predictor:
    """Predicts rows; a recording that several rows need is predicted once.

    gpus: in place of the presets of these names.
    """

    def __init__(self, traces: Mapping[Recording, ProgramTrace], gpus: Mapping[str, Gpu] | None = None) -> None:
        self._traces, self._gpus = traces, dict(gpus or {})
        self._simulations: dict[tuple[Recording, str], StepSimulation] = {}
        self._steps_s: dict[tuple[Recording, str, float, float], float] = {}

    def step_s(self, row: Row, quantile: float = 0.5, cpu_scale: float = 1.0) -> float:
        """Return the time of the step.

        quantile: of the times of calls, see `StepSimulation.at_quantile`. cpu_scale: see `StepSimulation.timelines`.
        """
        parts = ((weight, self._recorded_s(recording, row.gpu, quantile, cpu_scale)) for recording, weight in row.parts)
        return sum(weight * step_s for weight, step_s in parts)

    def interval(self, row: Row) -> Estimate:
        """Return the interval of the step, as `ringsim step` has it."""
        rates = self._gpus.get(row.gpu) or load_gpu(row.gpu)
        of_fabric = [self.step_s(row, quantile) for quantile in (0.1, 0.9)]
        of_cpu = [self.step_s(row, cpu_scale=factor) for factor in rates.cpu.within]
        return gpu_interval(rates.within, self.step_s(row), of_fabric, of_cpu)

    def flops(self, row: Row) -> float:
        """Return the operations of a rank in a step."""
        return sum(
            weight * operator.count * operator.flops
            for recording, weight in row.parts
            for operator in self._traces[recording].steps[-1].operators
        )

    def reserved_bytes(self, row: Row) -> int:
        """Return the memory that torch's allocator reserves, in the recording with the most micro-steps."""
        memory = self._traces[row.parts[-1][0]].memory
        return memory.reserved if memory else 0

    def _recorded_s(self, recording: Recording, name: str, quantile: float, cpu_scale: float) -> float:
        if (recording, name) not in self._simulations:
            computing = Computing(on_gpu=True, rates=self._gpus.get(name) or load_gpu(name))
            network = load_network(NETWORKS[name])
            self._simulations[recording, name] = StepSimulation(self._traces[recording], network, computing)
        if (recording, name, quantile, cpu_scale) not in self._steps_s:
            at_quantile = self._simulations[recording, name].at_quantile(quantile)
            self._steps_s[recording, name, quantile, cpu_scale] = at_quantile.mean(cpu_scale=cpu_scale).step_s
        return self._steps_s[recording, name, quantile, cpu_scale]


def errors(predictor: Predictor, rows: Iterable[Row]) -> np.ndarray:
    """Return predicted over measured times, minus 1."""
    return np.array([predictor.step_s(row) / row.measured_s - 1 for row in rows])


def fit(name: str, rows: Sequence[Row], traces: Mapping[Recording, ProgramTrace]) -> Gpu:
    """Return the GPU with `FIGURES` at the least mean error."""
    gpu = load_gpu(name)

    def changed(logarithms: np.ndarray) -> Gpu:
        figures: dict[str, dict[str, float]] = {}
        for (table, key), value in zip(FIGURES, np.exp(logarithms).tolist(), strict=True):
            figures.setdefault(table, {})[key] = value if key.endswith("_s") else min(value, 1.0)
        return replace(gpu, **{table: replace(getattr(gpu, table), **values) for table, values in figures.items()})

    def cost(logarithms: np.ndarray) -> float:
        return float(np.abs(errors(Predictor(traces, {name: changed(logarithms)}), rows)).mean())

    start = np.log([getattr(getattr(gpu, table), key) for table, key in FIGURES])
    return changed(minimize(cost, start, method="Nelder-Mead", options={"maxfev": 100, "xatol": 0.02}).x)


def sample(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of some programs, as each takes time to simulate."""
    programs = sorted({row.parts[0][0] for row in rows})
    return [row for row in rows if row.parts[0][0] in programs[:: max(1, len(programs) // MOST_PROGRAMS)]]
