"""Schedules for probing: messages that wait for one another as those of collectives do, with nothing to add up."""

from collections.abc import Sequence

import numpy as np

from ringsim.schedule import Collective, Schedule


def shift_schedule(
    num_ranks: int,
    rings: Sequence[Sequence[int]],
    rounds: int,
    groups: int,
    in_flight: int,
    collective: Collective = Collective.ALL_REDUCE,
) -> Schedule:
    """In each ring every rank passes on to the next what has just come, `in_flight` chunks at a time.

    As in a ring, but with as many groups of chunks as there is memory to be touched, and for as many rounds as asked.
    collective: which chunks a rank must hold in the end.
    """
    sources = np.concatenate([np.asarray(ring) for ring in rings])[:, None]
    targets = np.concatenate([np.roll(ring, -1) for ring in rings])[:, None]
    positions = np.concatenate([np.arange(len(ring)) for ring in rings])[:, None]
    one_of = np.arange(in_flight)
    columns = (
        (sources, targets, (positions - index) % groups * in_flight + one_of, np.True_) for index in range(rounds)
    )
    return Schedule.from_columns(collective, "shift", num_ranks, groups * in_flight, columns)


def one_way_schedule(num_ranks: int, rounds: int, reduce: bool) -> Schedule:
    """Every rank sends the next one `rounds` chunks of its own, none of which is passed on."""
    ranks = np.arange(num_ranks)
    num_colours = 2 + num_ranks % 2  # neighbours send different chunks, so that none is written to that is also sent
    colour = ranks % 2
    colour[-1] = num_colours - 1
    columns = (
        (ranks, np.roll(ranks, -1), colour * rounds + index, np.full(num_ranks, reduce)) for index in range(rounds)
    )
    return Schedule.from_columns(Collective.ALL_REDUCE, "one_way", num_ranks, num_colours * rounds, columns)


def ping_pong_schedule(num_ranks: int, one: int, other: int, rounds: int) -> Schedule:
    """Ping-pong: a chunk goes from one rank to the other, and back, `rounds` messages in all; the rest are idle."""
    pair = (one, other)
    columns = ((pair[index % 2], pair[1 - index % 2], 0, np.True_) for index in range(rounds))
    return Schedule.from_columns(Collective.ALL_REDUCE, "ping_pong", num_ranks, 1, columns)
