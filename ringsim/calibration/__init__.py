"""From measurements to a network, and how far its predictions are from what was measured."""

from ringsim.calibration.cases import MISFIT, TimedCase, cases_of_measurements, cases_of_tables
from ringsim.calibration.compared_run import ComparedRun, compare_run, picture_names
from ringsim.calibration.comparison import ComparedCase, Comparison, compare, compare_logs, compare_measurements
from ringsim.calibration.coverage import contradiction_line, nic_line, senders_per_host
from ringsim.calibration.from_logs import FittedParameter, LogFit, calibrate_logs
from ringsim.calibration.from_probes import (
    ProbeFit,
    ProbeModel,
    calibrate,
    fitted_cluster,
    fitting_model,
    num_hosts,
)
from ringsim.calibration.hosts import calibrate_host, calibrate_hosts
from ringsim.calibration.library_choice import (
    AS_LIBRARY,
    LibraryChoice,
    choose,
    fastest_protocol,
    library_time,
    required_choice,
    why_unknown,
)
from ringsim.calibration.noise import PredictedTime, ProbeNoise, busy_line, probe_noise, with_interval
from ringsim.calibration.plausibility import doubt_line
from ringsim.calibration.uniform import calibrate_uniform

__all__ = [
    "AS_LIBRARY",
    "MISFIT",
    "ComparedCase",
    "ComparedRun",
    "Comparison",
    "FittedParameter",
    "LibraryChoice",
    "LogFit",
    "PredictedTime",
    "ProbeFit",
    "ProbeModel",
    "ProbeNoise",
    "TimedCase",
    "busy_line",
    "calibrate",
    "calibrate_host",
    "calibrate_hosts",
    "calibrate_logs",
    "calibrate_uniform",
    "cases_of_measurements",
    "cases_of_tables",
    "choose",
    "compare",
    "compare_logs",
    "compare_measurements",
    "compare_run",
    "contradiction_line",
    "doubt_line",
    "fastest_protocol",
    "fitted_cluster",
    "fitting_model",
    "library_time",
    "nic_line",
    "num_hosts",
    "picture_names",
    "probe_noise",
    "required_choice",
    "senders_per_host",
    "why_unknown",
    "with_interval",
]
