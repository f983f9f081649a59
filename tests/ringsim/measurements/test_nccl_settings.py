"""The settings of NCCL in logs, and the runs that they belong to."""

from pathlib import Path

import pytest

from ringsim.calibration.cases import cases_of_tables
from ringsim.calibration.protocol_time import predict
from ringsim.calibration.questions import Question
from ringsim.measurements import NOT_KNOWN, NcclSettings
from ringsim.measurements.logs.nccl_settings import LogEnvironment
from ringsim.measurements.logs.reader import read_logs
from ringsim.network.file_reader import load_network
from tests.ringsim.made_logs import SIZES, nccl_log


def settings_of(line: str) -> NcclSettings:
    """Return what is known by one line of a log."""
    environment = LogEnvironment()
    environment.look_at(line)
    return NcclSettings.from_environment(environment.as_dict())


@pytest.mark.parametrize(
    ("line", "algorithms", "protocols"),
    [
        ("mpirun -x NCCL_ALGO=Tree -x NCCL_PROTO=LL all_reduce_perf", "tree", "ll"),
        ("export NCCL_ALGO='Ring'", "ring", ""),
        ("NCCL_ALGO=^Tree,NVLS", "^tree,nvls", ""),
        ("# NCCL_ALGO: the default is to let NCCL choose", "", ""),
        ("NCCL_ALGO=allreduce:tree", "", ""),
        ("NCCL_ALGO=", "", ""),
    ],
)
def test_a_line_tells_what_nccl_was_told(line: str, algorithms: str, protocols: str) -> None:
    """All settings of a line, in quotes too; what is not understood leaves the word to the user."""
    settings = settings_of(line)
    assert (settings.algorithms, settings.protocols) == (algorithms, protocols)


FORCED = "node0:12:34 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
WITHIN = nccl_log("all_reduce", 4).replace("#       size", f"{FORCED}#       size")
HEADER_AND_ROWS = "".join(
    line for line in nccl_log("all_reduce", 4).splitlines(True) if " size " in line or " float " in line
)


@pytest.mark.parametrize(
    ("text", "algorithms"),
    [
        ("NCCL_ALGO=Ring\n{log}{log}", ["Ring", ""]),
        ("$ mpirun -x NCCL_ALGO=Ring ./all_reduce_perf\n{log}$ mpirun ./all_reduce_perf\n{log}", ["Ring", ""]),
        ("{within}{log}", ["Ring", ""]),
        ("{late}", ["Ring"]),  # NCCL's lines may come between the rows
        ("{log}{within}{log}", ["", "Ring", ""]),
        ("{log}NCCL_ALGO=Tree\n{within}", ["", "Ring"]),
        ("{unfinished}NCCL_ALGO=Tree\n{log}", ["", "Tree"]),  # nccl-tests has not said that it ended
        ("{unfinished_within}{log}", ["Ring", ""]),
        ("NCCL_ALGO=Ring\n{unfinished}{rows}{log}", ["Ring", "Ring", ""]),  # two tables of one process
        ("export NCCL_ALGO=Ring\n{log}{log}unset NCCL_ALGO\n{log}", ["Ring", "Ring", ""]),
        ("export NCCL_ALGO=Ring\n{log}NCCL_ALGO=Tree ./all_reduce_perf\n{log}{log}", ["Ring", "Tree", "Ring"]),
        ("{unfinished}export NCCL_ALGO=Tree\n{log}", ["", "Tree"]),
    ],
)
def test_a_setting_is_that_of_its_process_alone(tmp_path: Path, text: str, algorithms: list[str]) -> None:
    """The next one is free again, but for what the shell exports; all tables of one process have its settings."""
    log, path = nccl_log("all_reduce", 4), tmp_path / "a.log"
    unfinished, unfinished_within = (some[: some.index("# Out of bounds")] for some in (log, WITHIN))
    late = log.replace("# Out of bounds", f"{FORCED}# Out of bounds")
    parts = {"log": log, "within": WITHIN, "rows": HEADER_AND_ROWS, "unfinished": unfinished, "late": late}
    path.write_text(text.format(**parts, unfinished_within=unfinished_within))
    assert [table.environment.get("nccl_algo", "") for table in read_logs([path])] == algorithms


def test_a_version_is_that_of_its_process(tmp_path: Path) -> None:
    """Logs of several versions may stand in one file; a process that does not tell has the first one."""
    log, path = nccl_log("all_reduce", 4), tmp_path / "a.log"
    path.write_text(
        f"# NCCL version: not printed, on Ubuntu 22.04\nNCCL version 2.18.5\n{log}NCCL version 2.27.3\n{log}{log}"
    )
    assert [table.environment["nccl version"] for table in read_logs([path])] == ["2.18", "2.27", "2.18"]


def test_runs_of_a_log_may_tell_more_and_less_of_nccl(tmp_path: Path) -> None:
    """They are cases of their own, in any order."""
    log, path = nccl_log("all_reduce", 4), tmp_path / "a.log"
    path.write_text(log + "NCCL version 2.18.3+cuda12\n" + log)
    cases = cases_of_tables(read_logs([path]))
    assert [case.settings.version for case in cases] == [(2, 18), None] * len(SIZES)


@pytest.mark.parametrize(
    ("setting", "hosts", "taken"),
    [
        ({}, 1, "in_switch"),
        ({"protocols": "ll"}, 1, "ring LL"),
        ({"algorithms": "tree"}, 1, "ring Simple"),  # trees within a host, of which there is no formula
        ({"algorithms": "nvls", "protocols": "simple"}, 1, "in_switch"),
        ({"algorithms": "nvlstree"}, 2, "in_switch"),
        ({"algorithms": "^nvlstree"}, 2, "ring Simple"),
    ],
)
def test_nvls_has_one_protocol_and_another_name_across_hosts(setting: dict[str, str], hosts: int, taken: str) -> None:
    """The prediction names what NCCL would be left with."""
    network = load_network("dgx-h100-cluster")
    question = Question("all_reduce", 2**28, 8 * hosts, hosts, NOT_KNOWN._replace(**setting))
    assert predict(network, [question])[0][1] == taken
