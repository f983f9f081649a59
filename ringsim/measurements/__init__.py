"""Measurements by this project or by other benchmarks, and their provenance."""

from ringsim.measurements.log_lines import LogRow, LogShape, LogTable
from ringsim.measurements.log_reader import read_logs
from ringsim.measurements.measurements import (
    CHAIN_TESTS,
    LIMIT,
    MESSAGE_TESTS,
    PLAIN_RING,
    PT2PT_BANDWIDTH,
    RING_TESTS,
    ROUNDS_PER_RUN,
    SENDRECV,
    SLOT_BYTES,
    TESTS,
    TORCH,
    TOUCHED_BYTES,
    TRANSFER,
    WITHOUT_SCHEDULE,
    CollectiveTimes,
    Measurements,
    Probe,
    ProbeKind,
    RecordedRun,
    p10_p90,
    p95,
    pooled,
)
from ringsim.measurements.nccl_settings import NCCL_ALGORITHMS, NCCL_PROTOCOLS, NOT_KNOWN, NcclSettings
from ringsim.measurements.nccl_tests import busbw_factor
from ringsim.measurements.provenance import RankHosts, provenance
