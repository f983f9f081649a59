"""`network_text`: a testbed as a network file, for simulations of the same network."""

from collections.abc import Iterator

from netns_testbed.plan import TestbedPlan

_HEAD = """\
# Left out: the kernel's work and its latency (all hosts share the cores of one machine; calibrate tells), and framing,
# which takes 4.4 % of the rate: 1448 bytes of 1514 are payload.
name = "testbed"
description = "{hosts} network namespaces on one bridge, ranks of each: {ranks}"
source = "nominal rates of scripts/testbed.py (docs/testbed.md)"
"""


def network_text(plan: TestbedPlan, ranks_per_host: int = 1) -> str:
    """Return the TOML text (docs/reference/files.md): nominal rates, and all ranks of a host on its one link."""
    rates = plan.rates_bit_per_s
    lines = [_HEAD.format(hosts=plan.num_hosts, ranks=ranks_per_host)]
    if len(set(rates)) > 1:
        lines += _hosts(rates, ranks_per_host)
    else:
        lines += ["[host]", f"ranks = {ranks_per_host}", f"count = {plan.num_hosts}", ""]
        lines += [] if rates[0] is None else ["[host.nic]", f"bandwidth = {_quoted(rates[0])}"]
    return "\n".join(lines).rstrip() + "\n"


def _hosts(rates: tuple[int | None, ...], ranks_per_host: int) -> Iterator[str]:
    for host, rate in enumerate(rates):
        ranks = list(range(host * ranks_per_host, (host + 1) * ranks_per_host))
        yield from ("[[hosts]]", f'name = "host{host}"', f"ranks = {ranks}")
        if rate is not None:
            yield f"nic.bandwidth = {_quoted(rate)}"
        yield ""


def _quoted(bit_per_s: int) -> str:
    for prefix, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if bit_per_s % factor == 0:
            return f'"{bit_per_s // factor}{prefix}bit/s"'
    return f'"{bit_per_s}bit/s"'
