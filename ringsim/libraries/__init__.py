"""Collective libraries: the schedule, protocol and cost of a call."""

from ringsim.libraries.call import Call, CallColumns
from ringsim.libraries.intervals import (
    NUM_DRAWS,
    SimulatedDraws,
    byte_share,
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
    LIBRARIES,
    LIBRARY,
    LIBRARY_ALGORITHMS,
    LIBRARY_TITLE,
    MESSAGES,
    NEW_BEYOND_BYTES,
    OURS,
    SHARED_MEMORY,
    Library,
    copy_s,
    given_name,
    library_of,
    tables_of_library,
    why_not,
)
from ringsim.libraries.nccl_model import Rates, launch_s, predict, times_s, unmet_settings
from ringsim.libraries.plan import Plan, in_even_chunks
