"""Where Slurm's ranks meet: node lists, ports, and what is said when scontrol is missing."""

import os
from pathlib import Path

import pytest

from tests.refusals import refused
from trainers.launch.slurm import first_node, in_step, meeting_point, step_port, tasks_by_node

SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 9
case "$3" in
    "node[01-03,7]") printf 'node01\\nnode02\\nnode03\\nnode7\\n' ;;
    *) echo "Invalid hostlist: $3" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with a scontrol that knows one list."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,3(x1),12(x2)", [4, 3, 12, 12])]
)
def test_tasks_by_node(text: str, counts: list[int]) -> None:
    """Runs of nodes with as many tasks are written once."""
    assert tasks_by_node(text) == counts


@pytest.mark.parametrize("text", ["", "2(x3", "2,", "two", "2(3)"])
def test_tasks_by_node_refuses_other_text(text: str) -> None:
    """With the variable's name."""
    with pytest.raises(
        ValueError, match=r"^SLURM_STEP_TASKS_PER_NODE=.*: must be in Slurm's format, such as 2\(x3\),1$"
    ):
        tasks_by_node(text)


def test_the_first_of_several_nodes_is_what_scontrol_says(path: str) -> None:
    """The step's list goes before the job's."""
    assert first_node({"SLURM_STEP_NODELIST": "node[01-03,7]", "SLURM_JOB_NODELIST": "x", "PATH": path}) == "node01"
    assert first_node({"SLURM_JOB_NODELIST": "node[01-03,7]", "PATH": path}) == "node01"


def test_one_node_needs_no_scontrol() -> None:
    """Its name is the list."""
    assert first_node({"SLURM_STEP_NODELIST": "node7", "PATH": "/nowhere"}) == "node7"


@pytest.mark.parametrize("nodes", ["node[01-03,7]", "node3,node1"])
def test_without_scontrol_it_says_what_is_missing(nodes: str, tmp_path: Path) -> None:
    """And how to do without it."""
    with refused(
        f"SLURM_STEP_NODELIST={nodes}: scontrol, which lists them, is not on the PATH: "
        "add Slurm's commands, or set MASTER_ADDR to the first node"
    ):
        first_node({"SLURM_STEP_NODELIST": nodes, "PATH": str(tmp_path)})


def test_what_scontrol_refuses_is_said_in_its_words(path: str) -> None:
    """In one line."""
    with refused(
        "SLURM_STEP_NODELIST=node[1-: scontrol show hostnames node[1-: Invalid hostlist: node[1-; "
        "set MASTER_ADDR to the first node"
    ):
        first_node({"SLURM_STEP_NODELIST": "node[1-", "PATH": path})


def test_no_node_list_at_all() -> None:
    """A step has one."""
    with pytest.raises(ValueError, match=r"^SLURM_STEP_NODELIST is not set: start it with srun, or set MASTER_ADDR"):
        first_node({"PATH": "/nowhere"})


def test_steps_that_may_run_at_once_have_different_ports() -> None:
    """Steps of one job, and jobs in a row; all below those that the system hands out."""
    ports = [step_port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(s)}) for job in range(900, 2000) for s in (0, 7)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 1024
    assert max(ports) < 32768


def test_a_step_without_a_job_has_no_port() -> None:
    """It says which number is missing."""
    with pytest.raises(ValueError, match=r"^SLURM_JOB_ID=, SLURM_STEP_ID=0: must be numbers; start it with srun$"):
        step_port({})


def test_address_and_port_that_are_set_have_their_way() -> None:
    """Each on its own."""
    step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "node7"}
    assert meeting_point(step) == ("node7", 11378)
    assert meeting_point(step, one_node=True) == ("127.0.0.1", 11378)
    assert meeting_point({**step, "MASTER_ADDR": "10.0.0.1"}, one_node=True) == ("10.0.0.1", 11378)
    assert meeting_point({**step, "MASTER_ADDR": "10.0.0.1"}) == ("10.0.0.1", 11378)
    assert meeting_point({**step, "MASTER_PORT": "29500"}) == ("node7", 29500)
    with pytest.raises(ValueError, match=r"^MASTER_PORT=any: must be a port, from 1 to 65535$"):
        meeting_point({**step, "MASTER_PORT": "any"})


@pytest.mark.parametrize(("step", "is_task"), [("0", True), ("12", True), ("4294967290", False), ("4294967291", False)])
def test_shells_of_a_job_are_no_tasks(step: str, is_task: bool) -> None:
    """salloc's, and the batch script's, have numbers of their own."""
    assert in_step({"SLURM_STEP_ID": step}) == is_task
