"""`cold_call_s`: what a call takes longer after a computation, from probes."""

from ringsim.measurements import Measurements


def cold_call_s(measurements: Measurements, kind: str) -> float:
    """Returns what a call of that kind ("call", "call/dist", "shm/call") takes longer after a walk through memory.

    A computation leaves neither the code of a call nor its data in the caches, and its threads asleep. 0 if there are
    no such probes.
    """
    cold, warm = (measurements.probes_of(f"{kind}/{state}") for state in ("cold", "warm"))
    return max(cold[0].median_s - warm[0].median_s, 0.0) if cold and warm else 0.0
