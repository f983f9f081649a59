"""Whether other nodes can reach a rank's Gloo, found out before they wait for it."""

import socket
from typing import Any

import pytest

from ringsim.machine import gloo_address
from trainers.launch.own_address import check_reachable

OTHERS = {"MASTER_ADDR": "node01"}


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
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is compared below
        check_reachable(OTHERS)
    assert str(caught.value) == (
        "the name of this host, here, leads to 127.0.1.1, which is the host itself: no other node can reach it there; "
        "set GLOO_SOCKET_IFNAME to the interface that leads to the others, such as eth0 (ip -br address)"
    )


@pytest.mark.parametrize("addresses", [(), ("192.0.2.7",)])
def test_a_name_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]) -> None:
    """Gloo would take the loopback address; 192.0.2.7 is for documents, no host has it."""
    resolving(monkeypatch, *addresses)
    with pytest.raises(ValueError, match=r"^the name of this host, here, leads to no address of it: no other node can"):
        check_reachable(OTHERS)


def test_an_address_that_others_see_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that the host can listen on, as Gloo takes it."""
    resolving(monkeypatch, "192.0.2.7", "127.0.0.1")
    assert gloo_address("here") == "127.0.0.1"
    monkeypatch.setattr("trainers.launch.own_address.gloo_address", lambda _: "10.0.0.2")
    check_reachable(OTHERS)


@pytest.mark.parametrize(
    "environment",
    [{**OTHERS, "GLOO_SOCKET_IFNAME": "eth0"}, {"MASTER_ADDR": "localhost"}, {"MASTER_ADDR": "127.0.0.1"}],
)
def test_an_interface_by_name_or_all_on_one_host(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Nobody asks where the name leads to."""
    resolving(monkeypatch, "127.0.1.1")
    check_reachable(environment)
