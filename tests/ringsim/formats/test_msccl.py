"""MSCCL XML: what is written reads back as the same, and published algorithms are proved."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Schedule, ScheduleError, Transfer, read_msccl
from ringsim.formats.msccl_file import NAMES, msccl_lines
from ringsim.registry import build
from ringsim.schedule import partition, replay, verify
from tests.refusals import refusal_of, refused, said_by
from tests.ringsim.commands import invoke, printed, run, written
from tests.ringsim.strategies import every_algorithm, schedules

PUBLISHED = Path(__file__).parent / "msccl"


def reread(schedule: Schedule, folder: Path) -> Schedule:
    """Return the schedule that is read from the text that is written of it."""
    return read("".join(msccl_lines(schedule)), folder)


def read(text: str, folder: Path) -> Schedule:
    """The schedule in this text."""
    return read_msccl(written(folder / "p.xml", text))


def replayed(schedule: Schedule, length: int = 37) -> list[np.ndarray]:
    """Return each rank's buffer after it, from numbers whose sum depends on the order of the additions."""
    generator = np.random.default_rng(length)
    buffers = [generator.standard_normal(length).astype(np.float32) for _ in range(schedule.num_ranks)]
    replay(schedule, buffers)
    return buffers


@every_algorithm
@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_every_algorithm_comes_back(tmp_path: Path, collective: Collective, algorithm: str, num_ranks: int) -> None:
    """Proved, with as many transfers and no more steps, and the same bits in every buffer."""
    schedule = build(collective, algorithm, num_ranks)
    if collective not in NAMES:
        with refused(f"{schedule}: MSCCL XML is written here for all_reduce, ...", ScheduleError):
            list(msccl_lines(schedule))
        return
    again = reread(schedule, tmp_path)
    assert verify(again).num_transfers == schedule.num_transfers
    assert again.num_steps <= schedule.num_steps
    assert (again.collective, again.num_chunks) == (collective, schedule.num_chunks)
    assert again.algorithm == f"msccl:{algorithm}"
    assert all(map(np.array_equal, replayed(replace(schedule, partition=partition)), replayed(again)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(max_ranks=5, max_steps=8))
def test_so_does_any_schedule(tmp_path: Path, schedule: Schedule) -> None:
    """Exchanges, chunks overwritten unread and values that come back where they were: the same bits."""
    again = reread(schedule, tmp_path)
    assert again.num_transfers == schedule.num_transfers
    assert all(map(np.array_equal, replayed(replace(schedule, partition=partition)), replayed(again)))


def test_a_failed_import_is_a_line_and_a_grid_that_fits_a_terminal(tmp_path: Path) -> None:
    """The line names the file; the grid is cut out around the fault, though each rank receives 23 chunks a step."""
    text = "".join(msccl_lines(build(Collective.ALL_REDUCE, "two_shot", 24)))
    path = written(tmp_path / "wrong.xml", text.replace('"rrc"', '"r"'))
    done = invoke("import", path)
    line, *grid = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert line.startswith(f"ringsim: {path}: all_reduce msccl:two_shot over 24 ranks: step 0, rank 0: chunk 0 ends ")
    assert len(line) < 400 + len(str(path))
    assert 0 < max(map(len, grid)) <= 80


def test_published_algorithms_are_proved() -> None:
    """Through scratch with `re`, several chunks a step and `nop`s; fused; out of place with `cpy`."""
    steps_and_transfers = {
        ("allpairs_4", Collective.ALL_REDUCE): (2, 96),
        ("fused_ring_4", Collective.ALL_REDUCE): (6, 48),
        ("hierarchical_all_gather_4", Collective.ALL_GATHER): (2, 12),
    }
    for (file, collective), expected in steps_and_transfers.items():
        assert verify(build(collective, str(PUBLISHED / f"{file}.xml"), 4))[:2] == expected, file


STEP = re.compile(r"(\w+)(?: (\w\d)?>(\w\d)?)?(?: after (\d+) (\d+))?( silently)?")


def step(text: str) -> str:
    """The attributes of a step of one chunk, without its number, such as `r i0>s1 after 4 2`: thread block 4, step 2.

    src and dst are i0 if nothing is said; `silently`: nobody may wait for it.
    """
    match = STEP.fullmatch(text)
    assert match, text
    kind, src, dst, block, number, silently = match.groups()
    ends = "".join(
        f'{end}buf="{at[0]}" {end}off="{at[1]}" ' for end, at in (("src", src or "i0"), ("dst", dst or "i0"))
    )
    return f'type="{kind}" {ends}cnt="1" depid="{block or -1}" deps="{number or -1}" hasdep="{int(not silently)}"'


def program(*gpus: str, head: str = 'coll="allreduce" inplace="1"') -> str:
    """A program of one chunk: for each gpu its thread blocks, such as `1 -1: s, s | -1 0: r`: send, recv, steps."""
    text = f'<algo name="small" nchunksperloop="1" ngpus="{len(gpus)}" {head}>'
    for gpu, blocks in enumerate(gpus):
        text += f'<gpu id="{gpu}" i_chunks="1" o_chunks="0" s_chunks="2">'
        for number, block in enumerate(blocks.split(" | ")):
            ends, _, steps = block.partition(":")
            send, recv = ends.split()
            lines = [step(line.strip()) for line in steps.split(",") if line.strip()]
            text += f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">'
            text += "".join(f'<step s="{index}" {line}/>' for index, line in enumerate(lines)) + "</tb>"
        text += "</gpu>"
    return text + "</algo>"


EXCHANGE = program("1 1: s >s0, r >s0, re s0>", "0 0: s >s0, r >s0, re s0>")


def test_an_exchange_through_scratch_is_one_step(tmp_path: Path) -> None:
    """Both send before they add, however long the messages lie in scratch."""
    schedule = read(EXCHANGE, tmp_path)
    assert [list(rows) for rows in schedule.steps] == [[Transfer(1, 0, 0, True), Transfer(0, 1, 0, True)]]
    verify(schedule)


def test_channels_are_kept_as_thread_blocks(tmp_path: Path) -> None:
    """Two rings between two gpus are written as two channels, and what is read is sent on as many."""
    text = "".join(msccl_lines(build(Collective.ALL_REDUCE, "bidirectional_ring", 2)))
    assert 'nchannels="2"' in text
    assert text.count('chan="1"') == 4
    schedule = read(text, tmp_path)
    verify(schedule)
    channels = {(transfer.src, transfer.channel) for rows in schedule.steps for transfer in rows}
    assert [sum(src == rank for src, _ in channels) for rank in (0, 1)] == [2, 2]


UNREADABLE = (
    "no",
    "<algos/>",
    "<algo/>",
    EXCHANGE.replace("allreduce", "alltoall"),
    EXCHANGE.replace('ngpus="2"', f'ngpus="{"1" * 5000}"'),
    EXCHANGE.replace('ngpus="2"', 'ngpus="two"'),
    EXCHANGE.replace('gpu id="1"', 'gpu id="0"'),
    program("1 -1: s | -1 1:", "0 -1:").replace('tb id="1"', 'tb id="0"'),
    EXCHANGE.replace('send="1"', 'send="2"'),
    EXCHANGE.replace('send="1"', 'send="-1"'),
    EXCHANGE.replace('"re"', '"ra"'),
    EXCHANGE.replace(' cnt="1"', "", 1),
    EXCHANGE.replace('cnt="1"', 'cnt="0"', 1),
    EXCHANGE.replace('<step s="1"', '<step s="2"', 1),
    EXCHANGE.replace('srcbuf="i"', 'srcbuf="x"', 1),
    EXCHANGE.replace('srcoff="0"', 'srcoff="2"', 1),
    EXCHANGE.replace('hasdep="1"', 'hasdep="1" ringsim="0,1"', 1),
    program("1 -1: s | 1 -1: s", "-1 0: r"),
    program("1 -1:", "-1 0: r"),
    program("1 1: r, s", "0 0: r, s"),
    program("1 -1: s after 4 2", "-1 0: rrc"),
    program("1 -1: s silently | -1 1: r after 0 0", "0 0: rrc, s"),
    program("1 -1: s | -1 1: rrc", "0 -1: s | -1 0: r >s0, nop"),
    program("1 -1: s s1>", "-1 0: rrc"),
    program("1 -1: s", "-1 0: r >s0"),
    program("-1 -1: cpy >s0, re s0>", "-1 -1:"),
    program("-1 1: rrc >s0", "0 -1: s"),
    program("1 -1: s, s", "2 0: r >s0, s s0>, rrc", "-1 1: rrc"),
    program("1 -1: s", "2 0: r >s0, cpy s0>s1, re s0>, s s1>", "-1 1: rrc"),
    program("1 2: s, rrc, s", "-1 0: r >s0, rrc, re s0>", "0 -1: s"),
    program(*[f"{(gpu + 1) % 256} {(gpu - 1) % 256}: r, s" for gpu in range(256)]),
)


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """The file, the place, the value and the rule; of a deadlock of 512 steps only the beginning."""
    monkeypatch.chdir(tmp_path)
    said = [said_by((ValueError, ScheduleError), read, text, Path()) for text in UNREADABLE]
    assert all(message.startswith("p.xml: ") and "\n" not in message for message in said)
    assert said == snapshot


def test_an_exported_schedule_is_imported_and_simulated(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """By commands; what is not there or is for something else is refused in one line."""
    path = tmp_path / "ring.xml"
    run("export", "--ranks", "4", "-o", path)
    assert printed("import", path).splitlines() == [
        "all_reduce msccl:ring over 4 ranks, 4 chunks: correct (6 steps, 24 transfers)",
        f"use it with --collective all_reduce --algorithm {path} --ranks 4",
    ]
    assert "all_reduce msccl:ring, 4 ranks" in printed("simulate", "--algorithm", path, "--ranks", "4")
    refused_ones = (
        f"verify --algorithm {path} --ranks 8",
        f"verify --algorithm {path} --ranks 4 --collective broadcast",
        "verify --algorithm no.xml",
        "import no.xml",
        f"export -o {tmp_path / 'ring.txt'}",
    )
    assert [refusal_of(command).replace(str(tmp_path), "FOLDER") for command in refused_ones] == snapshot


def test_goal_is_written_with_the_size_and_rate_that_were_given(tmp_path: Path) -> None:
    """For two ranks."""
    path = tmp_path / "ring.goal"
    run("export", "--ranks", "2", "--size", "2000", "--reduce-bandwidth", "1GB/s", "-o", path)
    lines = ["num_ranks 2", "rank 0 {", "s0: send 1000b to 1 tag 0", "r1: recv 1000b from 1 tag 0", "c1: calc 1000"]
    assert path.read_text().splitlines()[:5] == lines
