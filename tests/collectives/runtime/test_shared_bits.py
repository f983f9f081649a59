"""Calls over shared memory, and over some of it, leave the bits of the replay, whatever dtype, operation and size."""

import hashlib
from dataclasses import replace

import pytest
import torch.distributed as dist

from tests.collectives.replayed_calls import NAMES, made, replayed
from tests.collectives.shared_groups import ONE_HOST, PAIRS, SMALL_SLOT, kept_group, shared_by
from tests.fuzz.calls import REDUCING, Call
from tests.fuzz.draws import algorithms
from tests.fuzz.views import in_shared_memory
from tests.ranks import RankPool

LENGTHS = (0, 1, 13, 1031)  # the last one takes several portions in a small slot
# dtype, operation, wire
KINDS = [
    ("float32", "SUM", ""),
    ("float64", "PRODUCT", ""),
    ("bfloat16", "SUM", ""),
    ("float16", "AVG", ""),
    ("int32", "MIN", ""),
    ("bool", "BOR", ""),
    ("complex64", "SUM", ""),
    ("float32", "SUM", "bfloat16"),
    ("float64", "MAX", "float16"),
]


def call_of(name: str, algorithm: str, kind: tuple[str, str, str], length: int, seed: int) -> Call:
    """A call of that kind, as far as the collective has any; `seed` also tells its root and whether it waits."""
    dtype, op, wire = kind if name in REDUCING else (kind[0], "SUM", "")
    root = seed + 1 if name in {"broadcast", "reduce"} else 0
    call = Call(name, (length,), dtype, op, algorithm, root=root, wire=wire, values="zeros")
    return replace(call, asynchronous=seed % 2 == 0)


def every_algorithm(all_of_them: bool) -> list[Call]:
    """Calls of each: short ones of every kind and long ones of each third, or one kind after the other."""
    calls: list[Call] = []
    for name, algorithm in ((of, algorithm) for of in NAMES for algorithm in algorithms(of)):
        for length in (LENGTHS[len(calls) // 2 % 3], LENGTHS[-1]):
            step = (3 if length == LENGTHS[-1] else 1) if all_of_them else len(KINDS)
            kinds = KINDS[len(calls) % step :: step]
            calls += [call_of(name, algorithm, kind, length, len(calls)) for kind in kinds]
    return calls


def compared(
    _: dist.ProcessGroup, num_ranks: int, hosts: tuple[int, ...], slot_bytes: int, calls: list[Call]
) -> list[bytes]:
    """Return the result of each call, which is the same if the tensors are lent."""
    group = kept_group(num_ranks, "auto", hosts, slot_bytes)
    if group is None:
        return []
    assert (shared_by(group).local is None) == (hosts[:num_ranks].count(hosts[group.rank()]) == 1)
    results = [over(call, group, seed) for seed, call in enumerate(calls)]
    with in_shared_memory(group):
        for seed, (call, result) in enumerate(zip(calls, results, strict=True)):
            assert over(call, group, seed) == result, call
    return [hashlib.sha256(result).digest() for result in results]


def over(call: Call, group: dist.ProcessGroup, seed: int) -> bytes:
    """The bits of this rank's result; nothing else may have changed."""
    issued = made(call, group, seed)
    assert not issued.problem(), (call, issued.problem())
    return issued.digest()


@pytest.mark.parametrize(
    ("num_ranks", "slot_bytes", "hosts", "all_of_them"),
    [
        (3, SMALL_SLOT, PAIRS, False),
        (4, SMALL_SLOT, ONE_HOST, False),
        pytest.param(3, SMALL_SLOT, PAIRS, True, marks=pytest.mark.slow),
        pytest.param(4, 2**21, ONE_HOST, True, marks=pytest.mark.slow),
    ],
)
def test_every_algorithm(
    ranks: RankPool, num_ranks: int, slot_bytes: int, hosts: tuple[int, ...], all_of_them: bool
) -> None:
    """Nothing, one element, few, and several portions; other roots than 0; sums in other dtypes, and rounded."""
    calls = every_algorithm(all_of_them)
    answers = ranks.run(compared, num_ranks, hosts, slot_bytes, calls, timeout_s=280)[:num_ranks]
    for seed, (call, *digests) in enumerate(zip(calls, *answers, strict=True)):
        assert digests == [hashlib.sha256(result).digest() for result in replayed(call, seed, num_ranks)], call
