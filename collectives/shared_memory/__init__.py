"""Memory that the ranks of a host share: its segments, how ranks meet, and how they wait for each other."""

from collectives.shared_memory.local_ranks import TOKEN_BITS, LocalRanks
from collectives.shared_memory.meeting import Meeting
from collectives.shared_memory.segment import CACHE_LINE, MAX_RECORDS, Segment

__all__ = ["CACHE_LINE", "MAX_RECORDS", "TOKEN_BITS", "LocalRanks", "Meeting", "Segment"]
