"""Calibration of networks from measurements, and the errors of predictions."""

from ringsim.calibration.comparison import (
    RECORD_NOTE,
    ComparedCase,
    ComparedCell,
    ComparedCells,
    ComparedRun,
    Comparison,
    compare,
    compare_logs,
    compare_measurements,
    compare_run,
)
from ringsim.calibration.from_logs import LogFit, calibrate_logs
from ringsim.calibration.from_probes import (
    ProbeFit,
    ProbeModel,
    busy_warning,
    calibrate,
    fitted_cluster,
    fitting_model,
    num_hosts,
    probe_noise,
    with_interval,
)
from ringsim.calibration.host_costs import calibrate_host, calibrate_hosts, calibrate_uniform
from ringsim.calibration.timings import MISFIT, FittedParameter, Timing, cases_of_measurements, cases_of_tables
from ringsim.calibration.warnings import (
    contradiction_warning,
    fabric_warning,
    nic_warning,
    one_host_warning,
    settings_warning,
    undetermined_warning,
)
