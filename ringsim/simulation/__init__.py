"""Simulation: the time of each transfer of a schedule on a network."""

from ringsim.simulation.closed_form import closed_form_of, closed_form_s
from ringsim.simulation.rates import fair_rates
from ringsim.simulation.routes import has_contention, with_in_network_reduction
from ringsim.simulation.simulate import (
    IN_ORDER,
    RULE,
    Runtime,
    lists_more_than,
    predict_repeated,
    predict_time,
    simulate,
)
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, TransferCosts, bytes_s, ignore_progress
from ringsim.simulation.work_queue import QueuedCall, Span, has_steady_times, time_queue
