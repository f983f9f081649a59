"""Text, traces and pictures of results."""

from ringsim.report.calibration_table import fit_dict, format_comparison, format_fit, format_probe_fit, probe_fit_dict
from ringsim.report.network_table import (
    format_network_details,
    format_networks,
    format_placement,
    network_details,
    network_summary,
    parse_placement,
    placement_dict,
)
from ringsim.report.notebook import register
from ringsim.report.pages.animation_page import animation_page
from ringsim.report.pages.report_page import report_page, step_page
from ringsim.report.perfetto import step_trace_lines, trace_lines, write_trace
from ringsim.report.run_summary import (
    bound_reason,
    describe,
    format_synthesis,
    format_walkthrough,
    ranks_table,
    search_hint,
    synthesis_dict,
)
from ringsim.report.step_tables import caps_table, ddp_facts, format_trace_prediction, format_trace_scaling, token_facts
from ringsim.report.sweep_table import format_sweep, sweep_notes
from ringsim.report.table import DataTable
