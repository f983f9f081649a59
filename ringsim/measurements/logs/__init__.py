"""The logs of other people's benchmarks: nccl-tests, OSU micro-benchmarks and Gloo's own."""

from ringsim.measurements.logs.lines import LogRow, LogTable
from ringsim.measurements.logs.reader import read_log, read_logs
