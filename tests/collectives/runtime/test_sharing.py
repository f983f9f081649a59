"""How the ranks of a group find out who shares memory, and what is said where they cannot."""

import errno
import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime.sharing_offer import SLOT, TRANSPORT
from collectives.shared_memory import Meeting
from tests.collectives.shared_groups import PAIRS, fresh_group, on_hosts, shared_by
from tests.ranks import RankPool

Environment = list[dict[str, str]]  # of each rank
Outcome = tuple[str, float, bool, list[str]]


class Notes(logging.Handler):
    """The messages that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.texts.append(record.getMessage())


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the messages that the library logs in the block, with the debug messages."""
    logger, notes = logging.getLogger("collectives"), Notes()
    level = logger.level
    logger.addHandler(notes)
    logger.setLevel(logging.DEBUG)
    try:
        yield notes.texts
    finally:
        logger.setLevel(level)
        logger.removeHandler(notes)


@contextmanager
def without_memory() -> Iterator[None]:
    """There is none to share."""
    with mock.patch.object(os, "memfd_create", side_effect=OSError(errno.ENOSYS, "Function not implemented")):
        yield


@contextmanager
def without_files() -> Iterator[None]:
    """No file descriptor is left for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    full = []
    try:
        while True:
            try:
                full.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in full:
            os.close(fd)


@contextmanager
def without_files_at_the_meeting() -> Iterator[None]:
    """The same, once this rank has a segment and the others know its name."""
    meet = Meeting.meet

    def without(meeting: Meeting, *arguments: object) -> object:
        with without_files():
            return meet(meeting, *arguments)  # type: ignore[arg-type]

    with mock.patch.object(Meeting, "meet", without):
        yield


HINDRANCES: dict[str, Callable[[], object]] = {
    "nothing": nullcontext,
    "no memory": without_memory,
    "no files": without_files,
    "no files at the meeting": without_files_at_the_meeting,
}


def begun(
    _: dist.ProcessGroup, environment: Environment, hindered: int, hindrance: str, hosts: tuple[int, ...] = (0,) * 5
) -> tuple[list[Outcome], str]:
    """Two tries of a first sum, and what is logged: the error, the sum, whether memory is shared; then once more."""
    group = fresh_group(len(environment))
    if group is None:
        return [], ""
    rank, outcomes = group.rank(), []
    context = HINDRANCES[hindrance if rank == hindered else "nothing"]
    with mock.patch.dict(os.environ, environment[rank]), on_hosts(rank, hosts):
        for _again in range(2):
            tensor = torch.full((1000,), float(10**rank))
            with noted() as texts, context():  # type: ignore[attr-defined]
                outcomes.append(outcome(group, tensor, texts))
    try:
        collectives.use_transport("gloo", group)
    except ValueError as error:
        return outcomes, str(error)
    return outcomes, ""


def outcome(group: dist.ProcessGroup, tensor: torch.Tensor, texts: list[str]) -> Outcome:
    """Of one sum."""
    try:
        collectives.all_reduce(tensor, group=group)
    except ValueError as error:
        return str(error), 0.0, False, texts
    return "", tensor[-1].item(), shared_by(group).local is not None, texts


def with_settings(*settings: tuple[str, str]) -> Environment:
    """Of each rank: the transport, and the length of a slot."""
    return [{TRANSPORT: transport, SLOT: slot} for transport, slot in settings]


GOOD = ("auto", "65536")
LATER = "choose it before the first collective"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [GOOD, ("gloo", "65536"), GOOD],
            "the ranks do not agree on how to send: ranks 0, 2: transport auto, COLLECTIVES_SHM_SLOT_BYTES 65536; "
            "rank 1: transport gloo, COLLECTIVES_SHM_SLOT_BYTES 65536; set the same values on all ranks",
        ),
        (
            [("shm", "65536"), ("shm", "8192")],
            "the ranks do not agree on how to send: rank 0: transport shm, COLLECTIVES_SHM_SLOT_BYTES 65536; "
            "rank 1: transport shm, COLLECTIVES_SHM_SLOT_BYTES 8192; set the same values on all ranks",
        ),
        ([("nccl", "65536")] * 2, "COLLECTIVES_TRANSPORT=nccl: must be one of auto, gloo, shm"),
        ([("", "65536")] * 2, "COLLECTIVES_TRANSPORT=: must be one of auto, gloo, shm"),
        *(
            (
                [("auto", slot)] * 2,
                f"COLLECTIVES_SHM_SLOT_BYTES={shown}: must be a number of bytes from 4096 to 1073741824",
            )
            for slot, shown in [
                ("4095", "4095"),
                ("-1", "-1"),
                ("2MiB", "2MiB"),
                ("", ""),
                ("1073741825", "1073741825"),
                ("9" * 5000, "9" * 117 + "..."),  # more digits than int reads, and more than an offer has room for
                ("1\n2", "1?2"),
                ('"\\' * 100, '"\\' * 58 + '"' + "..."),
            ]
        ),
    ],
)
def test_settings_that_cannot_be(ranks: RankPool, settings: list[tuple[str, str]], message: str) -> None:
    """All ranks are told the same, in one line, each time; afterwards they may say it otherwise."""
    answers = ranks.run(begun, with_settings(*settings), -1, "nothing")[: len(settings)]
    assert answers == [([(message, 0.0, False, [])] * 2, "")] * len(settings)


@pytest.mark.parametrize("transport", ["auto", "shm", "gloo"])
def test_memory_is_shared_unless_it_is_to_be_gloo(ranks: RankPool, transport: str) -> None:
    """And nothing is logged; the transport cannot be changed any more."""
    for outcomes, later in ranks.run(begun, with_settings(*[(transport, "4096")] * 3), -1, "nothing")[:3]:
        assert outcomes == [("", 111.0, transport != "gloo", [])] * 2
        assert LATER in later


@pytest.mark.parametrize("hindrance", ["no memory", "no files", "no files at the meeting"])
@pytest.mark.parametrize("hindered", [0, 1, 2])
def test_where_one_rank_cannot(ranks: RankPool, hindered: int, hindrance: str) -> None:
    """With "auto" all send by Gloo, and each says once why; with "shm" all raise ValueError."""
    reason = {"no memory": "Function not implemented"}.get(hindrance, "")
    for rank, (outcomes, _) in enumerate(ranks.run(begun, with_settings(*[GOOD] * 3), hindered, hindrance)[:3]):
        assert [(error, total, shares) for error, total, shares, _ in outcomes] == [("", 111.0, False)] * 2
        (first,), second = outcomes[0][3], outcomes[1][3]
        assert first.startswith(f"rank {rank} uses torch.distributed for all messages, not shared memory: ")
        assert reason in first or rank != hindered
        assert second == []
    answers = ranks.run(begun, with_settings(*[("shm", "65536")] * 3), hindered, hindrance)[:3]
    for outcomes, _ in answers:
        for error, *_rest in outcomes:
            assert error.startswith("transport 'shm': not all ranks share memory (")
            assert error.endswith("); use 'auto'")
            assert "\n" not in error


def test_the_others_are_told_which_rank_cannot(ranks: RankPool) -> None:
    """Where the reason is that of one rank alone."""
    answers = ranks.run(begun, with_settings(*[("shm", "65536")] * 2), 1, "no memory")[:2]
    assert [outcomes[0][0] for outcomes, _ in answers] == [
        "transport 'shm': not all ranks share memory (rank 1 on this host cannot); use 'auto'",
        "transport 'shm': not all ranks share memory (cannot create a shared memory segment: "
        "[Errno 38] Function not implemented); use 'auto'",
    ]


def test_on_several_hosts(ranks: RankPool) -> None:
    """With "auto" those of a host share, also if those of another one cannot; with "shm" it is refused."""
    answers = ranks.run(begun, with_settings(*[GOOD] * 5), 1, "no memory", PAIRS)
    assert [[shares for _, _, shares, _ in outcomes] for outcomes, _ in answers] == [[host == 1] * 2 for host in PAIRS]
    assert all(total == 11111.0 for outcomes, _ in answers for _, total, _, _ in outcomes)
    answers = ranks.run(begun, with_settings(*[("shm", "65536")] * 5), -1, "nothing", PAIRS)
    message = "transport 'shm': not all ranks share memory (they run on several hosts); use 'auto'"
    assert {error for outcomes, _ in answers for error, *_ in outcomes} == {message}


def left_open(_: dist.ProcessGroup) -> list[int]:
    """How many more file descriptors there are after each refusal of "shm", in a group that stays."""
    group = fresh_group(4)
    if group is None:
        return []
    counts = []
    with mock.patch.dict(os.environ, {TRANSPORT: "shm"}), on_hosts(group.rank(), PAIRS):
        for _again in range(4):
            with pytest.raises(ValueError, match="not all ranks share memory"):
                collectives.barrier(group)
            counts.append(len(os.listdir("/proc/self/fd")))
    return [count - counts[0] for count in counts]


def test_a_refusal_leaves_nothing_open(ranks: RankPool) -> None:
    """The ranks that had met part."""
    assert ranks.run(left_open)[:4] == [[0] * 4] * 4


def absent(group: dist.ProcessGroup) -> str:
    """Return the error of a rank that begins when the other one is gone."""
    collectives.use_transport("auto", group)
    if group.rank() == 1:
        os._exit(0)
    try:
        while True:
            collectives.all_reduce(torch.ones(3), group=group)
    except collectives.CollectiveError as error:
        return f"{error.peer}: {error}"


def test_a_rank_that_is_gone_before_the_first_collective() -> None:
    """Is named."""
    with RankPool(2, peer_timeout_s=20.0) as pool:
        pool.start(absent)
        good, message = pool.answers([0], timeout_s=60)[0]
    assert good, message
    assert message.startswith("1: rank 0: ")
    assert "rank 1 failed: " in message
    assert message.endswith("; the first rank to stop responding was rank 1")
