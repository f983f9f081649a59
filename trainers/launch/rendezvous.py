"""`init_process_group`: the group of all ranks and their rendezvous, under torchrun, srun or as one process.

Ranks on one host listen on loopback. Importing this loads no torch.
"""

import errno
import os
import socket
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from ringsim.machine import gloo_address, is_loopback
from trainers.launch.environment import MEETING_VARIABLES, DistributedEnvironment, slurm_meeting_point

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store, TCPStore

HOST = "127.0.0.1"
INTERFACES = ("lo", "lo0")  # on Linux; on macOS and the BSDs
POLL_S = 0.01


def init_process_group(environment: DistributedEnvironment, timeout_s: float) -> "dist.ProcessGroup":
    """Make the process group of all ranks, on Gloo for CPU tensors and on NCCL for GPU tensors.

    timeout_s: maximum wait for other ranks, now and later.

    Raises ValueError if there is no meeting point, and ConnectionError if the ranks do not meet.
    """
    if not timeout_s > 0:
        raise ValueError(f"a timeout of {timeout_s} s: must be greater than 0")
    on_one_node = environment.num_ranks == environment.ranks_per_node
    by_launcher = "RANK" in os.environ
    alone = environment.num_ranks == 1 and not by_launcher
    if environment.num_ranks > 1 and not by_launcher:
        _set_meeting_point(environment, on_one_node)
    on_one_host = on_one_node and stay_on_loopback(os.environ)
    if on_one_host:
        keep_gloo_on_loopback()
    elif not on_one_node:
        check_reachable(os.environ)
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import set_gloo_thread_policy  # noqa: PLC0415  it needs torch

    if environment.device != "cpu":
        torch.cuda.set_device(environment.device)  # the default of NCCL and barriers
    backend = "gloo" if environment.device == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    try:
        store = _store(environment, timeout, alone, on_one_host)
        dist.init_process_group(
            backend, rank=environment.rank, world_size=environment.num_ranks, store=store, timeout=timeout
        )
    except (RuntimeError, OSError) as error:
        raise ConnectionError(_not_joined(environment, timeout_s, error)) from error
    assert dist.group.WORLD is not None
    set_gloo_thread_policy()
    return dist.group.WORLD


def _set_meeting_point(environment: DistributedEnvironment, one_node: bool) -> None:
    if environment.rank == 0 and environment.node != 0 and not os.environ.get("MASTER_ADDR"):
        name = os.environ.get("SLURMD_NODENAME", "its node")
        raise ValueError(
            f"rank 0 is on node {environment.node}, but the others look for it on the first node: "
            f"set MASTER_ADDR={name}, or leave out --distribution=arbitrary"
        )
    address, port = slurm_meeting_point(os.environ, one_node)
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))


def _store(environment: DistributedEnvironment, timeout: timedelta, alone: bool, on_one_host: bool) -> "Store | None":
    """Return the ranks' store; None for torch's own."""
    import torch.distributed as dist  # noqa: PLC0415

    if alone:  # one process has no need of a port
        return dist.HashStore()  # type: ignore[attr-defined]  # torch's stubs lack it
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        whole = dist.TCPStore(address, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
        return attempt_store(whole, environment.rank, environment.num_ranks, timeout.total_seconds())
    if not (on_one_host and is_loopback(address)):
        return None
    if environment.rank == 0:
        return loopback_store(port, timeout)
    return dist.TCPStore(HOST, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def _not_joined(environment: DistributedEnvironment, timeout_s: float, error: Exception) -> str:
    address, port = (os.environ.get(name) for name in MEETING_VARIABLES)
    cause = (str(error).strip() or repr(error)).splitlines()[0]
    if "EADDRINUSE" in cause or getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"MASTER_PORT={port} is in use on {address}: set another, or let torchrun --standalone choose one"
    who = f"rank {environment.rank} of {environment.num_ranks} on node {environment.node}"
    return f"{who} did not reach the other ranks at {address}:{port} (timeout {timeout_s:g} s; docs/slurm.md): {cause}"


def attempt_store(store: "Store", rank: int, num_ranks: int, timeout_s: float) -> "Store":
    """Return a part of torchrun's store that only the ranks of this attempt know; collective.

    With --max-restarts torchrun keeps one store for all attempts, in which a rank could find a dead rank's address. The
    number of restarts differs between nodes, and cannot name an attempt.

    Each rank writes a random name. Rank 0 answers with the attempt's name until it is confirmed. Raises RuntimeError on
    a timeout.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415

    name = uuid.uuid4().hex
    if rank != 0:
        store.set(f"attempt/life of {rank}", name)
        store.wait([f"attempt/for {name}"], timedelta(seconds=timeout_s))
        name = store.get(f"attempt/for {name}").decode()
        store.set(f"attempt/{name} has {rank}", "")
        return PrefixStore(f"attempt/{name}", store)
    missing, deadline = list(range(1, num_ranks)), time.monotonic() + timeout_s
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no response from rank {', '.join(map(str, missing))} in {timeout_s:g} s")
        for other in missing:
            if store.check([f"attempt/life of {other}"]):
                store.set(f"attempt/for {store.get(f'attempt/life of {other}').decode()}", name)
        time.sleep(POLL_S)
        missing = [other for other in missing if not store.check([f"attempt/{name} has {other}"])]
    return PrefixStore(f"attempt/{name}", store)


def loopback_store(port: int, timeout: timedelta) -> "TCPStore":
    """Make a store that listens only on loopback, unlike torch's. Raises OSError if the port is in use.

    port: 0 lets the system choose.
    """
    import torch.distributed as dist  # noqa: PLC0415

    with socket.create_server((HOST, port), backlog=socket.SOMAXCONN) as server:
        port, descriptor = server.getsockname()[1], server.detach()  # which the store closes in the end
    store: TCPStore = dist.TCPStore(  # type: ignore[attr-defined]
        HOST, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=descriptor
    )
    return store


def stay_on_loopback(environment: Mapping[str, str]) -> bool:
    """Whether loopback suffices for one node's ranks, which may be in different containers."""
    by_agent = bool(environment.get("TORCHELASTIC_RUN_ID")) or not environment.get("RANK")  # torchrun; srun, or alone
    return by_agent or is_loopback(environment.get("MASTER_ADDR", ""))


def keep_gloo_on_loopback() -> None:
    """Let Gloo listen on loopback, unless GLOO_SOCKET_IFNAME is set."""
    names = [name for _, name in socket.if_nameindex() if name in INTERFACES]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def check_reachable(environment: Mapping[str, str]) -> None:
    """Raise ValueError if Gloo would listen where other nodes cannot connect.

    By default Gloo uses the address of the host's name: 127.0.1.1 in Debian's /etc/hosts.
    """
    if environment.get("GLOO_SOCKET_IFNAME") or is_loopback(environment["MASTER_ADDR"]):
        return  # all "nodes" on one host, which has been asked for
    name = socket.gethostname()
    address = gloo_address(name)
    if address is None or is_loopback(address):
        resolved = f"resolves to {address}, a loopback address"
        where = resolved if address else "does not resolve to an address of this host"
        raise ValueError(
            f"the name of this host, {name}, {where}: no other node can reach it there: "
            f"set GLOO_SOCKET_IFNAME to the interface to the other nodes, such as eth0 (ip -br address)"
        )
