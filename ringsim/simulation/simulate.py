"""`simulate`: when every transfer of a schedule happens on a network, and `predict_time`: when the last one has.

Two engines give the same times: `engines.step_engine` for rings that share nothing, and `engines.event_engine`.
`engines.symmetry` is the latter with one transfer of those that must happen at the same times.
"""

from ringsim.network import AnyNetwork, Topology, memory_of, require_sound
from ringsim.schedule import Schedule, require_memory
from ringsim.simulation.engines.event_engine import run_events
from ringsim.simulation.engines.step_engine import is_for_steps, run_steps, time_steps
from ringsim.simulation.engines.symmetry import may_have_classes, time_classes
from ringsim.simulation.portions import portions_of
from ringsim.simulation.routes import with_in_network_reduction
from ringsim.simulation.timeline import OnProgress, Timeline, ignore_progress

BYTES_RECORDED = 100  # of memory for each transfer of a timeline while it is made, at most
BYTES_COLOURED = 160  # likewise while classes of transfers are looked for


def simulate(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    *,
    element_bytes: int = 1,
    in_order: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Timeline:
    """Every transfer of `schedule` with its times, all ranks starting at 0.

    size_bytes: of the whole tensor (for reduce_scatter the input, for all_gather the output), which
    `schedule.cut` cuts into chunks of whole elements.
    in_order: as `collectives` executes schedules, where a rank waits for one thing at a time and applies all that it
    receives in step order; otherwise all that the rule of execution permits happens as early as it may.
    on_progress: is told how many transfers have been simulated since it was last told.

    Raises ValueError for a size that is negative or not a multiple of `element_bytes`, for more transfers than there is
    memory for, and for a tensor that goes through shared memory in several portions.

        >>> from ringsim import load_network, ring_all_reduce, simulate
        >>> timeline = simulate(ring_all_reduce(4), load_network("gbe"), 2**20)
        >>> timeline
        Timeline(4 ranks, 24 transfers, 12.71 ms)
        >>> timeline.sent_order(0, 1)[:2]
        [(0, 3), (1, 2)]
    """
    sizes = schedule.chunk_bytes(size_bytes, element_bytes)
    _require_room(schedule)
    if memory := memory_of(network):
        portions = portions_of(schedule, memory, sizes)
        portions.require_one()
        return portions.run_one(on_progress, in_order=in_order)
    topology = with_in_network_reduction([schedule], sound_topology(network, schedule.num_ranks))
    if is_for_steps(schedule, topology):
        return run_steps(schedule, topology, sizes, on_progress)
    return run_events(schedule, topology, sizes, on_progress, in_order=in_order)


def predict_time(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    *,
    element_bytes: int = 1,
    in_order: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> float:
    """Seconds until the last rank has finished: `simulate(...).time_s`, without keeping the timeline if it can.

    Where many transfers share resources and all chunks have one size, sums may be rounded otherwise than there.

    in_order, on_progress: as of `simulate`.

    Infinite if a failure keeps it from finishing.

        >>> from ringsim import load_network, predict_time, ring_all_reduce
        >>> round(predict_time(ring_all_reduce(64), load_network("dgx-h100-cluster"), 2**30), 3)
        0.042
    """
    sizes = schedule.chunk_bytes(size_bytes, element_bytes)
    if memory := memory_of(network):
        portions = portions_of(schedule, memory, sizes)
        return portions.number * portions.run_one(on_progress, in_order=in_order).time_s
    topology = with_in_network_reduction([schedule], sound_topology(network, schedule.num_ranks))
    if is_for_steps(schedule, topology):
        return time_steps(schedule, topology, sizes, on_progress)
    if may_have_classes(schedule, topology, sizes):
        _require_room(schedule, BYTES_COLOURED)
        return time_classes(schedule, topology, sizes, on_progress, in_order=in_order)
    _require_room(schedule)
    return run_events(schedule, topology, sizes, on_progress, in_order=in_order).time_s


def sound_topology(network: AnyNetwork, num_ranks: int) -> Topology:
    """Return what the engines see of the network. Raises ValueError for costs with which time could not go on."""
    topology = network.topology(num_ranks)
    require_sound(topology)
    return topology


def _require_room(schedule: Schedule, bytes_each: int = BYTES_RECORDED) -> None:
    require_memory(f"the times of {schedule.num_transfers:,} transfers", schedule.num_transfers * bytes_each)
