"""The command line, by click's runner."""

import json
from pathlib import Path

import click
import pytest

import ringsim
from ringsim import Collective, Network, closed_form_s, load_network, predict_time, ring_all_reduce, simulate
from ringsim.console.one_line import message_of
from ringsim.registry import ALGORITHMS
from ringsim.schedule.step import ScheduleError
from tests.ringsim.commands import as_json, invoke, printed, refused, run


def test_simulate_as_json() -> None:
    """The object holds the simulated time, the closed form, the rates and what they belong to."""
    command = "simulate --collective all_reduce --algorithm ring --ranks 8 --size 64MiB --latency 10us"
    rates = "--bandwidth 1.25GB/s --reduce-bandwidth 10GB/s"
    result = as_json(*command.split(), *rates.split())
    expected = closed_form_s(Collective.ALL_REDUCE, "ring", 8, 2**26, Network(10e-6, 1.25e9, 10e9))
    assert result["time_s"] == pytest.approx(expected)
    assert result["closed_form_s"] == expected
    assert (result["num_ranks"], result["num_transfers"], result["size_bytes"]) == (8, 112, 2**26)
    assert result["algbw_bytes_per_s"] == pytest.approx(2**26 / result["time_s"])
    assert result["busbw_bytes_per_s"] == pytest.approx(2 * 7 / 8 * 2**26 / result["time_s"])


def test_without_a_reduce_bandwidth_reducing_is_free() -> None:
    """The time is that of the messages alone, and JSON has no infinity."""
    result = as_json("simulate", "--ranks", "4", "--size", "4MB", "--latency", "0us")
    assert result["time_s"] == pytest.approx(6 * 1e6 / 1.25e9)
    assert result["network"]["reduce_bytes_per_s"] is None


def test_what_is_not_simulated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line on stderr, for a network that has it."""
    monkeypatch.chdir(Path(__file__).parents[3] / "docs" / "networks")
    told = (
        "calibrated.toml: this prediction does not include NCCL's protocols and trees ([[protocol]] and [library] in "
        "the file); ringsim simulate, explain, sweep, plot, animate, ddp --backend nccl and step --device cuda use "
        "them, and ringsim compare for logs"
    )
    for network, line in (("calibrated.toml", f"{told}\n"), ("racks.toml", "")):
        result = run("order", "--ranks", "4", "--budget", "2", "--network", network)
        assert result.stderr == line
        assert "protocol" not in result.stdout


def test_simulate_takes_what_nccl_would() -> None:
    """On a network that describes NCCL, unless an algorithm is named; it says so, and the start is part of the time."""
    command = ["simulate", "--network", "dgx-h100", "--ranks", "8", "--size", "4GiB"]
    assert run(*command).stderr == "dgx-h100: NCCL would use nvls; --algorithm names another\n"
    small = [*command[:-1], "8"]
    chosen, named = (as_json(*small, *more) for more in ([], ["--algorithm", "ring"]))
    assert (chosen["algorithm"], named["algorithm"]) == ("nccl_ring", "ring")
    for library in (chosen["library"], named["library"]):
        assert library == {"protocol": "LL", "start_s": pytest.approx(6.6e-6)}
    assert chosen["time_s"] == pytest.approx(15e-6, rel=1e-3)
    assert as_json("simulate", "--network", "gbe")["library"] is None


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
        explained = as_json("explain", *options, "--ranks", "8", "--size", "1KiB", "--algorithm", "ring")[
            "alternatives"
        ]
        assert swept - {"nccl", "ring"} == {entry["name"] for entry in explained if entry["name"] in swept}
        assert not missing & {entry["name"] for entry in explained}
    named = as_json("sweep", "--network", "gbe", "--ranks", 4, "--sizes", "4KiB", "--algorithm", "nvls")["cells"]
    assert [cell["algorithm"] for cell in named] == ["nvls"]


def test_hosts_that_are_not_full_are_said() -> None:
    """Twelve ranks take between as long as eight and twice that, and the output tells which channels NCCL has."""
    options = ["simulate", "--network", "dgx-h100-cluster", "--size", "1GiB", "--ranks"]
    full, some = (as_json(*options, num_ranks) for num_ranks in ("8", "12"))
    assert (full["notes"], full["time_s"] < some["time_s"] < 2 * full["time_s"]) == ([], True)
    assert some["notes"] == ["hosts have 4 to 8 ranks, and NCCL only the channels of 4 ranks on each"]
    second = printed(*options, "12").splitlines()[1]
    assert second.startswith(f"  timed          {some['timed']}; hosts have 4 to 8")


def test_what_is_too_large_takes_the_formula_of_its_algorithm() -> None:
    """Never another algorithm's time; where no formula knows what there is, an error says what to give instead."""
    options = ["simulate", "--network", "dgx-a100", "--size", "64MiB", "--ranks"]
    few, many = (as_json(*options, num_ranks) for num_ranks in ("2048", "2056"))
    assert [(run["algorithm"], run["timed"]) for run in (few, many)] == [
        ("nccl_tree", "by NCCL's formula, not simulated")
    ] * 2
    assert few["time_s"] == pytest.approx(many["time_s"], rel=0.01)
    told = refused(*options, "2056", "--in-order")
    assert "more than 524,288 transfers to simulate, and there is no formula" in told
    assert told.endswith("give fewer ranks, or name an --algorithm\n")
    alone = run("simulate", "--network", "dgx-h100-cluster", "--ranks", "1", "--json")
    assert (alone.stderr, json.loads(alone.stdout)["time_s"]) == ("", 0.0)


@pytest.mark.parametrize("network", [(), ("--network", "gbe"), ("--network", "dgx-h100-cluster")])
@pytest.mark.parametrize("collective", ["all_to_all", "gather", "scatter"])
def test_what_goes_between_two_ranks_goes_straight_by_default(collective: str, network: tuple[str, ...]) -> None:
    """In all commands, on all networks; as NCCL's choice too, where it is described."""
    options = ["--collective", collective, *network, "--size", "1MiB", "--ranks", "12"]
    default, named = (as_json("simulate", *options, *more) for more in ((), ("--algorithm", "direct")))
    assert (default["algorithm"], default["num_transfers"]) == ("direct", named["num_transfers"])
    if "dgx-h100-cluster" in network:
        assert as_json("explain", *options)["algorithm"] == "direct"
        sweep = as_json("sweep", "--collective", collective, *network, "--sizes", "1MiB", "--ranks", "12")
        times = {cell["algorithm"]: cell["time_s"] for cell in sweep["cells"]}
        assert times["nccl"] == default["time_s"] > 0


def test_no_message_takes_no_time(tmp_path: Path) -> None:
    """A file that does not say what links cost is refused by all that would simulate messages over them."""
    free = tmp_path / "free.toml"
    free.write_text('[host]\nranks = 2\n[host.nic]\nbandwidth = "10Gbit/s"\nlatency = "1us"\n')
    shared = "docs/networks/shared-memory.toml"
    for command in ("simulate", "explain", "sweep", "order", "plot", "animate"):
        for network in (shared, free):
            told = refused(command, "--network", network, "--ranks", "4")
            assert f"{network}: messages take no time on it from rank 0 to rank 1: give host.link.bandwidth" in told
        assert ("backend ring" in refused(command, "--network", shared, "--ranks", "4")) is True
    for ask in (simulate, predict_time, ringsim.explain):
        with pytest.raises(ValueError, match="messages take no time on it from rank 0 to rank 1: give host.link.band"):
            ask(ring_all_reduce(4), load_network(str(free)), 2**20)
    alone = as_json("simulate", "--network", free, "--ranks", "1")
    assert alone["time_s"] == 0.0


def test_a_sweep_compares_with_nccl_s_ring() -> None:
    """Over all NICs, where the network has it; and names what is not brought to NCCL's formula."""
    algorithms = "ring,nccl_ring,halving_doubling,nccl"
    options = ["sweep", "--ranks", "16", "--sizes", "64MiB", "--algorithm", algorithms, "--network"]
    text = printed(*options, "dgx-h100-cluster")
    assert "how many times as fast as nccl_ring" in " ".join(text.split())
    told = "halving_doubling: not NCCL's, and simulated without the factor"
    assert told in " ".join(text.split())
    (note,) = as_json(*options, "dgx-h100-cluster")["notes"]
    assert note.startswith(told)
    plain = ["sweep", "--ranks", "4", "--sizes", "1MiB", "--algorithm", "ring,halving_doubling", "--network", "gbe"]
    assert "as fast as the ring" in " ".join(printed(*plain).split())
    assert as_json(*plain)["notes"] == []


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_busbw_of_the_halves(collective: str) -> None:
    """With no latency a ring half uses its link all the time: busbw is the bandwidth."""
    options = ["--collective", collective, "--latency", "0us", "--bandwidth", "1GB/s", "--size", "8MB"]
    assert as_json("simulate", *options)["busbw_bytes_per_s"] == pytest.approx(1e9)


def test_one_rank_takes_no_time_and_has_no_bandwidth() -> None:
    """There is nothing to send, and nothing is divided by zero."""
    result = as_json("simulate", "--ranks", "1")
    assert (result["time_s"], result["num_transfers"], result["busbw_bytes_per_s"]) == (0.0, 0, None)


def test_the_network_that_was_assumed_is_named() -> None:
    """Its latency and its bandwidth; a network that was named is not described."""
    for command in ("simulate", "explain"):
        assert "latency 10 us, bandwidth 1.25 GB/s, each rank has one" in printed(command, "--ranks", "4")
        assert "latency 10 us" not in printed(command, "--ranks", "4", "--network", "gbe")


def test_measure_says_how_it_is_called() -> None:
    """The options of the benchmark follow its own."""
    assert printed("measure", "--help").startswith("Usage: ringsim measure [OPTIONS] [BENCHMARK OPTIONS]\n")


def test_simulate_says_where_the_time_goes() -> None:
    """The seconds of the critical path add up to the time; the link that is used most has its name."""
    result = as_json("simulate", "--network", "loopback", "--ranks", "4", "--per-rank")
    path = result["explained"]["critical_path"]
    assert sum(seconds for name, seconds in path.items() if name.endswith("_s")) == pytest.approx(result["time_s"])
    assert result["explained"]["bottleneck"]["name"] == "host0.cores"
    assert result["explained"]["bottleneck"]["utilisation"] == pytest.approx(1.0)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1, 2, 3]
    assert (result["stalled"], result["not_explained"]) == (None, None)


def test_what_is_too_large_to_explain_is_simulated_all_the_same() -> None:
    """The short form, and why; options that need more are refused in one line."""
    output = printed("simulate", "--ranks", "1025")
    assert "critical path" not in output
    assert output.splitlines()[-1].startswith("  not explained: 2,099,200 transfers: at most ")
    assert as_json("simulate", "--ranks", "1025")["explained"] is None
    for option in (["--per-rank"], ["--trace", "no.json"]):
        told = refused("simulate", "--ranks", "1025", *option)
        assert told.startswith(f"ringsim: {option[0]}: 2,099,200 transfers: at most")


def test_a_failure_is_a_result(tmp_path: Path) -> None:
    """Who waits for what, with exit code 0 and no infinity in JSON; a sweep skips it, and a picture shows it."""
    network, table = tmp_path / "failing.toml", tmp_path / "sweep.csv"
    network.write_text('[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nrank = 2\n')
    options = ["--network", str(network), "--ranks", "4"]
    output = printed("simulate", *options)
    assert "  time        never finishes\n" in output
    assert "rank2 failed at 0 ns\n" in output
    result = as_json("simulate", *options)
    assert (result["time_s"], result["busbw_bytes_per_s"], result["explained"]["critical_path"]) == (None, None, None)
    assert result["stalled"]["num_unfinished"] > 0
    sweep = ["sweep", "--algorithm", "ring", "--sizes", "8", "--csv", table]
    assert "ring on 4 ranks skipped: never finishes on" in printed(*sweep, *options)
    assert "never finishes on" in table.read_text()
    run("plot", *options, "-o", tmp_path / "hangs.svg")
    picture = (tmp_path / "hangs.svg").read_text()
    assert f"never finishes: {result['stalled']['num_unfinished']} of 24 transfers hang" in picture
    assert "waits for rank 2: chunk" in picture


def test_a_style_is_chosen(tmp_path: Path) -> None:
    """light, dark, one of matplotlib's, or a file; anything else is refused before the work, and one of no picture."""
    own = tmp_path / "own.mplstyle"
    own.write_text("figure.facecolor: 010203\naxes.facecolor: 010203\ntext.color: F0F0F0\n")
    faces = {"light": "#ffffff", "dark": "#14181d", "ggplot": "#ffffff", str(own): "#010203"}
    for number, (style, face) in enumerate(faces.items()):
        path = tmp_path / f"{number}.svg"
        run("plot", "--ranks", "2", "--style", style, "-o", path)
        assert f"fill: {face}" in path.read_text()
    told = "Invalid value for '--style': 'drak' is not a style: give light, dark, a file of matplotlib settings, or"
    assert told in refused("plot", "--style", "drak", "-o", tmp_path / "no.png")
    for command in (["sweep"], ["ddp", "--layers", "x.toml"]):
        assert "--style has no effect without --output" in refused(*command, "--style", "dark")
    assert not (tmp_path / "no.png").exists()


def test_a_file_says_of_which_collective_it_is(tmp_path: Path) -> None:
    """--collective need not repeat it; where it contradicts the file, and in a sweep, the message says what to give."""
    path = tmp_path / "my.py"
    path.write_text("from ringsim import ring_all_gather as mine\n")
    run("export", "--collective", "broadcast", "--ranks", "3", "--format", "msccl", "-o", tmp_path / "my.xml")
    mine = ("--algorithm", f"{path}:mine", "--ranks", "3")
    assert printed("verify", *mine).startswith("all_gather my.py:mine over 3 ranks: correct")
    assert printed("simulate", "--algorithm", tmp_path / "my.xml", "--ranks", 3).startswith("broadcast msccl:ring,")
    for command in (["verify", "--collective", "all_reduce", *mine], ["sweep", "--sizes", "8", *mine]):
        assert refused(*command).endswith("3: give the collective all_gather (--collective all_gather)\n")


@pytest.mark.parametrize(
    ("algorithm", "exit_code", "message"),
    [
        ("{path}:counts_twice", 1, "all_reduce my.py:counts_twice over 2 ranks: at the start, rank 0: chunk 0 ends"),
        ("{path}:to_itself", 1, "algorithm '{path}:to_itself': line 5: it raised ScheduleError: step 0, rank 0: chunk"),
        ("{path}:misspelt", 2, "algorithm '{path}:misspelt': there is no function 'misspelt'"),
        ("rign", 2, "algorithm 'rign': all_reduce has ring"),
    ],
)
def test_a_refuted_schedule_is_no_typing_error(tmp_path: Path, algorithm: str, exit_code: int, message: str) -> None:
    """Code 1 for what is proved to be wrong, 2 for what was called wrongly; whichever command finds it."""
    path = tmp_path / "my.py"
    path.write_text(
        "from ringsim import Collective, Schedule, Transfer\n"
        "def counts_twice(n):\n"
        "    return Schedule.from_transfers(Collective.ALL_REDUCE, 'x', n, 1, [[Transfer(0, 1, 0, True)]])\n"
        "def to_itself(n):\n"
        "    return Schedule.from_transfers(Collective.ALL_REDUCE, 'x', n, 1, [[Transfer(0, 0, 0, True)]])\n"
    )
    for command in ("verify", "simulate"):
        done = invoke(command, "--ranks", "2", "--algorithm", algorithm.format(path=path))
        assert (done.exit_code, done.stdout) == (exit_code, "")
        assert done.stderr.startswith(f"ringsim: {message.format(path=path)}")


def test_verify_tells_of_transfers_that_bring_nothing_new(tmp_path: Path) -> None:
    """In a line of its own, with the place of the first; the proof holds all the same."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from ringsim import Collective, Schedule, Transfer\n"
        "def twice(n):\n"
        "    steps = [[Transfer(0, 1, 0, False)], [Transfer(0, 1, 0, False)]]\n"
        "    return Schedule.from_transfers(Collective.BROADCAST, 'twice', n, 1, steps)\n"
    )
    options = ("--collective", "broadcast", "--algorithm", f"{path}:twice", "--ranks", "2")
    assert printed("verify", *options) == (
        "broadcast mine.py:twice over 2 ranks: correct (2 steps, 2 transfers)\n"
        "1 of 2 transfers brings nothing new: the first is step 1, 0 -> 1, chunk 0\n"
    )
    data = as_json("verify", *options)
    assert (data["num_redundant"], data["first_redundant"]) == (1, {"step": 1, "src": 0, "dst": 1, "chunk": 0})


def test_algorithms_are_listed_with_their_bounds() -> None:
    """A ring of four sends 6 quarters in 6 steps, the least in bytes; the bound on steps says for which it holds."""
    lines = printed("algorithms", "--ranks", "4", "--collective", "all_reduce").splitlines()
    heading = "some rank must send at least 1.5 times the size; if a rank sends to one other in a step, there must be"
    assert " ".join(lines[:2]) == f"all_reduce on 4 ranks: {heading} at least 2 steps"
    assert lines[2].split() == ["algorithm", "chunks", "steps", "transfers", "sent/size"]
    assert lines[3].split() == ["ring", "4", "6", "24", "1.500"]
    assert lines[4] == "  Ring all-reduce: reduce-scatter, then all-gather"
    assert len([line for line in printed("algorithms").splitlines() if " on 8 ranks: " in line]) == len(Collective)


def test_every_algorithm_is_told_in_words() -> None:
    """The summary of an algorithm is its docstring up to the counts of steps; each stands below its name."""
    listed = as_json("algorithms", "--ranks", "4")["algorithms"]
    words = {(one["collective"], one["algorithm"]): one["summary"] for one in listed}
    assert len(words) == len(ALGORITHMS)
    assert words["all_reduce", "direct"] == 'Every rank sends all it has to every other ("one-shot")'
    assert words["reduce", "ring"] == "Reduce along a chain that ends in rank 0"
    assert [key for key, said in words.items() if not said or "steps" in said or said.endswith((".", ":"))] == []


def test_sweep_as_table_csv_picture_and_json(tmp_path: Path) -> None:
    """One run gives them all; the page of a report can be made from the CSV file alone."""
    table, picture, page = tmp_path / "sweep.csv", tmp_path / "sweep.png", tmp_path / "sweep.html"
    options = ["--algorithm", "ring,direct", "--algorithm", "torus", "--ranks", "2,4", "--sizes", "1KiB:4KiB"]
    output = printed("sweep", *options, "--csv", table, "-o", picture)
    assert output.startswith("all_reduce, the fastest of 3 algorithms")
    assert picture.read_bytes().startswith(b"\x89PNG")
    run("report", table, "-o", page)
    assert "torus" in page.read_text()
    cells = as_json("sweep", *options)["cells"]
    assert len(cells) == 3 * 2 * 2
    [time_s] = [c["time_s"] for c in cells if (c["algorithm"], c["num_ranks"], c["size_bytes"]) == ("ring", 4, 4096)]
    assert time_s == as_json("simulate", "--ranks", "4", "--size", "4KiB")["time_s"]


def test_sweep_takes_all_algorithms_of_a_collective() -> None:
    """Unless some are named."""
    cells = as_json("sweep", "--collective", "broadcast", "--ranks", "3", "--sizes", "8")["cells"]
    assert [cell["algorithm"] for cell in cells] == ["ring", "binomial_tree", "double_binary_tree", "direct"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("simulate --ranks 0", "'--ranks': 0 is not in the range 1<=x<=131072."),
        ("simulate --size -1", "'--size': '-1': a size must not be negative"),
        ("simulate --size big", "'--size': 'big' is not a size: write bytes as 1500, 64KiB or 64MB"),
        ("simulate --bandwidth 0GB/s", "'--bandwidth': '0GB/s': a rate must be greater than 0"),
        ("simulate --latency 10", "'--latency': '10' is not a time: write it as 10us, 1.5ms or 2s"),
        ("verify --algorithm tree", "ringsim: algorithm 'tree': all_reduce has ring, gloo_ring"),
        ("sweep --ranks 1", "'--ranks': '1' is not a number of ranks: write a whole number from 2 to"),
        ("sweep --sizes 4:2", "'--sizes': '4:2' is not a range: write it as"),
        ("sweep --algorithm ring,tree", "ringsim: algorithm 'tree': all_reduce has ring, gloo_ring"),
        ("plot --ranks 3 -o /proc/no/such.png", "'-o' / '--output': /proc/no/such.png: there is no directory /proc/no"),
        ("sweep --csv /no/such.csv", "'--csv': /no/such.csv: there is no directory /no"),
        ("sweep -o sweep.txt", "'-o' / '--output': sweep.txt: must end in .png, .pdf, .svg"),
        ("ddp --ranks 2,2000", "'--ranks': '2,2000' is more than one number of ranks, which other options accept: "),
        ("simulate --size 1MiB:1GiB", "'--size': '1MiB:1GiB' is more than one size, which ringsim"),
        ("sweep --max-transfers nan", "'--max-transfers': 'nan' is not a number"),
        ("simulate --algorithm ring/y", "ringsim: algorithm 'ring/y': after the slash must come a number of segments"),
        ("verify --algorithm hierarchical@y", "ringsim: algorithm 'hierarchical@y': after the @ must come the number"),
        ("simulate --ranks 2 --order y,0", "'--order': 'y,0' is not an order"),
        ("compare m.json --network gbe --fail-above y%", "'--fail-above': 'y%' is"),
        ("sweep --ranks 2:8:xy", "'--ranks': 'xy' is not a factor"),
        ("ddp --layers l.toml --bucket-cap-mb y", "'--bucket-cap-mb': 'y' is not a cap"),
        ("simulat", "ringsim: No such command 'simulat'."),
        (
            "export -o all.txt",
            "ringsim export: --output all.txt: give --format, or a file that ends with .goal or .xml",
        ),
    ],
)
def test_a_mistake_gets_one_line(arguments: str, message: str) -> None:
    """Exit code 2, and one line that names the value and the rule."""
    program, _, told = refused(*arguments.split()).partition(": ")
    assert program in ("ringsim", f"ringsim {arguments.partition(' ')[0]}")
    assert f"{program}: {told}".startswith(message) or told.startswith(f"Invalid value for {message}")


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
