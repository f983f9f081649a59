"""The command line, by click's runner."""

from pathlib import Path

import click
import pytest

import ringsim
from ringsim import ScheduleError, load_network, predict_time, ring_all_reduce, simulate
from ringsim.console.one_line import message_of
from ringsim.network import read_network
from tests.ringsim.commands import as_json, invoke, printed, refused, run, written


def test_nccl_s_choice_keeps_the_order_of_the_ranks() -> None:
    """Ranks that stand in other places take longer where rings then cross between hosts all the time."""
    command = ["simulate", "--network", "dgx-a100", "--ranks", "16", "--size", "1GiB"]
    order = ",".join(str(place // 2 + place % 2 * 8) for place in range(16))
    straight, crossing = (as_json(*command, *more)["time_s"] for more in ([], ["--order", order]))
    assert crossing > 2 * straight


@pytest.mark.parametrize("algorithm", ["nccl", "nccl_ring"])
def test_all_commands_predict_the_same_time(algorithm: str, tmp_path: Path) -> None:
    """Of one collective on a network that describes NCCL, with its protocol and what that takes to begin."""
    options = ["--network", "dgx-h100", "--ranks", "8", "--algorithm", algorithm]
    simulated, explained = (as_json(command, *options, "--size", "1MiB") for command in ("simulate", "explain"))
    (cell,) = as_json("sweep", *options, "--sizes", "1MiB")["cells"]
    assert simulated["library"] == explained["library"]
    assert cell["time_s"] == pytest.approx(simulated["time_s"]) == pytest.approx(explained["time_s"])
    if algorithm == "nccl":
        assert cell["taken"] == f"{simulated['algorithm']} {simulated['library']['protocol']}"
    drawn = run("animate", *options, "--size", "1MiB", "-o", tmp_path / "page.html")
    assert drawn.stderr.startswith(f"over NCCL's protocol {simulated['library']['protocol']}, ")


def test_candidates_are_what_the_network_has() -> None:
    """NVLS needs a switch that adds, as Hopper's does; where NCCL is not described nothing of it is tried."""
    for network, missing in (
        ("gbe", {"nccl_ring", "nccl_tree", "nvls", "nccl"}),
        ("dgx-a100", {"nvls"}),
        ("dgx-h100", set()),
    ):
        options = ["--network", network]
        cells = as_json("sweep", *options, "--ranks", "8", "--sizes", "1KiB")["cells"]
        swept = {cell["algorithm"] for cell in cells}
        assert {"nccl_ring", "nccl_tree", "nvls", "nccl"} - swept == missing
        advice = as_json("explain", *options, "--ranks", "8", "--size", "1KiB", "--algorithm", "ring")["alternatives"]
        named = {entry["name"] for entry in advice}
        assert (swept - {"nccl", "ring"} - named, missing & named) == (set(), set())


@pytest.mark.parametrize("collective", ["all_to_all", "scatter"])
def test_what_goes_between_two_ranks_goes_straight_by_default(collective: str) -> None:
    """In all commands, on all networks; as NCCL's choice too, where it is described."""
    options = ("--collective", collective, "--ranks", "12")
    assert as_json("simulate", *options)["algorithm"] == "direct"
    options += ("--network", "dgx-h100-cluster")
    default, explained = (as_json(command, *options, "--size", "1MiB") for command in ("simulate", "explain"))
    assert (default["algorithm"], explained["algorithm"]) == ("direct", "direct")
    cells = as_json("sweep", *options, "--sizes", "1MiB", "--algorithm", "nccl")["cells"]
    assert [cell["time_s"] for cell in cells] == [default["time_s"]]


def test_no_message_takes_no_time(tmp_path: Path) -> None:
    """A file that does not say what links cost is refused by all that would simulate messages over them."""
    free = written(tmp_path / "free.toml", '[host]\nranks = 2\nnic = { bandwidth = "10Gbit/s", latency = "1us" }\n')
    told = refused("simulate", "--network", free, "--ranks", "4")
    assert f"{free}: messages take no time on it from rank 0 to rank 1: give host.link.bandwidth" in told
    for ask in (simulate, predict_time, ringsim.explain):
        with pytest.raises(ValueError, match="messages take no time on it from rank 0 to rank 1: give host.link.band"):
            ask(ring_all_reduce(4), load_network(str(free)), 2**20)


def test_the_last_rank_also_sends_to_the_first() -> None:
    """Only they are on one host here, on which a message takes no time."""
    host = '[[hosts]]\nname = "{}"\nranks = {}\nnic = {{ bandwidth = "10Gbit/s" }}\n'
    network = read_network("".join(host.format(*one) for one in (("a", [0, 3]), ("b", [1]), ("c", [2]))), "my.toml")
    with pytest.raises(ValueError, match="no time on it from rank 3 to rank 0: give host.link.bandwidth or"):
        predict_time(ring_all_reduce(4), network, 2**20)


def test_a_failure_is_a_result(tmp_path: Path) -> None:
    """Who waits for what, with exit code 0 and no infinity in JSON; a sweep skips it, and a picture shows it."""
    network = written(tmp_path / "failing.toml", '[host]\nranks = 1\nnic.bandwidth = "1GB/s"\n[[failure]]\nrank = 2\n')
    options, table = ["--network", network, "--ranks", "4"], tmp_path / "sweep.csv"
    result = as_json("simulate", *options)
    assert (result["time_s"], result["busbw_bytes_per_s"], result["explained"]["critical_path"]) == (None, None, None)
    assert result["stalled"]["num_unfinished"] > 0
    told = printed("sweep", "--algorithm", "ring", "--sizes", "8", "--csv", table, *options)
    assert "ring on 4 ranks skipped: never finishes on" in told
    assert "never finishes on" in table.read_text()
    run("plot", *options, "-o", tmp_path / "hangs.svg")
    picture = (tmp_path / "hangs.svg").read_text()
    assert f"never finishes: {result['stalled']['num_unfinished']} of 24 transfers hang" in picture
    assert "waits for rank 2: chunk" in picture


def test_a_style_is_chosen(tmp_path: Path) -> None:
    """light, dark, one of matplotlib's, or a file; anything else is refused before the work."""
    own = written(tmp_path / "own.mplstyle", "figure.facecolor: 010203\naxes.facecolor: 010203\ntext.color: F0F0F0\n")
    path = tmp_path / "ring.svg"
    for style, face in {"light": "#ffffff", "dark": "#14181d", "ggplot": "#ffffff", own: "#010203"}.items():
        run("plot", "--ranks", "2", "--style", style, "-o", path)
        assert f"fill: {face}" in path.read_text()
    told = "Invalid value for '--style': 'drak' is not a style: give light, dark, a file of matplotlib settings, or"
    assert told in refused("plot", "--style", "drak", "-o", tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()


def test_a_file_says_of_which_collective_it_is(tmp_path: Path) -> None:
    """--collective need not repeat it; where it contradicts the file, and in a sweep, the message says what to give."""
    path = written(tmp_path / "my.py", "from ringsim import ring_all_gather as mine\n")
    run("export", "--collective", "broadcast", "--ranks", "3", "--format", "msccl", "-o", tmp_path / "my.xml")
    mine = ("--algorithm", f"{path}:mine", "--ranks", "3")
    assert printed("verify", *mine).startswith("all_gather my.py:mine over 3 ranks: correct")
    assert printed("simulate", "--algorithm", tmp_path / "my.xml", "--ranks", 3).startswith("broadcast msccl:ring,")
    for command in (["verify", "--collective", "all_reduce", *mine], ["sweep", "--sizes", "8", *mine]):
        assert refused(*command).endswith("3: give the collective all_gather (--collective all_gather)\n")


OWN = """
from ringsim import Collective, Schedule, Transfer
def counts_twice(n):
    return Schedule.from_transfers(Collective.ALL_REDUCE, "x", n, 1, [[Transfer(0, 1, 0, True)]])
def to_itself(n):
    return Schedule.from_transfers(Collective.ALL_REDUCE, "x", n, 1, [[Transfer(0, 0, 0, True)]])
def twice(n):
    return Schedule.from_transfers(Collective.BROADCAST, "x", n, 1, [[Transfer(0, 1, 0, False)]] * 2)
"""
WRONG_ALGORITHMS = [
    ("my.py:counts_twice", 1, "all_reduce my.py:counts_twice over 2 ranks: at the start, rank 0: chunk 0 ends"),
    ("my.py:to_itself", 1, "algorithm 'my.py:to_itself': line 6: it raised ScheduleError: step 0, rank 0: chunk"),
    ("my.py:misspelt", 2, "algorithm 'my.py:misspelt': there is no function 'misspelt'"),
    ("rign", 2, "algorithm 'rign': all_reduce has ring"),
]


@pytest.fixture
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of algorithms in the present folder."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "my.py", OWN)


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize(("algorithm", "exit_code", "message"), WRONG_ALGORITHMS)
def test_a_refuted_schedule_is_no_typing_error(algorithm: str, exit_code: int, message: str) -> None:
    """Code 1 for what is proved to be wrong, 2 for what was called wrongly; whichever command finds it."""
    for command in ("verify", "simulate"):
        done = invoke(command, "--ranks", "2", "--algorithm", algorithm)
        assert (done.exit_code, done.stdout) == (exit_code, "")
        assert done.stderr.startswith(f"ringsim: {message}")


@pytest.mark.usefixtures("_own")
def test_verify_tells_of_transfers_that_bring_nothing_new() -> None:
    """In a line of its own, with the place of the first; the proof holds all the same."""
    options = ("--collective", "broadcast", "--algorithm", "my.py:twice", "--ranks", "2")
    assert printed("verify", *options) == (
        "broadcast my.py:twice over 2 ranks: correct (2 steps, 2 transfers)\n"
        "1 of 2 transfers brings nothing new: the first is step 1, 0 -> 1, chunk 0\n"
    )
    data = as_json("verify", *options)
    assert (data["num_redundant"], data["first_redundant"]) == (1, {"step": 1, "src": 0, "dst": 1, "chunk": 0})


def test_sweep_as_table_csv_picture_and_json(tmp_path: Path) -> None:
    """One run gives them all; the page of a report can be made from the CSV file alone."""
    table, picture, page = tmp_path / "sweep.csv", tmp_path / "sweep.png", tmp_path / "sweep.html"
    options = ["--algorithm", "ring,direct", "--algorithm", "torus", "--ranks", "2,4", "--sizes", "1KiB:4KiB"]
    cells = as_json("sweep", *options, "--csv", table, "-o", picture)["cells"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    run("report", table, "-o", page)
    assert "torus" in page.read_text()
    times = {(cell["algorithm"], cell["num_ranks"], cell["size_bytes"]): cell["time_s"] for cell in cells}
    assert len(times) == 3 * 2 * 2
    assert times["ring", 4, 4096] == as_json("simulate", "--ranks", "4", "--size", "4KiB")["time_s"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a\nb \x1b[1m"), "a b \\x1b[1m"),
        (FileNotFoundError(2, "No such file", "a\r\n\tb"), "a b: No such file"),
        (click.UsageError("Choose from:\n\tone,\n\ttwo"), "Choose from: one, two"),
        (ScheduleError("a fault\n0 1 2"), "a fault\n0 1 2"),
        (ValueError(f"place: {'x' * 5000}: rule"), f"place: {'x' * 493} ... {'x' * 494}: rule"),
        (ScheduleError("x" * 2000 + "\nstep  rank 0"), "x" * 500 + " ... " + "x" * 500 + "\nstep  rank 0"),
    ],
)
def test_what_is_said_stays_in_one_line(error: Exception, message: str) -> None:
    """Whatever a file or its name has in it; but for the grid that shows what is wrong with a schedule."""
    assert message_of(error) == message
