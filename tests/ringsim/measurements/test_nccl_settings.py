"""The settings of NCCL in logs, and the runs that they belong to."""

from pathlib import Path

import pytest

from ringsim import cases_of_tables, load_network, read_logs
from ringsim.libraries import Call, predict
from ringsim.measurements.nccl_settings import NOT_KNOWN, LogEnvironment, NcclSettings
from tests.ringsim.commands import written
from tests.ringsim.made_logs import SIZES, nccl_log

TOLD = {
    "mpirun -x NCCL_ALGO=Tree -x NCCL_PROTO=LL all_reduce_perf": ("tree", "ll"),
    "export NCCL_ALGO='Ring'": ("ring", ""),
    "NCCL_ALGO=^Tree,NVLS": ("^tree,nvls", ""),
    "# NCCL_ALGO: the default is to let NCCL choose": ("", ""),
    "NCCL_ALGO=allreduce:tree": ("", ""),
    "NCCL_ALGO=": ("", ""),
}


@pytest.mark.parametrize("line", TOLD)
def test_a_line_tells_what_nccl_was_told(line: str) -> None:
    """All settings of a line, in quotes too; what is not understood leaves the word to the user."""
    environment = LogEnvironment()
    environment.look_at(line)
    settings = NcclSettings.from_environment(environment.as_dict())
    assert (settings.algorithms, settings.protocols) == TOLD[line]


FORCED = "node0:12:34 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
LOG = nccl_log("all_reduce", 4)
WITHIN = LOG.replace("#       size", f"{FORCED}#       size")
UNFINISHED, UNFINISHED_WITHIN = (text[: text.index("# Out of bounds")] for text in (LOG, WITHIN))
HEADER_AND_ROWS = "".join(line for line in LOG.splitlines(True) if " size " in line or " float " in line)


PROCESSES = [
    (f"NCCL_ALGO=Ring\n{LOG}{LOG}", ["Ring", ""]),
    (f"$ mpirun -x NCCL_ALGO=Ring ./all_reduce_perf\n{LOG}$ mpirun ./all_reduce_perf\n{LOG}", ["Ring", ""]),
    (f"{WITHIN}{LOG}", ["Ring", ""]),
    (LOG.replace("# Out of bounds", f"{FORCED}# Out of bounds"), ["Ring"]),  # NCCL's lines come between the rows
    (f"{LOG}{WITHIN}{LOG}", ["", "Ring", ""]),
    (f"{LOG}NCCL_ALGO=Tree\n{WITHIN}", ["", "Ring"]),
    (f"{UNFINISHED}NCCL_ALGO=Tree\n{LOG}", ["", "Tree"]),  # nccl-tests has not said that it ended
    (f"{UNFINISHED_WITHIN}{LOG}", ["Ring", ""]),
    (f"NCCL_ALGO=Ring\n{UNFINISHED}{HEADER_AND_ROWS}{LOG}", ["Ring", "Ring", ""]),  # two tables of one process
    (f"export NCCL_ALGO=Ring\n{LOG}{LOG}unset NCCL_ALGO\n{LOG}", ["Ring", "Ring", ""]),
    (f"export NCCL_ALGO=Ring\n{LOG}NCCL_ALGO=Tree ./all_reduce_perf\n{LOG}{LOG}", ["Ring", "Tree", "Ring"]),
    (f"{UNFINISHED}export NCCL_ALGO=Tree\n{LOG}", ["", "Tree"]),
]


@pytest.mark.parametrize(("text", "algorithms"), PROCESSES, ids=range(12))
def test_a_setting_is_that_of_its_process_alone(tmp_path: Path, text: str, algorithms: list[str]) -> None:
    """The next one is free again, but for what the shell exports; all tables of one process have its settings."""
    tables = read_logs([written(tmp_path / "a.log", text)])
    assert [table.environment.get("nccl_algo", "") for table in tables] == algorithms


def test_runs_of_a_log_may_tell_more_and_less_of_nccl(tmp_path: Path) -> None:
    """They are cases of their own, in any order; a process that does not tell its version has the first one."""
    versions = "# NCCL version: not printed, on Ubuntu 22.04\nNCCL version 2.18.5\n{0}NCCL version 2.27.3\n{0}{0}"
    tables = read_logs([written(tmp_path / "a.log", versions.format(LOG))])
    assert [table.environment["nccl version"] for table in tables] == ["2.18", "2.27", "2.18"]
    cases = cases_of_tables(read_logs([written(tmp_path / "b.log", f"{LOG}NCCL version 2.18.3+cuda12\n{LOG}")]))
    assert [case.call.settings.version for case in cases] == [(2, 18), None] * len(SIZES)


FREE = [
    ({}, 1, "in_switch"),
    ({"protocols": "ll"}, 1, "ring LL"),
    ({"algorithms": "tree"}, 1, "ring Simple"),  # trees within a host, of which there is no formula
    ({"algorithms": "nvls", "protocols": "simple"}, 1, "in_switch"),
    ({"algorithms": "nvlstree"}, 2, "in_switch"),
    ({"algorithms": "^nvlstree"}, 2, "ring Simple"),
    ({"algorithms": "ring", "protocols": "simple"}, 2, "ring Simple"),
    ({"algorithms": "^ring", "protocols": "ll128"}, 2, "tree LL128"),
    ({"algorithms": "allreduce:tree;allgather:ring"}, 2, "ring Simple"),  # of single collectives: not understood
]


@pytest.mark.parametrize(("setting", "hosts", "taken"), FREE)
def test_what_nccl_was_told_to_take_is_predicted(setting: dict[str, str], hosts: int, taken: str) -> None:
    """The prediction names what NCCL would be left with; NVLS has one protocol, and another name across hosts."""
    call = Call("all_reduce", 2**28, 8 * hosts, hosts, NOT_KNOWN._replace(**setting))
    assert predict(load_network("dgx-h100-cluster"), [call])[0][1] == taken
