"""Memory that the ranks of a host share: segments, heaps, meeting and waiting."""

from collectives.shared_memory.local_ranks import TOKEN_BITS, LocalRanks, OtherCallError, PeerError, TimeLimit
from collectives.shared_memory.meeting import MEETING_TIMEOUT_S, Meeting
from collectives.shared_memory.memory import CACHE_LINE, MAX_RECORDS
