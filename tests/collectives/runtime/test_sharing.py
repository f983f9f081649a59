"""How ranks find out who shares memory, what is said where they cannot, and that it leaves nothing behind."""

import errno
import gc
import logging
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime.sharing import SLOT, TRANSPORT
from collectives.shared_memory import Meeting
from tests.collectives.shared_groups import (
    ONE_HOST,
    PAIRS,
    finish,
    fresh_group,
    local_ranks,
    on_hosts,
    shared_by,
    sharing_group,
)
from tests.processes import limited
from tests.ranks import RankPool

Settings = list[tuple[str, str]]  # of each rank, the transport and the length of a slot
Outcome = tuple[str, float, bool, list[str]]
Hindrance = Callable[[], AbstractContextManager[None]]  # of rank 1


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the messages that the library logs in the block, with the debug messages."""
    logger, handler, texts = logging.getLogger("collectives"), logging.Handler(), list[str]()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield texts
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextmanager
def without_memory() -> Iterator[None]:
    """There is none to share."""
    with mock.patch.object(os, "memfd_create", side_effect=OSError(errno.ENOSYS, "Function not implemented")):
        yield


@contextmanager
def without_files() -> Iterator[None]:
    """No file descriptor is left for this process."""
    os.close(lowest := os.dup(0))
    with limited(resource.RLIMIT_NOFILE, lowest):
        yield


@contextmanager
def without_files_at_the_meeting() -> Iterator[None]:
    """The same, once this rank has a segment and the others know its name."""
    with mock.patch.object(Meeting, "meet", without_files()(Meeting.meet)):
        yield


def begun(
    _: dist.ProcessGroup, settings: Settings, hindrance: Hindrance, hosts: tuple[int, ...] = ONE_HOST
) -> tuple[list[Outcome], str]:
    """Two tries of a first sum, the second of which leaves no more files open; then the transport is chosen once more.

    Returns the errors, the sums, whether memory is shared, and what is logged; and the error of the choice.
    """
    group = fresh_group(len(settings))
    if group is None:
        return [], ""
    rank, outcomes, num_open = group.rank(), [], []
    environment = dict(zip((TRANSPORT, SLOT), settings[rank], strict=True))
    with mock.patch.dict(os.environ, environment), on_hosts(rank, hosts):
        for _again in range(2):
            tensor = torch.full((1000,), float(10**rank))
            with noted() as texts, hindrance() if rank == 1 else nullcontext():
                outcomes.append(outcome(group, tensor, texts))
            num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[0] == num_open[1]
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


GOOD = ("auto", "65536")
DISAGREEMENT = (
    "the ranks do not agree on how to send: ranks 0, 2: transport auto, COLLECTIVES_SHM_SLOT_BYTES 65536; "
    "rank 1: transport gloo, COLLECTIVES_SHM_SLOT_BYTES 8192; set the same values on all ranks"
)
SLOT_RULE = "must be a number of bytes from 4096 to 1073741824"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([GOOD, ("gloo", "8192"), GOOD], DISAGREEMENT),
        ([("nccl", "65536")] * 2, "COLLECTIVES_TRANSPORT=nccl: must be one of auto, gloo, shm"),
        *(
            ([("auto", slot)] * 2, f"COLLECTIVES_SHM_SLOT_BYTES={shown}: {SLOT_RULE}")
            for slot, shown in [
                *((slot, slot) for slot in ("4095", "1073741825", "2MiB")),
                ("9" * 5000, "9" * 117 + "..."),  # more digits than int reads, and more than an offer has room for
                ("1\n2", "1?2"),
                ('"\\' * 100, '"\\' * 58 + '"' + "..."),
            ]
        ),
    ],
)
def test_settings_that_cannot_be(ranks: RankPool, settings: Settings, message: str) -> None:
    """All ranks are told the same, in one line, each time; afterwards they may say it otherwise."""
    answers = ranks.run(begun, settings, nullcontext)[: len(settings)]
    assert answers == [([(message, 0.0, False, [])] * 2, "")] * len(settings)


@pytest.mark.parametrize("transport", ["auto", "shm", "gloo"])
def test_memory_is_shared_unless_it_is_to_be_gloo(ranks: RankPool, transport: str) -> None:
    """And nothing is logged; the transport cannot be changed any more."""
    for outcomes, later in ranks.run(begun, [(transport, "4096")] * 3, nullcontext)[:3]:
        assert outcomes == [("", 111.0, transport != "gloo", [])] * 2
        assert later == "transport 'gloo': the group already has one; choose it before the first collective"


@pytest.mark.parametrize("hindrance", [without_memory, without_files, without_files_at_the_meeting])
def test_where_one_rank_cannot(ranks: RankPool, hindrance: Hindrance) -> None:
    """With "auto" all send by Gloo, and each says once why; with "shm" all raise ValueError, which names the rank."""
    for rank, (outcomes, _) in enumerate(ranks.run(begun, [GOOD] * 3, hindrance)[:3]):
        assert [rest for *rest, _ in outcomes] == [["", 111.0, False]] * 2
        (first,), second = outcomes[0][3], outcomes[1][3]
        assert first.startswith(f"rank {rank} uses torch.distributed for all messages, not shared memory: ")
        assert second == []
    for rank, (outcomes, _) in enumerate(ranks.run(begun, [("shm", "65536")] * 3, hindrance)[:3]):
        reason = "rank 1 on this host cannot"
        if rank == 1:
            reason = "cannot create a shared memory segment: [Errno 38] Function not implemented"
        for error, *_rest in outcomes:
            assert re.fullmatch(r"transport 'shm': not all ranks share memory \(.*\); use 'auto'", error)
            assert reason in error or hindrance is not without_memory


def test_on_several_hosts(ranks: RankPool) -> None:
    """With "auto" those of a host share, also if those of another one cannot; with "shm" it is refused."""
    answers = ranks.run(begun, [GOOD] * 5, without_memory, PAIRS)
    assert [[shares for _, _, shares, _ in outcomes] for outcomes, _ in answers] == [[host == 1] * 2 for host in PAIRS]
    assert all(total == 11111.0 for outcomes, _ in answers for _, total, _, _ in outcomes)
    answers = ranks.run(begun, [("shm", "65536")] * 5, nullcontext, PAIRS)
    message = "transport 'shm': not all ranks share memory (they run on several hosts); use 'auto'"
    assert {error for outcomes, _ in answers for error, *_ in outcomes} == {message}


QUIET_S, SETTLED_WITHIN_S = 0.5, 10.0  # nothing changes for so long; at most so long is waited for that


class Holdings(NamedTuple):
    """Files, threads and mappings of a process."""

    files: int
    threads: int
    maps: int

    @classmethod
    def now(cls) -> "Holdings":
        """Return the holdings of this process."""
        maps = Path("/proc/self/maps").read_text().count("/memfd:collectives")
        return cls(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps)

    @classmethod
    def settled(cls) -> "Holdings":
        """The same, once it has stopped changing: what watches or connects a destroyed group ends a little later."""
        gc.collect()
        held, since = cls.now(), time.monotonic()
        deadline = since + SETTLED_WITHIN_S
        while time.monotonic() < min(since + QUIET_S, deadline):
            time.sleep(QUIET_S / 10)
            if (now := cls.now()) != held:
                held, since = now, time.monotonic()
        return held


def settled_twice(_: dist.ProcessGroup, hosts: tuple[int, ...]) -> list[tuple[Holdings, Holdings]]:
    """Return the holdings of this rank after two groups and after four, and in a group after few calls and many."""
    for turn in range(4):
        if turn == 2:
            early = Holdings.settled()
        if (group := sharing_group(4, "auto", hosts, 4096, ("gloo", "ring")[turn % 2])) is not None:
            local_ranks(group)
            collectives.all_reduce(torch.ones(5000), group=group)
            collectives.all_reduce(torch.ones(1000, 2)[:, 0], group=group, async_op=True).wait()
            dist.destroy_process_group(group)
            del group
    of_groups, group = (early, Holdings.settled()), sharing_group(4, "auto", hosts, 4096)
    if group is None:
        return [of_groups]
    tensors = [torch.ones(length) for length in (1, 100, 5000)]
    for turn in range(60):
        if turn == 20:
            early = Holdings.settled()
        algorithm = ("ring", "direct")[turn % 2]
        finish(collectives.all_reduce(tensors[turn % 3], group=group, algorithm=algorithm, async_op=turn % 5 == 0))
        tensors[turn % 3].fill_(1)
    assert early.maps >= 2
    return [of_groups, (early, Holdings.settled())]


def named_files() -> set[Path]:
    """Return the files in memory that have names, but not those of joblib, which other tests use at the same time."""
    return {path for path in Path("/dev/shm").glob("*") if not re.search("joblib|loky", path.name)}


@pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])
def test_groups_and_calls_leave_nothing(ranks: RankPool, hosts: tuple[int, ...]) -> None:
    """A few of the groups, and sixty calls."""
    before = named_files()
    for early, late in chain(*ranks.run(settled_twice, hosts)):
        assert late == early
    assert named_files() <= before
