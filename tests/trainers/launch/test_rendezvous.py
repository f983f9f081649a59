"""Where ranks meet: torchrun's store when they are started again, loopback on one host, an address others can reach."""

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.ranks import run_forked_ranks
from tests.refusals import refused
from trainers.launch import rendezvous
from trainers.launch.environment import distributed_environment
from trainers.launch.rendezvous import attempt_store, check_reachable, keep_gloo_on_loopback, loopback_store

NUM_RANKS = 3
PATIENCE = timedelta(seconds=30)
OTHERS = {"MASTER_ADDR": "node01"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux")


@pytest.fixture
def store() -> dist.TCPStore:
    """As torchrun's agent has it."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


def meet(store: dist.TCPStore, late: int, number: int) -> list[str]:
    """One attempt: what each rank reads that rank 0 wrote; one of the ranks comes late."""

    def rank(own: int) -> str:
        if own == late:
            time.sleep(0.1)
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=PATIENCE)
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
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=PATIENCE)
    with pytest.raises(RuntimeError):
        attempt_store(client, 1, NUM_RANKS, 0.05)
    with pytest.raises(RuntimeError, match=r"no response from rank 1, 2 in 0.05 s"):
        attempt_store(client, 0, NUM_RANKS, 0.05)
    assert meet(store, 1, 7) == ["7"] * NUM_RANKS


def check_listening(_: int) -> None:
    """Meet the others; the store that rank 0 has made listens on loopback alone, as Gloo does on every rank."""
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    rendezvous.init_process_group(distributed_environment(), 60)
    assert os.environ["GLOO_SOCKET_IFNAME"] in rendezvous.INTERFACES  # the name of the host may lead to another address
    require_loopback_alone(int(os.environ["MASTER_PORT"]))
    dist.barrier()
    dist.destroy_process_group()


def require_loopback_alone(port: int) -> None:
    """Check that a socket listens at 127.0.0.1 and not at all addresses, of which Linux has 127.0.0.2, too."""
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


@linux
def test_ranks_that_meet_at_loopback_listen_there_alone() -> None:
    """Rank 0 makes the store itself; each rank has the listening Gloo."""
    assert run_forked_ranks(2, 60, check_listening) == [0, 0]


@linux
def test_a_loopback_store_is_one_that_others_can_use() -> None:
    """On a port that the system chooses, or on the given one, which it then has for itself."""
    store = loopback_store(0, PATIENCE)
    dist.TCPStore("127.0.0.1", store.port, is_master=False).set("key", "value")
    assert store.get("key") == b"value"
    require_loopback_alone(store.port)
    with pytest.raises(OSError, match="Address already in use"):
        loopback_store(store.port, PATIENCE)


def test_who_has_one_loopback() -> None:
    """Ranks that one launcher has started, and those that say that they meet there; one alone, or under srun.

    Not those that meet at an address: they may be in containers that have loopbacks of their own.
    """
    by_torchrun = {"RANK": "0", "MASTER_ADDR": "node1", "TORCHELASTIC_RUN_ID": "none"}
    addresses = [{"RANK": "0", "MASTER_ADDR": address} for address in ("localhost", "10.0.0.1")]
    stay = [rendezvous.stay_on_loopback(environment) for environment in ({}, by_torchrun, *addresses)]
    assert stay == [True, True, True, False]


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


LEADS_BACK = "resolves to 127.0.1.1, a loopback address"  # as in Debian
LEADS_NOWHERE = "does not resolve to an address of this host"  # Gloo would take the loopback address


@pytest.mark.parametrize(
    ("addresses", "leads"),
    [
        (["127.0.1.1"], LEADS_BACK),
        (["192.0.2.7", "127.0.1.1"], LEADS_BACK),  # the first is for documents, no host has it
        (["192.0.2.7"], LEADS_NOWHERE),
        ([], LEADS_NOWHERE),
    ],
)
def test_a_name_that_leads_away_is_refused(monkeypatch: pytest.MonkeyPatch, addresses: list[str], leads: str) -> None:
    """Unless an interface is named, all ranks are on one host, or it leads to an address that others see."""

    def getaddrinfo(name: str, *_: object, **__: object) -> list[object]:
        if name != "here" or not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with refused(
        f"the name of this host, here, {leads}: no other node can reach it there: "
        "set GLOO_SOCKET_IFNAME to the interface to the other nodes, such as eth0 (ip -br address)"
    ):
        check_reachable(OTHERS)
    check_reachable({**OTHERS, "GLOO_SOCKET_IFNAME": "eth0"})
    check_reachable({"MASTER_ADDR": "localhost"})
    monkeypatch.setattr("trainers.launch.rendezvous.gloo_address", lambda _: "10.0.0.2")
    check_reachable(OTHERS)
