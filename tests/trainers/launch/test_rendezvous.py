"""Where ranks meet: torchrun's store when they are started again, loopback on one host, an address others can reach."""

import ipaddress
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ringsim.machine import gloo_address
from tests.refusals import refused
from tests.trainers.launches import processes_of, start_ranks
from tests.trainers.listening import listening
from trainers.launch.rendezvous import (
    attempt_store,
    check_reachable,
    keep_gloo_on_loopback,
    loopback_store,
    stay_on_loopback,
)

NUM_RANKS = 3
OTHERS = {"MASTER_ADDR": "node01"}
needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net/tcp")


@pytest.fixture
def store() -> dist.TCPStore:
    """As torchrun's agent has it."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


def meet(store: dist.TCPStore, late: int, number: int) -> list[str]:
    """One attempt: what each rank reads that rank 0 wrote; one of the ranks comes late."""

    def rank(own: int) -> str:
        if own == late:
            time.sleep(0.1)
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))
        mine = attempt_store(client, own, NUM_RANKS, 30.0)
        if own == 0:
            mine.set("number", str(number))
        return mine.get("number").decode()

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        return list(pool.map(rank, range(NUM_RANKS)))


@pytest.mark.parametrize("late", range(NUM_RANKS))
def test_no_rank_finds_what_an_earlier_attempt_wrote(store: dist.TCPStore, late: int) -> None:
    """Whichever comes last, and may still seem to be as it was."""
    for number in range(3):
        assert meet(store, late, number) == [str(number)] * NUM_RANKS


def test_a_rank_may_have_died_before_the_others_came(store: dist.TCPStore) -> None:
    """Then it was there once more often than they."""
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))
    with pytest.raises(RuntimeError):
        attempt_store(client, 1, NUM_RANKS, 0.05)
    with pytest.raises(RuntimeError, match=r"no response from rank 1, 2 in 0.05 s"):
        attempt_store(client, 0, NUM_RANKS, 0.05)
    assert meet(store, 1, 7) == ["7"] * NUM_RANKS


@needs_proc
def test_ranks_that_meet_at_loopback_listen_there_alone(tmp_path: Path) -> None:
    """Rank 0 makes the store itself; each rank has the listening Gloo."""
    with start_ranks(tmp_path) as process:
        found = listening([process.pid, *processes_of(tmp_path, 2)])
    assert len(found) >= 3
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in found), found


@needs_proc
def test_a_loopback_store_is_one_that_others_can_use() -> None:
    """On a port that the system chooses, or on the given one, which it then has for itself."""
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
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    keep_gloo_on_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    keep_gloo_on_loopback()
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "lo"
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    keep_gloo_on_loopback()
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """The name of the host is `here`, which leads to these addresses."""

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        assert name == "here"
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_that_leads_to_the_host_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's 127.0.1.1."""
    resolving(monkeypatch, "127.0.1.1")
    with refused(
        "the name of this host, here, resolves to 127.0.1.1, a loopback address: no other node can reach it there: "
        "set GLOO_SOCKET_IFNAME to the interface to the other nodes, such as eth0 (ip -br address)"
    ):
        check_reachable(OTHERS)


@pytest.mark.parametrize("addresses", [(), ("192.0.2.7",)])
def test_a_name_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]) -> None:
    """Gloo would take the loopback address; 192.0.2.7 is for documents, no host has it."""
    resolving(monkeypatch, *addresses)
    with pytest.raises(
        ValueError,
        match=r"^the name of this host, here, does not resolve to an address of this host: no other node can",
    ):
        check_reachable(OTHERS)


def test_an_address_that_others_see_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that the host can listen on, as Gloo takes it."""
    resolving(monkeypatch, "192.0.2.7", "127.0.0.1")
    assert gloo_address("here") == "127.0.0.1"
    monkeypatch.setattr("trainers.launch.rendezvous.gloo_address", lambda _: "10.0.0.2")
    check_reachable(OTHERS)


@pytest.mark.parametrize(
    "environment",
    [{**OTHERS, "GLOO_SOCKET_IFNAME": "eth0"}, {"MASTER_ADDR": "localhost"}, {"MASTER_ADDR": "127.0.0.1"}],
)
def test_an_interface_by_name_or_all_on_one_host(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Nobody asks where the name leads to."""
    resolving(monkeypatch, "127.0.1.1")
    check_reachable(environment)
