"""Both engines against each other, and the event engine against a plain simulator of one transfer at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import Network, Schedule, Timeline, build, partition
from ringsim.algorithms import ALGORITHMS
from ringsim.collective import Collective
from ringsim.engines.by_event import run_events
from ringsim.engines.by_step import run_steps, time_steps
from ringsim.machine import Machine
from ringsim.schedule import Ints
from tests.ringsim.machines import private_machines, shared_machines
from tests.ringsim.plain_events import COLUMNS, PlainRun
from tests.ringsim.strategies import networks, schedules

MAX_RANKS = 4


def chunk_bytes(schedule: Schedule, size: int) -> Ints:
    """As `simulate` cuts them."""
    return np.diff(partition(size, schedule.num_chunks))


def times(timeline: Timeline) -> np.ndarray:
    """(5, num_transfers)."""
    return np.array([getattr(timeline, name) for name in COLUMNS])


def assert_engines_agree(schedule: Schedule, machine: Machine, size: int) -> None:
    """To the last bit, in all columns."""
    by_step, by_event = (run(schedule, machine, chunk_bytes(schedule, size)) for run in (run_steps, run_events))
    for name in ("step", "src", "dst", "chunk", "reduce", *COLUMNS):
        assert getattr(by_step, name).tolist() == getattr(by_event, name).tolist(), name
    assert time_steps(schedule, machine, chunk_bytes(schedule, size)) == by_event.time_s


@given(schedules(), networks(), st.integers(0, 10**6))
def test_engines_agree_on_uniform_networks(schedule: Schedule, network: Network, size: int) -> None:
    """For any schedule."""
    assert_engines_agree(schedule, network.machine(schedule.num_ranks), size)


@given(schedules(), private_machines(MAX_RANKS), st.integers(0, 10**6))
def test_engines_agree_where_every_pair_is_different(schedule: Schedule, machine: Machine, size: int) -> None:
    """With slow ranks, costs by pair, and jitter."""
    assert_engines_agree(schedule, machine, size)


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS, ids=lambda value: getattr(value, "value", value))
@pytest.mark.parametrize("num_ranks", [1, 2, 6, 8])
def test_engines_agree_on_every_algorithm(collective: Collective, name: str, num_ranks: int) -> None:
    """On a uniform network, and where every pair is different."""
    schedule = build(collective, name, num_ranks)
    assert_engines_agree(schedule, Network(1e-5, 1e9, 4e9, 1e-6, 2e-6).machine(num_ranks), 10**6 + 7)


def assert_as_in_plain_python(schedule: Schedule, machine: Machine, size: int) -> None:
    """All columns, within rounding."""
    plain = np.array(PlainRun(schedule, machine, chunk_bytes(schedule, size)).times()).reshape(-1, 5).T
    found = times(run_events(schedule, machine, chunk_bytes(schedule, size)))
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-12)


@settings(max_examples=250, deadline=None)
@given(schedules(), shared_machines(MAX_RANKS), st.integers(0, 10**5))
def test_sharing_is_as_in_plain_python(schedule: Schedule, machine: Machine, size: int) -> None:
    """Anything may be shared: links, a memory that counts twice, cores."""
    assert_as_in_plain_python(schedule, machine, size)


@settings(max_examples=250, deadline=None)
@given(schedules(), shared_machines(MAX_RANKS, failures=True), st.integers(0, 10**5))
def test_failures_are_as_in_plain_python(schedule: Schedule, machine: Machine, size: int) -> None:
    """What fails may do so from the start, or in the middle of messages."""
    assert_as_in_plain_python(schedule, machine, size)
