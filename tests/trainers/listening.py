"""Which addresses processes listen at, as Linux says it in /proc."""

import ipaddress
import os
from pathlib import Path

LISTEN = "0A"


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """The address and port of every TCP socket at which one of these processes listens."""
    own = {inode for pid in pids for inode in _sockets(pid)}
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in own:
                found.append(_place(fields[1]))
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(os.readlink(path))
        except OSError:  # it has been closed meanwhile
            continue
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def _place(text: str) -> tuple[str, int]:
    """Of 0100007F:1F90: words of four bytes, each in this machine's own order."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)
