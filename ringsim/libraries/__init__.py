"""Collective libraries: the schedule, protocol and cost of a call."""

from ringsim.libraries.call import Call, CallColumns
from ringsim.libraries.intervals import (
    NUM_DRAWS,
    SimulatedDraws,
    byte_shares,
    draw_ratios,
    guessed_from,
    intervals,
    noises,
    rounded_ratios,
    senders_per_host,
)
from ringsim.libraries.library import (
    DIRECT,
    GLOO,
    MESSAGES,
    NEW_BEYOND_BYTES,
    OURS,
    SHARED_MEMORY,
    Library,
    copy_s,
    given_name,
)
from ringsim.libraries.nccl_model import Rates, launch_s, predict, times_s, unmet_settings
from ringsim.libraries.plan import Plan, in_even_chunks
from ringsim.libraries.table import LIBRARIES, LIBRARY, LIBRARY_ALGORITHMS, library_of, why_not
