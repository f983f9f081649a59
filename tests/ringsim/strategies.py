"""What hypothesis draws: random schedules that obey the ranges, but no particular collective."""

from hypothesis import strategies as st

from ringsim import Collective, Schedule, Transfer


@st.composite
def schedules(draw: st.DrawFn, max_ranks: int = 4, max_chunks: int = 4, max_steps: int = 6) -> Schedule:
    """Any transfers in any steps; a rank may send and receive several in one step."""
    num_ranks = draw(st.integers(2, max_ranks))
    num_chunks = draw(st.integers(1, max_chunks))
    transfer = st.builds(
        lambda src, hop, chunk, reduce: Transfer(src, (src + hop) % num_ranks, chunk, reduce),
        st.integers(0, num_ranks - 1),
        st.integers(1, num_ranks - 1),
        st.integers(0, num_chunks - 1),
        st.booleans(),
    )
    steps = draw(st.lists(st.lists(transfer, max_size=4), max_size=max_steps))
    return Schedule.from_transfers(Collective.ALL_REDUCE, "random", num_ranks, num_chunks, steps)
