"""The text output of each command, and its one-line refusal of a mistake, compared with snapshots.

`pytest --snapshot-update` writes the snapshots anew; a change of them is to be read as the change of a text.
"""

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.processes import ROOT
from tests.ringsim.commands import refused, run

COMMANDS = (
    "simulate --ranks 8 --size 64MiB --reduce-bandwidth 10GB/s",
    "simulate --network gbe --ranks 1",
    "simulate --network loopback --ranks 4 --per-rank",
    "simulate --ranks 1025",
    "simulate --network docs/networks/failing.toml --ranks 8 --in-order",
    "simulate --network dgx-h100 --ranks 8 --size 4GiB",
    "simulate --network dgx-h100 --ranks 8 --size 8 --algorithm ring",
    "simulate --network dgx-h100-cluster --ranks 12 --size 1GiB",
    "simulate --network dgx-a100 --ranks 2056 --size 64MiB",
    "explain --ranks 4 --size 1MiB",
    "explain --ranks 16 --size 64KiB --algorithm ring --wide",
    "explain --ranks 4 --order 0,2,1,3 --size 1KiB --algorithm halving_doubling",
    "explain --ranks 1",
    "explain --network docs/networks/failing.toml --ranks 8 --algorithm recursive_doubling",
    "explain --network docs/networks/slow-nic.toml --ranks 16 --size 64MiB",
    "algorithms --ranks 4 --collective all_reduce",
    "algorithms --ranks 1024 --collective reduce_scatter",
    "algorithms --network docs/networks/ring-of-six.toml --ranks 6 --collective all_reduce",
    "algorithms --network docs/networks/slow-nic.toml --ranks 16 --collective reduce",
    "algorithms --network docs/networks/slow-nic.toml --ranks 16 --collective broadcast",
    "networks",
    "networks dgx-h100-cluster",
    "order --network docs/networks/interleaved.toml --ranks 16 --size 1MiB --budget 4",
    "order --network docs/networks/calibrated.toml --ranks 4 --budget 2",
    "order --network docs/networks/slow-link.toml --ranks 4 --size 64MiB --budget 3",
    "order --network docs/networks/trouble.toml --ranks 8 --budget 3",
    "sweep --ranks 2:32 --sizes 1KiB:1MiB --network gbe --algorithm ring,direct,recursive_doubling,hierarchical",
    "sweep --ranks 100000 --algorithm ring,direct --sizes 1KiB",
    "sweep --ranks 16 --sizes 64MiB --algorithm ring,nccl_ring,halving_doubling,nccl --network dgx-h100-cluster",
    "sweep --ranks 2 --sizes 1KiB --algorithm ring,nccl",
    "sweep --ranks 8,16 --sizes 8,64MiB --algorithm direct,halving_doubling",
    "ddp --layers docs/models/transformer.toml --bucket-cap-mb 8:32 --ranks 4 --scaling 2:4",
    "ddp --layers docs/models/transformer.toml --ranks 16 --network dgx-h100-cluster",
    "ddp --layers docs/models/transformer.toml --ranks 16 --network ib-100g --backend nccl",
    "verify --ranks 1",
    "verify --ranks 4 --order 3,1,2,0",
)


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in commands are those of this repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("command", COMMANDS)
def test_output(command: str, snapshot: SnapshotAssertion) -> None:
    """Notes on stderr and the result on stdout; no table is wider than a terminal."""
    result = run(*command.split())
    if "--wide" not in command and not command.startswith("ddp"):  # a step's facts may be longer
        assert max(map(len, result.stdout.splitlines())) <= 80
    assert f"{result.stderr}{result.stdout}" == snapshot


MISTAKES = (
    "simulat",
    "simulate --ranks 0",
    "simulate --size -1",
    "simulate --size big",
    "simulate --size 1MiB:1GiB",
    "simulate --bandwidth 0GB/s",
    "simulate --latency 10",
    "simulate --algorithm ring/y",
    "simulate --collective all_reduse",
    "simulate --ranks 2 --order y,0",
    "simulate --ranks 1025 --per-rank",
    "simulate --ranks 1025 --trace no.json",
    "simulate --json --trace -",
    "simulate --network dgx-a100 --size 64MiB --ranks 2056 --in-order",
    "simulate --network docs/networks/shared-memory.toml --ranks 4",
    "explain --network docs/networks/shared-memory.toml --ranks 4",
    "verify --algorithm tree",
    "verify --algorithm hierarchical@y",
    "verify --ranks 3 --order 0,1,1",
    "algorithms --size 1MiB",
    "networks --toml",
    "networks gbe --toml --json",
    "sweep --ranks 1",
    "sweep --ranks 2:8:xy",
    "sweep --sizes 4:2",
    "sweep --algorithm ring,tree",
    "sweep --algorithm nccl --ranks 2,4 --sizes 1KiB",
    "sweep --network docs/networks/shared-memory.toml --ranks 4",
    "sweep --max-transfers nan",
    "sweep --csv /no/such.csv",
    "sweep -o sweep.txt",
    "sweep --style dark",
    "sweep --jobs 2 --dask tcp://a:1",
    "sweep --jobs 0",
    "order --network docs/networks/shared-memory.toml --ranks 4",
    "plot --ranks 3 -o /proc/no/such.png",
    "plot -o -",
    "plot --network docs/networks/shared-memory.toml --ranks 4",
    "animate --compare ring",
    "animate --compare ring,tree",
    "animate --compare ring,direct --algorithm ring",
    "animate --measured m.json --ranks 4",
    "animate --measured m.json --compare a,b",
    "animate --measured no.json",
    "animate --ranks 128",
    "animate -o ring.gif",
    "animate --network docs/networks/shared-memory.toml --ranks 4",
    "export -o all.txt",
    "compare m.json --network gbe --fail-above y%",
    "ddp",
    "ddp --layers no.toml",
    "ddp --layers l.toml --bucket-cap-mb y",
    "ddp --layers l.toml --bucket-cap-mb 1e308",
    "ddp --layers l.toml --bucket-cap-mb 0",
    "ddp --layers l.toml --style dark",
    "ddp --layers l.toml --scaling 2:4 -o step.json",
    "ddp --layers docs/models/transformer.toml --algorithm rings",
    "ddp --layers docs/models/transformer.toml --ranks 2,2000",
    "synthesize --network docs/networks/ring-of-six.toml --ranks 7",
    "synthesize --network docs/networks/ring-of-six.toml --ranks 6 --chunks-per-rank 4096",
    "synthesize --network docs/networks/shared-memory.toml --ranks 2",
    "synthesize --network docs/networks/failing.toml --ranks 8",
    "synthesize --ranks 1",
    "synthesize --seconds 0",
    "synthesize --seconds soon",
    "synthesize --size 0",
    "synthesize --collective all_to_all",
)


def test_mistakes(snapshot: SnapshotAssertion) -> None:
    """Exit code 2 before any work, nothing on stdout, and one line that names the value and the rule."""
    assert "".join(f"$ ringsim {command}\n{refused(*command.split())}" for command in MISTAKES) == snapshot
