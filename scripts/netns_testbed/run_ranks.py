"""`run_ranks`: ranks on hosts of a testbed, or all on this machine where there is to be only one host."""

from collections.abc import Mapping, Sequence

from netns_testbed.testbed import Testbed
from ringsim.console import ended_once, run_local_ranks

RATE = "1gbit"


def run_ranks(hosts: int, ranks_per_host: int, arguments: Sequence[str], slow: Mapping[int, str] | None = None) -> None:
    """Run torchrun with these arguments there, to its end; what ends us ends its ranks and takes the hosts down.

    slow: hosts with another rate than RATE. Raises OSError if it fails.
    """
    if hosts == 1:
        run_local_ranks(ranks_per_host, arguments)
        return
    with ended_once(), Testbed(hosts, RATE, slow or {}) as bed:
        code = bed.run(list(arguments), ranks_per_host).exit_code
    if code:
        raise OSError(f"what ran on {hosts} hosts ended with exit code {code}; what it said is above")
