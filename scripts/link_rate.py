"""Measure one TCP connection between two hosts: `testbed.py --hosts 2 --rate 1gbit -- scripts/link_rate.py`."""

import os
import socket
import threading
import time

import click

from ringsim.console import OneLineCommand
from ringsim.units import format_size, parse_size

PORT = 29400  # next to torchrun's own
PIECE = bytes(1024 * 1024)
PATIENCE_S = 60.0


def connect(rank: int) -> socket.socket:
    """Connect rank 0, which listens, with rank 1. Raises OSError if the other does not come."""
    place = (os.environ["MASTER_ADDR"], PORT)
    if rank == 0:
        with socket.create_server(place) as server:
            server.settimeout(PATIENCE_S)
            return server.accept()[0]
    for _ in range(int(PATIENCE_S / 0.1)):
        try:
            return socket.create_connection(place, timeout=PATIENCE_S)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise OSError(f"{place[0]}:{PORT}: rank 0 does not listen")


def send(connection: socket.socket, size_bytes: int) -> None:
    """Send `size_bytes` zeros."""
    for begin in range(0, size_bytes, len(PIECE)):
        connection.sendall(PIECE[: size_bytes - begin])


def receive_rate(connection: socket.socket, size_bytes: int) -> float:
    """Return the payload in bit/s after the first tenth, which the link's burst and TCP's start distort."""
    buffer, got, begin, counted_from = bytearray(len(PIECE)), 0, 0.0, 0
    while got < size_bytes:
        received = connection.recv_into(buffer, min(len(buffer), size_bytes - got))  # no more: the next follows at once
        if not received:
            raise OSError("the other rank has closed the connection before all bytes were sent")
        got += received
        if not counted_from and got >= size_bytes // 10:
            begin, counted_from = time.perf_counter(), got
    return 8 * (got - counted_from) / (time.perf_counter() - begin)


@click.command("link_rate", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--size", default="128MB", help="Number of bytes to send in each direction.")
def main(size: str) -> None:
    """Print what arrives in Mbit/s of payload: one direction, the other, and both at the same time."""
    size_bytes = parse_size(size)
    if size_bytes < len(PIECE):
        raise ValueError(f"--size {size}: must be at least {format_size(len(PIECE))}")
    rank = int(os.environ.get("RANK", "-1"))
    if rank not in (0, 1) or "MASTER_ADDR" not in os.environ:
        raise click.UsageError(
            "link_rate.py must run on exactly two ranks: start it with testbed.py --hosts 2 -- scripts/link_rate.py"
        )
    with connect(rank) as connection:
        for sender in (0, 1):
            if rank == sender:
                send(connection, size_bytes)
            else:
                report(f"{sender} -> {rank}", receive_rate(connection, size_bytes))
        sending = threading.Thread(target=send, args=(connection, size_bytes), daemon=True)
        sending.start()
        report(f"{1 - rank} -> {rank}, both at once", receive_rate(connection, size_bytes))
        sending.join()


def report(way: str, bit_per_s: float) -> None:
    """Print a line at once, because another rank prints too."""
    click.echo(f"{way}: {bit_per_s / 1e6:.1f} Mbit/s")


if __name__ == "__main__":
    main(prog_name="link_rate")  # in messages, as it is where they do not come from click
