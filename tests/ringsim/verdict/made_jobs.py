"""Reports of the strategy comparison that nobody ran, on a machine whose network is known."""

from typing import Any

from ringsim.measurements.measurements import Measurements
from ringsim.training_step.profile import Parameter, StepProfile

NUM_LAYERS = 12
PROFILE = StepProfile(
    tuple(Parameter(f"layer{n}", 100_000, 0.030 * (NUM_LAYERS - n) / NUM_LAYERS) for n in range(NUM_LAYERS)),
    forward_s=0.015,
    backward_s=0.030,
    optimizer_s=0.005,
)
NOISE = (0.98, 1.0, 1.02, 0.99, 1.01, 1.0)


def made_strategy(
    name: str, num_ranks: int, sync_s: float, step_s: float, waits_s: float = 0.0, straggler: int = 0
) -> dict[str, Any]:
    """One strategy's entry; waits_s: how long all other ranks wait for the straggler."""
    rank_sync_s = [sync_s + (waits_s if rank != straggler else 0.0) for rank in range(num_ranks)]
    return {
        "strategy": name,
        "predicted_sync_s": sync_s * 1.1,
        "measured_sync_s": sync_s,
        "predicted_step_s": step_s * 1.1,
        "step_s": step_s,
        "tokens_per_s": 1000.0 / step_s,
        "final_loss": 2.5,
        "parameters_identical": name != "none",
        "sync_s": [sync_s * factor for factor in NOISE],
        "steps_s": [step_s * factor for factor in NOISE],
        "losses": [5.5, 4.0, 3.0, 2.5],
        "rank_sync_s": rank_sync_s,
    }


def made_job(measurements: Measurements, strategies: list[dict[str, Any]], profile: bool = True) -> dict[str, Any]:
    """Return the content of report.json."""
    return {
        "format": "ringsim-report",
        "version": 1,
        "num_ranks": measurements.num_ranks,
        "num_parameters": sum(parameter.elements for parameter in PROFILE.parameters),
        "measurements": measurements.as_dict(),
        "strategies": strategies,
        **({"profile": PROFILE.as_dict()} if profile else {}),
    }
