"""Network files: what is read, and the message for everything that is wrong."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringsim import load_network
from ringsim.files import Table
from ringsim.network.file_format import NETWORK, quantities, scaled, value_of
from ringsim.network.file_reader import read_network
from ringsim.network.spec import FREE_BYTES_PER_S, with_free_bytes
from tests.refusals import refusal_of, refused

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference/files.md").read_text()
HOST = "[host]\nranks = 2\n"
TWO = '[[hosts]]\nname = "a"\nranks = [0]\n[[hosts]]\nname = "b"\nranks = [1]\n'


@pytest.mark.parametrize("path", sorted((DOCS / "networks").glob("*.toml")), ids=lambda path: path.stem)
def test_the_documented_files_are_read(path: Path) -> None:
    """Each makes a topology with all its ranks, and is linked from the documentation."""
    cluster = load_network(path)
    assert cluster.name == path.stem
    assert cluster.topology(cluster.spec.max_ranks or 16).num_ranks
    assert f"networks/{path.name}" in PAGE


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE.partition("\n## Layers\n")[0], re.DOTALL))
def test_the_examples_in_the_text_are_read(text: str) -> None:
    """Each example on the page is a network file by itself."""
    cluster = read_network(text, "example.toml")
    assert cluster.topology(cluster.spec.max_ranks or 16).resources.names


def keys(table: Table) -> Iterator[str]:
    """Yield the names of all keys, those of inner tables included."""
    for name, key in table.keys.items():
        yield name
        if isinstance(key.holds, Table):
            yield from keys(key.holds)


def test_every_key_is_explained() -> None:
    """In code, perhaps behind the name of its table."""
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", PAGE))))
    assert set(keys(NETWORK)) > {"host", "latency", "published", "tree_share"}
    assert set(keys(NETWORK)) - explained == set()


def test_the_name_is_the_files_unless_it_says_so() -> None:
    """Without its suffix."""
    assert read_network(HOST, "some/my.toml").name == "my"
    assert read_network('name = "x"\n' + HOST, "some/my.toml").name == "x"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Some editors begin a file with one."""
    path = tmp_path / "marked.toml"
    path.write_text(HOST, encoding="utf-8-sig")
    assert load_network(path).spec.ranks_per_host == 2


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


MISTAKES = [
    ("[host\n", "is not TOML: Expected ']' at the end of a table declaration (at line 1, column 6)"),
    ("", "neither [host] nor [[hosts]]: describe the hosts"),
    ("host = 3\n", "host = 3: must be a table of keys and values"),
    ("[[host]]\n", "host = [{}]: must be a table of keys and values"),
    (HOST + "[slow_link]\n", "slow_link = {}: must be a list of tables, [[slow_link]]"),
    (
        HOST + '[host.nic]\nbandwith = "1GB/s"\n',
        "host.nic.bandwith: unknown key; did you mean bandwidth? known here are count, latency, bandwidth, duplex, "
        "burst",
    ),
    (
        HOST + "[zebra]\n",
        "zebra: unknown key; known here are name, description, source, host, hosts, links, switch, rank, "
        "slow_rank, slow_link, jitter, failure, protocol, library, calibration",
    ),
    (HOST + '[host.nic]\nbandwidth = "-3GB/s"\n', 'host.nic.bandwidth = "-3GB/s": a rate must be greater than 0'),
    (
        HOST + "[host.nic]\nbandwidth = inf\n",
        'host.nic.bandwidth = Infinity: must be text with a unit, such as "1.25GB/s" or "10Gbit/s"',
    ),
    (HOST + '[host.nic]\nlatency = "-1us"\n', 'host.nic.latency = "-1us": a time must not be negative'),
    (HOST + '[host.nic]\nduplex = "both"\n', 'host.nic.duplex = "both": must be "full" or "half"'),
    (
        HOST + "[host.nic]\nburst = 131072\n",
        "host.nic.burst = 131072: give host.nic.bandwidth as well, without which there is no limit to exceed",
    ),
    (
        TWO + '[[links]]\nbetween = ["a", "b"]\nburst = 5\n',
        "links[0].burst = 5: give links[0].bandwidth as well, without which there is no limit to exceed",
    ),
    ("[host]\nranks = 0\n", "host.ranks = 0: must be a whole number from 1 to 1048576"),
    ("[rank]\nlate_share = 1.5\n", "rank.late_share = 1.5: must be a finite number, at least 0 and at most 1"),
    ("[host]\ncopies = nan\n", "host.copies = NaN: must be a finite number, at least 1e-09"),
    ("[host]\ncount = 2\n", "host.count = 2: also give host.ranks, the ranks of each host"),
    (TWO + "[host]\nranks = 2\n", "host.ranks = 2: must be left out, since [[hosts]] contains it"),
    ("[[hosts]]\nranks = [0]\n", "hosts[0]: name is missing"),
    (
        '[[hosts]]\nname = "a.b"\nranks = [0]\n',
        'hosts[0].name = "a.b": a name must be text of letters, digits, _ and - only',
    ),
    ('[[hosts]]\nname = "a"\nranks = []\n', "hosts[0].ranks = []: a host must have ranks"),
    ('[[hosts]]\nname = "a"\nranks = 2\n', "hosts[0].ranks = 2: must be a list of ranks, such as [0, 1]"),
    ('[[hosts]]\nname = "a"\nranks = [0, 0]\n', "hosts[0].ranks = [0, 0]: no rank may be listed twice"),
    (TWO + '[[hosts]]\nname = "c"\nranks = [2, 1]\n', "hosts[2].ranks = [2, 1]: rank 1 is on b already"),
    (
        TWO + '[[hosts]]\nname = "c"\nranks = [3]\n',
        "hosts: rank 2 is on none; the ranks of all hosts must be 0, 1, 2 and so on",
    ),
    (TWO + '[[hosts]]\nname = "a"\nranks = [2]\n', 'hosts[2].name = "a": hosts[0] has that name already'),
    (HOST + '[[links]]\nbetween = ["a", "b"]\n', "links: need [[hosts]], so that they can name them"),
    (
        TWO + '[[links]]\nbetween = ["a", "a"]\n',
        'links[0].between = ["a", "a"]: must be two different names, such as ["a", "switch1"]',
    ),
    (
        TWO + '[[links]]\nbetween = ["a", "b"]\n[[links]]\nbetween = ["b", "a"]\n',
        'links[1].between = ["b", "a"]: there is a link between them already',
    ),
    (
        TWO + '[switch]\n[[links]]\nbetween = ["a", "b"]\n',
        "switch: must be left out, since [[links]] describes how the hosts are connected",
    ),
    (
        TWO + '[[links]]\nbetween = ["a", "x"]\n[[links]]\nbetween = ["b", "y"]\n',
        "links: there is no path from a (rank 0) to b (rank 1)",
    ),
    (HOST + '[switch]\nuplink = "1GB/s"\n', "switch.uplink: also give switch.hosts, the hosts of each leaf switch"),
    (
        HOST + '[switch]\nhosts = 2\nuplink = "1GB/s"\noversubscription = 2\n',
        "switch.oversubscription: give this or switch.uplink, not both",
    ),
    (HOST + "[switch]\nhosts = 2\noversubscription = 2\n", "switch.oversubscription: needs a bandwidth of every NIC"),
    (HOST + "[[slow_rank]]\nrank = 1\n", "slow_rank[0]: slowdown is missing"),
    (HOST + "[[slow_rank]]\nrank = -1\nslowdown = 2\n", "slow_rank[0].rank = -1: must be a whole number, at least 0"),
    (
        HOST + "[[slow_rank]]\nrank = 1\nslowdown = 0.5\n",
        "slow_rank[0].slowdown = 0.5: must be a finite number, at least 1",
    ),
    (
        HOST + '[[slow_link]]\nlink = "host0.nic0.out"\n',
        'slow_link[0].link = "host0.nic0.out": give its bandwidth, slowdown or latency',
    ),
    (HOST + "[jitter]\nlatency = -0.1\n", "jitter.latency = -0.1: must be a finite number, at least 0"),
    (
        '"a\\nb" = 1\n[host.nic]\n',
        '"a\\nb": unknown key; known here are name, description, source, host, hosts, links, switch, rank, '
        "slow_rank, slow_link, jitter, failure, protocol, library, calibration",
    ),
    (HOST + '[[library.ring_step]]\nmessage = 8\ntime = "0us"\n', "library.ring_step[0].time: must be greater than 0"),
    (
        HOST + 2 * '[[library.ring_step]]\nmessage = 8\ntime = "1us"\n',
        "library.ring_step[1].message = 8: another ring step has this message size already",
    ),
    ("[host.nic]\ncount = 2000000\n", "host.nic.count = 2000000: must be a whole number from 0 to 1048576"),
    (
        HOST + "[calibration]\nnoise = 1e9\n",
        "calibration.noise = 1000000000.0: must be a finite number, at least 0 and at most 100",
    ),
    (
        HOST + '[calibration]\nparameters = ["a", "a"]\ndraws = [[1.0, 2.0]]\n',
        "calibration: parameters: one of them is listed twice: name each once",
    ),
    (HOST + '[[failure]]\nat = "1s"\n', "failure[0]: give either link or rank"),
    (HOST + '[[failure]]\nlink = "x"\nrank = 1\n', "failure[0]: give either link or rank"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes_are_named_with_file_place_value_and_rule(text: str, message: str) -> None:
    """The whole message."""
    with refused(f"my.toml: {message}"):
        read_network(text, "my.toml")


UNFIT = [
    (HOST + "count = 8\n", 24, "its hosts have 16 ranks: 24 were asked for"),
    (TWO, 3, "its hosts have 2 ranks: 3 were asked for"),
    (HOST, 0, "num_ranks 0: must be at least 1"),
    (HOST + "[[slow_rank]]\nrank = 4\nslowdown = 2\n", 4, "slow_rank[0].rank = 4: there are only ranks 0 to 3"),
    (
        HOST + '[[slow_link]]\nlink = "host2.nic0.out"\nbandwidth = "1GB/s"\n',
        4,
        'slow_link[0].link = "host2.nic0.out": there is none on this many ranks; '
        "near: host1.nic0.out, host0.nic0.out, host1.nic0.in",
    ),
    (
        HOST + '[[slow_link]]\nlink = "host0.nic0.out"\nslowdown = 2\n',
        4,
        'slow_link[0].slowdown = 2: "host0.nic0.out" has no limit: give a bandwidth',
    ),
    (
        HOST + 'cores = 2\n[[slow_link]]\nlink = "host0.cores"\nbandwidth = "1GB/s"\n',
        4,
        'slow_link[0].bandwidth: "host0.cores" are cores: give a slowdown',
    ),
    (HOST + '[[failure]]\nlink = "a\\nb"\n', 4, 'failure[0].link = "a\\nb": there is none on this many ranks...'),
    (HOST + "[[failure]]\nrank = 99\n", 4, "failure[0].rank = 99: there are only ranks 0 to 3"),
]


@pytest.mark.parametrize(("text", "num_ranks", "message"), UNFIT, ids=[message[:30] for _, _, message in UNFIT])
def test_what_does_not_fit_the_ranks_is_refused(text: str, num_ranks: int, message: str) -> None:
    """When the topology is made, since only then the number of ranks is known."""
    cluster = read_network(text, "my.toml")
    with refused(f"my.toml: {message}"):
        cluster.topology(num_ranks)


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
    assert quantities(spec)["slow_link.bandwidth"] == value_of(spec, "slow_link.bandwidth") == 0.25e9
    free = with_free_bytes(spec)
    assert free.host.link == replace(spec.host.link, bandwidth_bytes_per_s=FREE_BYTES_PER_S, burst_bytes=0)
    assert free.processor.late_share == 0.4
    assert {slow.slowdown for slow in free.slow_links} == {1.0}
