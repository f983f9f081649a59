"""Too large requests are refused before they begin, by estimates; free memory is made small here."""

from functools import partial

import pytest
from click.testing import CliRunner

from ringsim import Collective, Network, Schedule, predict_time, split
from ringsim.cli import main
from ringsim.registry.algorithms import ALGORITHMS, build
from ringsim.schedule import memory, verify
from ringsim.schedule.memory import SMALL_BYTES, estimated_transfers, format_count, require_memory
from tests.refusals import refusal_of

LITTLE = 2**20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MiB of free memory."""
    monkeypatch.setattr(memory, "free_bytes", lambda: LITTLE)


@pytest.mark.usefixtures("little")
def test_the_message_says_what_it_takes_what_there_is_and_what_to_do() -> None:
    """And what fits goes through."""
    require_memory("it", LITTLE)
    message = r"^it: would take 2 MiB of memory; 1 MiB is free: use fewer ranks$"
    with pytest.raises(ValueError, match=message):
        require_memory("it", 2 * LITTLE)


def test_the_system_is_asked_for_more_than_little_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking takes longer than most of what needs little."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    require_memory("it", SMALL_BYTES)
    with pytest.raises(ValueError, match="0 B is free"):
        require_memory("it", SMALL_BYTES + 1)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("collective", "algorithm", "num_ranks", "message"),
    [
        ("all_reduce", "direct", 128, "all 16,256 pairs of 128 ranks: would take 1.798 MiB"),
        ("all_gather", "direct", 128, "all 16,256 pairs of 128 ranks"),
        ("all_reduce", "halving_doubling", 128, "halving_doubling of 128 ranks in 128 chunks"),
        ("reduce_scatter", "halving_doubling", 255, "halving_doubling of 255 ranks in 255 chunks"),
        ("all_gather", "recursive_doubling", 512 - 1, "the other chunks of 255 folded ranks"),
    ],
)
def test_listed_algorithms_are_refused(collective: str, algorithm: str, num_ranks: int, message: str) -> None:
    """Before their columns are made."""
    with pytest.raises(ValueError, match=message):
        build(Collective(collective), algorithm, num_ranks)


@pytest.mark.usefixtures("little")
def test_tables_and_steps_of_a_users_own_schedule_are_refused() -> None:
    """Whoever lists steps: by the table of ranks and chunks, and by each large step."""
    with pytest.raises(ValueError, match="a list of who sends what: 300 ranks x 300 chunks: would take 1.373 MiB"):
        Schedule.from_columns(Collective.ALL_REDUCE, "own", 300, 300, [])
    row = [0] * (2**16 + 1)
    with pytest.raises(ValueError, match="a step of 65,537 transfers: would take 6.25 MiB"):
        Schedule.from_columns(Collective.ALL_REDUCE, "own", 2, 1, [(row, 1, 0, True)])


def test_proofs_and_histories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` by its counts; the step engine by the steps that it looks back."""
    ring = build(Collective.ALL_REDUCE, "ring", 64)
    trains = split(ring, 1024)
    monkeypatch.setattr(memory, "free_bytes", lambda: LITTLE)
    with pytest.raises(ValueError, match="all_reduce ring over 64 ranks: its proof: would take 4 MiB"):
        verify(ring)
    with pytest.raises(ValueError, match=r"its last 1,025 steps: would take 1\.00\d MiB"):
        predict_time(trains, Network(1e-6, 1e9), 2**20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("simulate --ranks 131072 --algorithm direct", ": all 17,179,738,112 pairs of 131,072 ranks: would take"),
        ("export --ranks 65536 --format goal -o x", ": all_reduce ring over 65536 ranks in GOAL text: would take"),
        ("export --ranks 65536 --format msccl -o x", ": all_reduce ring over 65536 ranks as MSCCL XML: would take"),
        ("verify --ranks 100000", ": all_reduce ring over 100000 ranks: its proof needs 7450581 GiB"),
        ("plot --ranks 1000000", " plot: Invalid value for '--ranks': 1000000 is not in the range"),
        ("plot --ranks 131072", ": num_ranks 131072: a picture shows at most 128 ranks; ringsim simulate --trace"),
    ],
)
def test_a_huge_request_gets_one_line(arguments: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, at once, on a machine with 64 GiB."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**36)
    assert refusal_of(arguments).startswith(f"ringsim{message}")


def test_algorithms_lists_what_can_be_counted() -> None:
    """The others are named below the table, with the reason."""
    result = CliRunner().invoke(main, ["algorithms", "--ranks", "100000", "--collective", "all_gather"])
    assert result.exit_code == 0
    assert "all_gather ring skipped: 1e10 transfers, above 1e8: use fewer ranks" in result.stdout.splitlines()


ALL_REDUCE = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_the_estimate_is_near(algorithm: str) -> None:
    """Within a tenth of what the built schedule has."""
    make = partial(build, Collective.ALL_REDUCE, algorithm)
    assert estimated_transfers(make, 512) == pytest.approx(make(512).num_transfers, rel=0.1)


def test_few_ranks_need_no_estimate() -> None:
    """Nothing is built to find out whether little may be built."""
    assert estimated_transfers(lambda _: pytest.fail("built"), 256) == 0


def test_what_cannot_be_probed_is_not_estimated() -> None:
    """An algorithm for one number of ranks only is left to be built."""

    def only_for_1000(num_ranks: int) -> Schedule:
        raise ValueError(f"num_ranks {num_ranks}: only for 1000")

    assert estimated_transfers(only_for_1000, 1000) == 0


@pytest.mark.parametrize(("count", "text"), [(128, "128"), (99_999, "99999"), (10**7, "1e7"), (16_773_120, "1.7e7")])
def test_counts_are_short(count: int, text: str) -> None:
    """Two digits are enough of a large count."""
    assert format_count(count) == text
