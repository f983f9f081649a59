"""Where a process runs: on which machine, and in which network namespace of it."""

import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each running kernel, whatever its hosts are called
NAMESPACE = Path("/proc/self/ns/net")  # containers of one machine have one each, and so interfaces of their own


def machine_name() -> str:
    """The same for all processes of a machine."""
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def namespace_name() -> str:
    """The same for all processes that have the same network interfaces."""
    return str(NAMESPACE.readlink()) if NAMESPACE.exists() else socket.gethostname()
