"""The networks that come with the package."""

from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.network.file import load_network, preset_names
from tests.ringsim.commands import as_json, printed

LABELS = ("vendor figure", "NCCL's own model", "measured")


@pytest.mark.parametrize("name", preset_names())
def test_presets_make_topologies_and_say_where_their_numbers_come_from(name: str) -> None:
    """Every pair has a path of a finite rate; a label of three, a reference, and what is left out."""
    preset = load_network(name)
    for num_ranks in (1, 2, 8, min(preset.spec.max_ranks or 16, 16)):
        of = preset.topology(num_ranks)
        src, dst = np.divmod(np.arange(num_ranks**2), num_ranks)
        paths = of.paths(src[src != dst], dst[src != dst])
        assert np.isfinite(paths.alone_bytes_per_s(of.resources)).all()
    assert preset.name == name
    assert preset.source.startswith(LABELS)
    assert preset.description
    assert "Left out:" in (Path(__file__).parents[3] / preset.file).read_text()


@pytest.mark.parametrize(
    ("name", "within", "across"),
    [("dgx-a100", 12 * 20e9, 200_000 / 8000 * 1e9), ("dgx-h100-cluster", 18 * 20.6e9, 400_000 / 8000 * 1e9)],
)
def test_nccls_figures(name: str, within: float, across: float) -> None:
    """Links times rate of a link, and a hop of protocol Simple."""
    of = load_network(name).topology(16)
    paths = of.paths(np.array([0, 7]), np.array([1, 8]))
    assert paths.latency_s == pytest.approx([3.4e-6, 14e-6])
    assert paths.alone_bytes_per_s(of.resources) == pytest.approx([within, across])


def test_two_cores_of_the_loopback_move_4_gigabytes_a_second() -> None:
    """Core-seconds of a byte at both ends, and of adding every second one, as in a ring all_reduce."""
    of = load_network("loopback").topology(4)
    use = of.paths(np.array([0]), np.array([1])).use_per_byte[0, 0]
    core_s_per_byte = use + 0.5 / of.processors.reduce_bytes_per_s[0]
    assert of.resources.capacity[0] / core_s_per_byte == pytest.approx(4.0e9)


def test_networks_lists_the_presets() -> None:
    """Each with its name and what it is, and if there is room for it its source."""
    assert max(map(len, printed("networks").splitlines())) <= 80
    output = printed("networks", "--wide")
    for name in preset_names():
        assert name in output
        assert load_network(name).source in output
    listed = {row["name"]: row for row in as_json("networks")["networks"]}
    assert [*listed] == preset_names()
    assert listed["dgx-h100"]["max_ranks"] == 8
    found = as_json("networks", "loopback", "--ranks", "3")
    assert found["resources"] == [{"name": "host0.cores", "capacity": 2.0, "burst_bytes": 0, "fails_at_s": None}]
    assert found["paths"][0]["uses_per_byte"] == {"host0.cores": pytest.approx(2 / 4.5e9)}


SHOWN = (
    "networks dgx-a100 --ranks 16",  # resources that are alike share a line; paths within a host and across
    "networks gbe-racks --ranks 41",  # from rack to rack a message uses the uplinks
)


@pytest.mark.parametrize("command", SHOWN)
def test_networks_shows_what_is_in_one(command: str, snapshot: SnapshotAssertion) -> None:
    """Resources, and one path of each kind."""
    assert printed(*command.split()) == snapshot
