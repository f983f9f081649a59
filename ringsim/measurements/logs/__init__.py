"""What other people's benchmarks print: nccl-tests, OSU micro-benchmarks and Gloo's own."""

from ringsim.measurements.logs.reader import read_log, read_logs
from ringsim.measurements.logs.table import PT2PT_BANDWIDTH, PT2PT_LATENCY, SENDRECV, Row, Table

__all__ = ["PT2PT_BANDWIDTH", "PT2PT_LATENCY", "SENDRECV", "Row", "Table", "read_log", "read_logs"]
