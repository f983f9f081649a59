"""A published algorithm, read from MSCCL XML, on real ranks."""

from pathlib import Path

import pytest
import torch.distributed as dist

from collectives.runtime.transport import Transport
from ringsim import Collective
from ringsim.registry import build
from tests.collectives.runtime.test_executor import assert_conforms, executed
from tests.ranks import RankPool

PUBLISHED = Path(__file__).parents[2] / "ringsim" / "formats" / "msccl"


def imported(group: dist.ProcessGroup, collective: Collective, path: Path, length: int) -> tuple:
    """The rank's own tensor after the algorithm of the file, and what it logged."""
    return executed(group, Transport.POSTED, build(collective, str(path), group.size()), length)


@pytest.mark.parametrize(
    ("file", "collective"),
    [
        ("allpairs_4.xml", Collective.ALL_REDUCE),
        ("fused_ring_4.xml", Collective.ALL_REDUCE),
        ("hierarchical_all_gather_4.xml", Collective.ALL_GATHER),
    ],
)
@pytest.mark.parametrize("length", [3, 1001])
def test_published_algorithms_conform(ranks: RankPool, file: str, collective: Collective, length: int) -> None:
    """The bits are the replay's, the order of the transfers the simulator's."""
    results = ranks.run(imported, collective, PUBLISHED / file, length, num_ranks=4)
    assert_conforms(build(collective, str(PUBLISHED / file), 4), results, length)
