"""Whether the logs of a network tell how fast so many ranks of a host send together, or it is a guess.

Each rank has a NIC to itself, unless the logs say otherwise. The logs of one number of ranks for each host do not: the
NICs that these ranks used together may as well be all that a host has, whether more ranks send or fewer.
"""

import math
from collections.abc import Iterable

from ringsim.calibration.questions import RING_TESTS, Question, QuestionColumns
from ringsim.network import Calibration, Cluster
from ringsim.units import format_rate, plural


def senders_per_host(questions: Iterable[Question]) -> set[int]:
    """Return how many ranks of a host send to others at once, of those questions that are about several hosts."""
    across = [question for question in questions if question.num_nodes > 1]
    return {math.ceil(senders) for senders in QuestionColumns.from_questions(across).senders} if across else set()


def guessed_from(cluster: Cluster, num_senders: int) -> int | None:
    """Return how many ranks of a host sent in the logs from which the rate of `num_senders` of them is a guess.

    None where it is no guess: the NICs were given, the logs have as many senders, or collectives with several numbers
    of them, of which none is less, show how many NICs there are.
    """
    calibration = cluster.calibration
    if calibration is None or calibration.senders_per_host is None or cluster.spec.host.nics.count:
        return None
    seen = _seen(calibration) | {calibration.senders_per_host}
    if num_senders in seen:
        return None
    if num_senders > max(seen):
        return max(seen)
    several = len(_seen(calibration, RING_TESTS)) > 1  # what the fit takes for several, see `assumptions`
    return None if several else min(senders for senders in seen if senders > num_senders)


def _seen(calibration: Calibration, tests: tuple[str, ...] = ()) -> set[int]:
    """Return the numbers of senders in the logs; of these collectives alone, if some are given."""
    return senders_per_host(
        Question(cells.collective, 1, cells.num_ranks, cells.num_hosts)
        for cells in calibration.cells
        if not tests or cells.collective in tests
    )


def nic_line(cluster: Cluster, num_senders: int) -> str:
    """Return one line if it is a guess how fast so many ranks of a host send; "" if not."""
    known = guessed_from(cluster, num_senders)
    if known is None:
        return ""
    rate = format_rate(cluster.spec.host.nics.bandwidth_bytes_per_s)
    num_nics = max(known, num_senders, cluster.spec.ranks_per_host or 1)
    return (
        f"the logs of {cluster.name} send from {plural(known, 'rank')} of a host at a time; how fast "
        f"{plural(num_senders, 'rank')} of a host can send is not known, and {rate} each is a guess: calibrate with a "
        f"log of {plural(num_senders, 'rank')} on each of several hosts, or give calibrate --nic, such as "
        f"{num_nics}x400Gbit/s"
    )
