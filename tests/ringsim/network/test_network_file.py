"""Network files: what is read, and the message for everything that is wrong."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim.network import Calibration
from ringsim.network.file import NetworkFile, load_network, read_network
from ringsim.network.spec import FREE_BYTES_PER_S, SlowLink, quantities, scaled, with_free_bytes
from tests.refusals import refusal_of, said_by

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference/files.md").read_text()
HOST = "[host]\nranks = 2\n"
TWO = '[[hosts]]\nname = "a"\nranks = [0]\n[[hosts]]\nname = "b"\nranks = [1]\n'


def test_the_documented_files_are_read() -> None:
    """Each makes a topology with all its ranks, and is linked from the documentation; so does each example there."""
    files = sorted((DOCS / "networks").glob("*.toml"))
    clusters = [load_network(path) for path in files]
    assert [cluster.name for cluster in clusters] == [path.stem for path in files]
    assert not [path for path in files if f"networks/{path.name}" not in PAGE]
    for text in re.findall(r"```toml\n(.*?)```", PAGE.partition("\n## Layers\n")[0], re.DOTALL):
        clusters.append(read_network(text, "example.toml"))
    for cluster in clusters:
        of = cluster.topology(cluster.spec.max_ranks or 16)
        assert of.num_ranks
        assert of.resources.names or cluster.name != "example"


def keys(annotation: Any) -> Iterator[str]:
    """Yield the names of all keys, those of inner tables included."""
    for inner in get_args(annotation):
        yield from keys(inner)
    is_table = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    if is_table and annotation is not Calibration:  # which ringsim calibrate writes
        for field in msgspec.structs.fields(annotation):
            yield field.encode_name
            yield from keys(field.type)


def test_every_key_is_explained() -> None:
    """In code, perhaps behind the name of its table."""
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", PAGE))))
    assert set(keys(NetworkFile)) > {"host", "latency", "published", "tree_share"}
    assert set(keys(NetworkFile)) - explained == set()


def test_the_name_is_the_files_unless_it_says_so(tmp_path: Path) -> None:
    """Without its suffix; a byte order mark, with which some editors begin a file, is no mistake."""
    path = tmp_path / "my.toml"
    for text, name in ((HOST, "my"), ('name = "x"\n' + HOST, "x")):
        path.write_text(text, encoding="utf-8-sig")
        cluster = load_network(path)
        assert (cluster.name, cluster.spec.ranks_per_host) == (name, 2)


def test_a_burst_belongs_to_each_direction_of_a_link() -> None:
    """Of a host's NICs and ports, and of links by name; both directions of half duplex share one."""
    hosts = read_network(HOST + '[host.nic]\nbandwidth = "1GB/s"\nburst = 5\n[host.link]\nbandwidth = "2GB/s"\n', "my")
    cables = read_network(
        TWO + '[[links]]\nbetween = ["a", "b"]\nbandwidth = "1GB/s"\nduplex = "half"\nburst = 7\n', "my"
    )
    resources = [cluster.topology(ranks).resources for cluster, ranks in ((hosts, 4), (cables, 2))]
    bursts = [dict(zip(each.names, each.burst_bytes.tolist(), strict=True)) for each in resources]
    nics = {f"host{host}.nic0.{way}": 5.0 for host in (0, 1) for way in ("out", "in")}
    ports = {f"rank{rank}.{way}": 0.0 for rank in range(4) for way in ("out", "in")}
    assert bursts == [nics | ports, {"a<->b": 7.0}]


def test_a_slow_link_may_be_as_fast_as_the_others() -> None:
    """Templates of which only the figures change have such links; one without any figure is refused."""
    for given in ("slowdown = 1", 'latency = "0us"'):
        described = read_network(f'{HOST}[[slow_link]]\nlink = "host0.nic0.out"\n{given}\n', "my")
        assert described.spec.slow_links == (SlowLink("host0.nic0.out"),)


MISTAKES = (Path(__file__).parent / "wrong_files.txt").read_text().split("----\n")


def test_mistakes_are_named_with_file_place_value_and_rule(snapshot: SnapshotAssertion) -> None:
    """The whole message, in one line."""
    said = {text: said_by(ValueError, read_network, text, "my.toml") for text in MISTAKES}
    assert all(message.startswith("my.toml: ") and "\n" not in message for message in said.values())
    assert said == snapshot


UNFIT = (
    (HOST + "count = 8\n", 24),
    (TWO, 3),
    (HOST, 0),
    (HOST + "[[slow_rank]]\nrank = 4\nslowdown = 2\n", 4),
    (HOST + '[[slow_link]]\nlink = "host2.nic0.out"\nbandwidth = "1GB/s"\n', 4),
    (HOST + '[[slow_link]]\nlink = "host0.nic0.out"\nslowdown = 2\n', 4),
    (HOST + 'cores = 2\n[[slow_link]]\nlink = "host0.cores"\nbandwidth = "1GB/s"\n', 4),
    (HOST + '[[failure]]\nlink = "a\\nb"\n', 4),
    (HOST + "[[failure]]\nrank = 99\n", 4),
)


def test_what_does_not_fit_the_ranks_is_refused(snapshot: SnapshotAssertion) -> None:
    """When the topology is made, since only then the number of ranks is known."""
    assert {text: said_by(ValueError, read_network(text, "my.toml").topology, num) for text, num in UNFIT} == snapshot


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    """With exit code 2; also for a file that is not text."""
    path = tmp_path / "my.toml"
    path.write_text('[host]\nmemory_bandwidth = "0GB/s"\n')
    message = f'ringsim: {path}: host.memory_bandwidth = "0GB/s": a rate must be greater than 0\n'
    assert refusal_of(["networks", str(path)]) == message
    path.write_bytes(b"\xff\xfe")
    assert refusal_of(["networks", str(path)]) == f"ringsim: {path}: is not UTF-8 text: invalid start byte at byte 0\n"


def test_the_manual_shows_the_file_that_its_command_takes() -> None:
    """Of the network that fails, but for the lines that name it."""
    shown = re.findall(r"```toml\n(.*?)```", (DOCS / "simulator.md").read_text(), re.DOTALL)
    assert [(DOCS / "networks/failing.toml").read_text().endswith(f"\n\n{text}") for text in shown] == [True]


def test_quantities_are_scaled_by_their_places() -> None:
    """Whole numbers stay whole, shares are at most all, and each table of a list is scaled; no other one changes."""
    text = """
        [host]
        cores = 2
        [host.link]
        latency = "10us"
        bandwidth = "1GB/s"
        burst = 1001
        [rank]
        late_share = 0.4
        [[slow_link]]
        link = "rank0.out"
        bandwidth = "0.5GB/s"
        [[slow_link]]
        link = "rank1.out"
        bandwidth = "0.25GB/s"
    """
    spec = read_network(text, "x.toml").spec
    ratios = {"host.link.bandwidth": 2.0, "host.link.burst": 0.5, "rank.late_share": 3.0, "slow_link.bandwidth": 4.0}
    larger = scaled(spec, ratios)
    assert larger.host.link == replace(spec.host.link, bandwidth_bytes_per_s=2e9, burst_bytes=500)
    assert larger.processor == replace(spec.processor, late_share=1.0)
    assert [slow.bandwidth_bytes_per_s for slow in larger.slow_links] == [2e9, 1e9]
    assert scaled(larger, dict.fromkeys(ratios, 1.0)) == larger
    assert quantities(spec)["slow_link.bandwidth"] == 0.25e9
    free = with_free_bytes(spec)
    assert free.host.link == replace(spec.host.link, bandwidth_bytes_per_s=FREE_BYTES_PER_S, burst_bytes=0)
    assert free.processor.late_share == 0.4
    assert {slow.slowdown for slow in free.slow_links} == {1.0}
