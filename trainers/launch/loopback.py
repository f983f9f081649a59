"""Listening where this host alone can connect, for ranks that are all on one host. Importing this loads no torch."""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from ringsim.machine import is_loopback

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

HOST = "127.0.0.1"
INTERFACES = ("lo", "lo0")  # on Linux; on macOS and the BSDs
DEFAULT_TIMEOUT = timedelta(seconds=300)  # torch's


def loopback_store(port: int, timeout: timedelta = DEFAULT_TIMEOUT) -> "TCPStore":
    """A new store that listens on loopback. port: 0 for one that the system chooses. Raises OSError if it is in use.

    By itself torch listens on all interfaces, whatever the address that it is given: whoever reaches the host could
    read and write there.
    """
    import torch.distributed as dist  # noqa: PLC0415

    with socket.create_server((HOST, port), backlog=socket.SOMAXCONN) as server:
        port, descriptor = server.getsockname()[1], server.detach()  # which the store closes in the end
    store: TCPStore = dist.TCPStore(  # type: ignore[attr-defined]
        HOST, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=descriptor
    )
    return store


def stay_on_loopback(environment: Mapping[str, str]) -> bool:
    """Whether ranks of one node can do with loopback, as whoever started them has put them on one host.

    (Ranks that were started by hand may be in containers, or network namespaces, of their own: then MASTER_ADDR is an
    address by which they reach each other.)
    """
    by_agent = bool(environment.get("TORCHELASTIC_RUN_ID")) or not environment.get("RANK")  # torchrun; srun, or alone
    return by_agent or is_loopback(environment.get("MASTER_ADDR", ""))


def loopback_interface() -> str | None:
    """Its name; None where there is none, or none that has the address."""
    try:
        with socket.socket() as tried:
            tried.bind((HOST, 0))
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        return None
    return next((name for name in INTERFACES if name in names), None)


def keep_gloo_on_loopback() -> None:
    """Have Gloo listen on loopback in this process, unless GLOO_SOCKET_IFNAME says otherwise."""
    name = loopback_interface()
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
