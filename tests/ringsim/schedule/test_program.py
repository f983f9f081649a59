"""The part of one rank."""

from hypothesis import given

from ringsim import Schedule, Transfer, ring_all_reduce
from ringsim.schedule.program import rank_program
from tests.ringsim.strategies import listed, schedules


@given(schedules(channels_of_a_pair=2))
def test_programs_hold_every_transfer_twice(schedule: Schedule) -> None:
    """Each transfer is one rank's send and another's receive, and nothing else is in any program."""
    sent, received = [], []
    for rank in range(schedule.num_ranks):
        program = rank_program(schedule, rank)
        sent += [(send.step, rank, send.peer, send.chunk) for send in program.sends]
        received += [(receive.step, receive.peer, rank, receive.chunk) for receive in program.receives]
    transfers = [(index, t.src, t.dst, t.chunk) for index, step in enumerate(schedule.steps) for t in step]
    assert sorted(sent) == sorted(received) == sorted(transfers)


@given(schedules(channels_of_a_pair=2))
def test_sends_go_as_early_as_the_rule_allows(schedule: Schedule) -> None:
    """A send waits for the write it needs (rule 1) and for those ahead of it on its channel (rule 2) and to its peer.

    If the last one on its channel goes to another peer, it waits for all that is received in earlier steps besides.
    """
    for rank in range(schedule.num_ranks):
        program = rank_program(schedule, rank)
        steps = [receive.step for receive in program.receives]
        groups = [program.first_sends, *(receive.unlocks for receive in program.receives)]
        to_peer: dict[int, int] = {}
        on_channel: dict[int, tuple[int, int]] = {}
        for group, send in sorted(((g, s) for g, sends in enumerate(groups) for s in sends), key=lambda x: x[1].step):
            before, peer = on_channel.get(send.channel, (0, send.peer))
            writes = [(r.step, place) for place, r in enumerate(program.receives, 1) if r.chunk == send.chunk]
            written = max((place for step, place in writes if step < send.step), default=0)
            needed = [written, before, to_peer.get(send.peer, 0)]
            needed += [sum(step < send.step for step in steps)] if peer != send.peer else []
            assert group == max(needed)
            to_peer[send.peer], on_channel[send.channel] = group, (group, send.peer)


def test_a_chunk_still_being_sent_is_marked() -> None:
    """In an exchange the arrival must not land in the chunk; in a ring's all-gather it may, once the sum has left."""
    exchange = listed([Transfer(0, 1, 0, False), Transfer(1, 0, 0, False)])
    (receive,) = rank_program(exchange, 0).receives
    assert (receive.needs_staging, receive.after_send_step) == (True, 0)
    last = rank_program(ring_all_reduce(3), 1).receives[-1]
    assert (last.needs_staging, last.after_send_step, last.after_receive) == (False, 1, 1)
