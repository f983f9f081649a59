"""The testbed as data: names, rates, commands, and the network file."""

import inspect
import logging
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from netns_testbed import testbed
from netns_testbed.description import network_text
from netns_testbed.plan import TORCHRUN, burst_bytes, owner, parse_tc_rate, plan, queue_bytes
from netns_testbed.testbed import Testbed
from netns_testbed.torchrun import AGENT, EXIT_BARRIER, is_shown
from ringsim.network.file import read_network
from tests.refusals import said_by
from tests.ringsim.topologies import capacities

RATES = {  # tc's bps are bytes
    "1gbit": 10**9, "250Mbit": 250 * 10**6, "2.5gbit": 2_500_000_000, "1mibit": 2**20, "125mbps": 10**9,
    "64000": 64_000,
}  # fmt: skip


def test_rates_are_read_as_tc_reads_them() -> None:
    """In any case of letters; 1000s and 1024s; bits, and bytes as bps."""
    assert {text: parse_tc_rate(text) for text in RATES} == RATES


NO_RATES = ("", "1g", "-1gbit", "1gbit/s", "1e3mbit", "1 2mbit", "gbit", "0", "1kbit", "101gbit", "9" * 18 + "tbit")


def test_what_is_no_rate_is_refused(snapshot: SnapshotAssertion) -> None:
    """The counters of tbf overflow at a few kbit/s; no core copies 100 Gbit/s."""
    assert [said_by(ValueError, parse_tc_rate, text) for text in NO_RATES] == snapshot


def test_the_burst_has_room_for_two_packets_and_a_late_timer() -> None:
    """Below two of the largest segments a single stream does not reach the rate."""
    assert burst_bytes(64_000) == burst_bytes(10**9) == 128 * 1024
    assert burst_bytes(10**10) == 1_250_000
    assert (queue_bytes(10**6), queue_bytes(10**9)) == (2**20, 6_250_000)


def test_the_commands_of_a_testbed(snapshot: SnapshotAssertion) -> None:
    """Interfaces are made in namespaces, rates are set at both ends of a link, and torchruns differ in the host."""
    made, names = plan("ringsim-7-0", 2, None, {1: "1gbit"}), {sys.executable: "PYTHON", str(TORCHRUN): "TORCHRUN"}
    runs = [[names.get(word, word) for word in run] for run in made.run(["my script.py", "--steps", "5"], 3)]
    assert [" ".join(command.arguments) for command in made.make()] + runs == snapshot


def test_congestion_control_where_cubic_is_not_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reno, which Linux allows everywhere; a machine whose default is another one allows CUBIC to none but itself."""
    chosen = []
    for number, allowed in enumerate(("reno cubic\n", "reno bbr\n", None)):
        file = tmp_path / str(number)
        if allowed is not None:
            file.write_text(allowed)
        monkeypatch.setattr(testbed, "ALLOWED", file)
        chosen.append(Testbed(1).plan.congestion_control)
    assert chosen == ["cubic", "reno", "reno"]


def test_torchrun_is_silent_about_its_exit_barrier_only() -> None:
    """By the words that the installed torch logs, to the logger that it logs them to."""
    from torch.distributed.elastic.agent.server import api

    assert api.logger.name == AGENT
    assert f'"{EXIT_BARRIER}' in inspect.getsource(api.SimpleElasticAgent._exit_barrier)  # type: ignore[attr-defined]
    shown = [
        is_shown(logging.LogRecord(AGENT, logging.ERROR, "api.py", 1, message, (0.1,), None))
        for message in (f"{EXIT_BARRIER}. Elapsed: %s seconds", "failed (exitcode: %s)")
    ]
    assert shown == [False, True]


def test_names_carry_the_process_that_made_them() -> None:
    """Namespaces with other names are not ours."""
    made = plan("ringsim-4711-2", 12)
    assert owner(made.switch) == owner(made.namespace(11)) == 4711
    assert [owner(name) for name in ("ringsim-4711", "ringsim-4711-2-host", "xringsim-1-2-host3", "blue")] == [None] * 4


def carried(text: str, num_ranks: int) -> dict[str, float]:
    """Return the capacities of the network that the text describes, by resource."""
    return capacities(read_network(text, "testbed.toml").topology(num_ranks))


@pytest.mark.parametrize(
    ("rate", "host_rates", "links"),
    [
        ("250mbit", {}, {0: 31.25e6, 1: 31.25e6, 2: 31.25e6}),
        (None, {0: "1gbit", 2: "64001"}, {0: 1.25e8, 2: 8000.125}),
        (None, {}, {}),
    ],
)
def test_the_network_file(rate: str | None, host_rates: dict[int, str], links: dict[int, float]) -> None:
    """Each host has one link for all its ranks, with its own rate; one without is not limited."""
    text = network_text(plan("ringsim-7-0", 3, rate, host_rates), 2)
    assert read_network(text, "testbed.toml").spec.max_ranks == 6
    assert carried(text, 6) == {f"host{host}.nic0.{way}": r for host, r in links.items() for way in ("out", "in")}
