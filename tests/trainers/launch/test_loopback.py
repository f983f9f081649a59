"""Ranks that are all on one host listen where that host alone can connect."""

import ipaddress
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.launches import processes_of
from tests.trainers.listening import listening
from trainers.launch.loopback import keep_gloo_on_loopback, loopback_interface, loopback_store, stay_on_loopback

ROOT = Path(__file__).parents[3]
SPAWNED = """
import sys
from tests.trainers.launches import wait_for_it
from trainers.launch.spawn import spawn
if __name__ == "__main__":
    sys.exit(spawn(2, wait_for_it, (sys.argv[1], -1, "")))
"""
STARTED = """
import sys
from tests.trainers.launches import wait_for_it
wait_for_it(sys.argv[1], -1, "")
"""
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net/tcp")


def started(folder: Path, program: str, **variables: object) -> subprocess.Popen[bytes]:
    """A process that waits in a collective, or whose ranks do."""
    known = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"}
    ours = {name: value for name, value in os.environ.items() if name not in known and "SLURM" not in name}
    environment = {**ours, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in variables.items()}}
    (folder / "program.py").write_text(program)
    return subprocess.Popen([sys.executable, str(folder / "program.py"), str(folder)], env=environment)


def addresses(processes: list[subprocess.Popen[bytes]], ranks: list[int]) -> list[str]:
    """Where they listen."""
    return [address for address, _ in listening([*ranks, *(process.pid for process in processes)])]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End them and their ranks."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


def test_spawned_ranks_and_their_store_listen_on_loopback_alone(tmp_path: Path) -> None:
    """The store of the starting process, and the Gloo of each rank."""
    processes = [started(tmp_path, SPAWNED)]
    try:
        found = addresses(processes, processes_of(tmp_path, 2))
    finally:
        end(processes)
    assert len(found) >= 3  # the store's, and one of each rank
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found


@pytest.mark.slow
def test_ranks_that_meet_at_loopback_listen_there_alone(tmp_path: Path) -> None:
    """Rank 0 makes the store itself, as under srun."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    world = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [started(tmp_path, STARTED, RANK=rank, LOCAL_RANK=rank, **world) for rank in range(2)]
    try:
        found = addresses(processes, processes_of(tmp_path, 2))
    finally:
        end(processes)
    assert len(found) >= 3
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found


def test_a_loopback_store_is_one_that_others_can_use() -> None:
    """On a port that the system chooses, or on the given one, which it then has for itself."""
    import torch.distributed as dist

    store = loopback_store(0)
    dist.TCPStore("127.0.0.1", store.port, is_master=False).set("key", "value")
    assert store.get("key") == b"value"
    assert ("127.0.0.1", store.port) in listening([os.getpid()])
    with pytest.raises(OSError, match="Address already in use"):
        loopback_store(store.port)


@pytest.mark.parametrize(
    ("environment", "can"),
    [
        ({}, True),  # alone, or under srun
        ({"RANK": "0", "MASTER_ADDR": "node1", "TORCHELASTIC_RUN_ID": "none"}, True),
        ({"RANK": "0", "MASTER_ADDR": "localhost"}, True),
        ({"RANK": "0", "MASTER_ADDR": "10.0.0.1"}, False),  # in containers, maybe, that have loopbacks of their own
    ],
)
def test_who_has_one_loopback(environment: dict[str, str], can: bool) -> None:
    """Ranks that one launcher has started, and those that say that they meet there."""
    assert stay_on_loopback(environment) == can


def test_gloo_is_told_only_where_there_is_a_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the user says goes before it."""
    name = loopback_interface()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    keep_gloo_on_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    keep_gloo_on_loopback()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == name
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    keep_gloo_on_loopback()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
