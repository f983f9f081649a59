"""`TestbedPlan`: the names, addresses and commands of a testbed, as data."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

MAX_HOSTS = 250  # 10.0.0.1 to 10.0.0.250
INTERFACE = "eth0"
TORCHRUN = Path(__file__).with_name("torchrun.py")
MASTER_PORT = 29500  # in a namespace of its own every port is free
CUBIC, RENO = "cubic", "reno"  # Linux's default, and the one that it allows in every namespace
MIN_BIT_PER_S, MAX_BIT_PER_S = 64_000, 100_000_000_000
_PREFIXES = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
             **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}}  # fmt: skip
_RATE = re.compile(r"(\d{1,18}(?:\.\d{0,18})?)((?:[kmgt]i?)?)(bit|bps)?")
_NAMESPACE = re.compile(r"ringsim-(?P<pid>\d+)-\d+-(?:switch|host\d+)")


@dataclass(frozen=True, slots=True)
class Command:
    """One command line. makes: its result, for error messages."""

    arguments: tuple[str, ...]
    makes: str


@dataclass(frozen=True, slots=True)
class TestbedPlan:
    """A testbed.

    name: `ringsim-PID-NUMBER`, unique during the process's life; the prefix of all namespaces.
    rates_bit_per_s: of each host's link, in each direction; None: unlimited.
    congestion_control: of TCP on the hosts, independent of the machine's.
    """

    name: str
    rates_bit_per_s: tuple[int | None, ...]
    congestion_control: str = CUBIC

    @property
    def num_hosts(self) -> int:
        """At least 1."""
        return len(self.rates_bit_per_s)

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-switch"

    def namespace(self, host: int) -> str:
        """Return the namespace of a host, counted from 0."""
        return f"{self.name}-host{host}"

    def make(self) -> Iterator[Command]:
        """Yield the commands that make the testbed, in order. All interfaces are created in its namespaces."""
        yield _command("a network namespace", f"ip netns add {self.switch}")
        yield _command("a bridge", f"ip -n {self.switch} link add bridge0 type bridge")
        yield _command("a bridge", f"ip -n {self.switch} link set bridge0 up")
        for host, rate in enumerate(self.rates_bit_per_s):
            yield from self._make_host(host)
            if rate is not None:
                # What leaves the host waits on its own side, what arrives on the bridge's: tbf shapes what is sent.
                yield _tbf(self.namespace(host), INTERFACE, rate)
                yield _tbf(self.switch, f"port{host}", rate)

    def _make_host(self, host: int) -> Iterator[Command]:
        inside, port = self.namespace(host), f"port{host}"
        peer = f"peer name {INTERFACE} netns {inside}"
        yield _command("a network namespace", f"ip netns add {inside}")
        yield _command("a veth pair", f"ip -n {self.switch} link add {port} type veth {peer}")
        yield _command("a bridge port", f"ip -n {self.switch} link set {port} master bridge0 up")
        yield _command("a loopback interface", f"ip -n {inside} link set lo up")
        yield _command("an address", f"ip -n {inside} addr add {address(host)}/24 dev {INTERFACE}")
        yield _command("an interface", f"ip -n {inside} link set {INTERFACE} up")
        # A connection that pauses for some round trips would otherwise begin anew as slowly as a fresh one, which
        # clusters for training switch off.
        settings = {"tcp_congestion_control": self.congestion_control, "tcp_slow_start_after_idle": "0"}
        for setting, value in settings.items():
            write = "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{setting}"
            yield Command((*self._inside(host), *write), f"a host with {setting} {value}")

    def _inside(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(host)]

    def run(self, arguments: Sequence[str], ranks_per_host: int = 1) -> list[list[str]]:
        """Return a torchrun command per host, with this interpreter. arguments: torchrun's script and its arguments."""
        # A fixed node rank each ("static", not "c10d"): host i has ranks i * ranks_per_host and on, always.
        torchrun = [sys.executable, str(TORCHRUN), "--rdzv-backend", "static"]
        torchrun += f"--master-addr {address(0)} --master-port {MASTER_PORT} --nnodes {self.num_hosts}".split()
        torchrun += f"--nproc-per-node {ranks_per_host}".split()
        return [
            [*self._inside(host), *torchrun, *f"--node-rank {host} --local-addr {address(host)}".split(), *arguments]
            for host in range(self.num_hosts)
        ]


def plan(
    name: str,
    hosts: int,
    rate: str | None = None,
    host_rates: Mapping[int, str] | None = None,
    congestion_control: str = CUBIC,
) -> TestbedPlan:
    """Return a testbed of `hosts` hosts, with links of `rate`, in tc's units, or of the rate in `host_rates`.

    Raises ValueError for an invalid number of hosts, an unknown host, and an invalid rate.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ValueError(f"{hosts} hosts: there must be from 1 to {MAX_HOSTS}")
    rates = [None if rate is None else parse_tc_rate(rate)] * hosts
    for host, own in (host_rates or {}).items():
        if not 0 <= host < hosts:
            raise ValueError(f"rate of host {host}: of {hosts} hosts, counted from 0, the last is {hosts - 1}")
        rates[host] = parse_tc_rate(own)
    return TestbedPlan(name, tuple(rates), congestion_control)


def parse_tc_rate(text: str) -> int:
    """Return bits per second from 1gbit, 250mbit, or, in bytes, 125mbps. A bare number is bits, as in tc.

    Raises ValueError for other text, and for rates outside 64kbit to 100gbit.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if not match or (match[2] and not match[3]):
        raise ValueError(f"{text!r} is not a rate: write it as tc does, 1gbit or 250mbit")
    rate = int(Decimal(match[1]) * _PREFIXES[match[2]] * (8 if match[3] == "bps" else 1))
    if not MIN_BIT_PER_S <= rate <= MAX_BIT_PER_S:
        raise ValueError(f"{text!r}: a rate must be from 64kbit to 100gbit")
    return rate


def burst_bytes(bit_per_s: int) -> int:
    """Return tbf's burst: the tokens that a pause may accumulate, for sending at full speed.

    TCP hands over up to 64 KiB at a time, and packets larger than the burst are split at a cost (measured: 32 KiB gives
    640 of 1000 Mbit/s, 64 KiB 700 to 950). The burst holds two packets, because tokens accumulate while one waits for a
    core. It also lasts at least a millisecond at full rate, because timers wake late on busy cores.
    """
    return max(128 * 1024, bit_per_s // 8 // 1000)


def queue_bytes(bit_per_s: int) -> int:
    """Return the limit of waiting bytes: 50 ms at full rate, and at least 1 MiB so that many senders lose nothing."""
    return max(1024 * 1024, bit_per_s // 8 // 20)


def address(host: int) -> str:
    """Return the address of a host, the same in every testbed, because nothing outside sees it."""
    return f"10.0.0.{host + 1}"


def owner(namespace: str) -> int | None:
    """Return the process that made a namespace, from its name; None for other namespaces."""
    match = _NAMESPACE.fullmatch(namespace)
    return int(match["pid"]) if match else None


def _tbf(namespace: str, interface: str, rate: int) -> Command:
    shape = f"rate {rate}bit burst {burst_bytes(rate)} limit {queue_bytes(rate)}"
    return _command("a rate limit (tbf)", f"tc -n {namespace} qdisc add dev {interface} root tbf {shape}")


def _command(makes: str, line: str) -> Command:
    return Command(tuple(line.split()), makes)
