"""MSCCL XML: a published algorithm as a `Schedule`, to be proved, timed and run here."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringsim.formats.msccl.moves import START, Move, Moves, moves_of
from ringsim.formats.msccl.order import order_of
from ringsim.formats.msccl.program import Program, read_program
from ringsim.schedule import Schedule, ScheduleError, Transfer

Arrows = list[list[tuple[int, int]]]  # for each move those it must not be after, with the least distance: 0 or 1


def steps_of(program: Program, moves: Moves) -> list[list[Transfer]]:
    """Return the transfers of each step: as the file says it of all of them, else each as early as it can be.

    Raises ScheduleError if a chunk is added, or put in place, only after what its sender did next has come back.
    """
    if moves.moves and all(move.placed for move in moves.moves):
        return _as_placed(moves.moves)
    later = _arrows(moves)
    step = [0] * len(moves.moves)
    for group in reversed(list(_groups(later))):
        together = set(group)
        step_of_group = max(step[move] for move in group)
        for move in group:
            for other, distance in later[move]:
                if distance and other in together:
                    raise ScheduleError(_refusal(program, moves.moves[move], moves.moves[other]))
                if other not in together:
                    step[other] = max(step[other], step_of_group + distance)
            step[move] = step_of_group
    rows: list[list[Transfer]] = [[] for _ in range(max(step, default=-1) + 1)]
    for done, number in zip(moves.moves, step, strict=True):
        rows[number].append(Transfer(done.src, done.dst, done.chunk, done.reduce, done.channel))
    return rows


def _as_placed(moves: Sequence[Move]) -> list[list[Transfer]]:
    """Return the transfers in the steps that the file names; whether that is right is for `verify` to say."""
    by_step: dict[int, list[tuple[int, Transfer]]] = {}
    for move in moves:
        assert move.placed
        transfer = Transfer(move.src, move.dst, move.chunk, move.reduce, move.placed.channel)
        by_step.setdefault(move.placed.step, []).append((move.placed.row, transfer))
    return [[transfer for _, transfer in sorted(by_step[step])] for step in sorted(by_step)]


def _arrows(moves: Moves) -> Arrows:
    later: Arrows = [[] for _ in moves.moves]
    for number, move in enumerate(moves.moves):
        writers = moves.states[move.src, move.chunk].moves
        if writers[move.version] != START:
            later[writers[move.version]].append((number, 1))
        if move.version + 1 < len(writers):
            later[number].append((writers[move.version + 1], 0))
    for state in moves.states.values():
        for first, second in zip(state.moves, state.moves[1:], strict=False):
            if first != START:
                later[first].append((second, 0))
    return later


def _refusal(program: Program, move: Move, other: Move) -> str:
    return (
        f"{program.file}: {other.at}: takes what {move.at} makes of chunk {other.chunk}, and must not be in a later "
        "step than it, for what was sent earlier lies in scratch meanwhile; a Schedule sends and adds in one step"
    )


def _groups(later: Arrows) -> Iterator[list[int]]:
    """Yield the strongly connected parts, each after those that its arrows lead to (Tarjan 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    grouped: set[int] = set()
    for root in range(len(later)):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        path.append(root)
        walk = [(root, iter(later[root]))]
        while walk:
            move, arrows = walk[-1]
            following = next((other for other, _ in arrows if other not in grouped), None)
            if following is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[move])
                if low[move] == index[move]:
                    group = path[path.index(move) :] if path[-1] != move else [move]
                    del path[-len(group) :]
                    grouped.update(group)
                    yield group
            elif following in index:
                low[move] = min(low[move], index[following])
            else:
                index[following] = low[following] = len(index)
                path.append(following)
                walk.append((following, iter(later[following])))


SUFFIX = ".xml"


def read_msccl(path: str | os.PathLike[str]) -> Schedule:
    """Return the schedule that does what the MSCCL program in the file does: the same sums in the same order.

    Its name is that in the file after `msccl:`. It is not yet proved to be right: `verify` does that.

    Raises ValueError or ScheduleError, in one line that begins with the file and the place in it, for what is not MSCCL
    XML, does not come to an end, leaves its result to chance, or cannot be said in a Schedule; OSError if the
    file cannot be read.

        >>> from pathlib import Path
        >>> from ringsim import msccl_lines, read_msccl, ring_all_reduce
        >>> _ = Path("ring.xml").write_text("".join(msccl_lines(ring_all_reduce(4))))
        >>> read_msccl("ring.xml")
        Schedule(all_reduce msccl:ring over 4 ranks, 4 chunks, 6 steps)
    """
    path = Path(path)
    program = read_program(path)
    steps = steps_of(program, moves_of(program, order_of(program)))
    name = f"msccl:{program.name or path.stem}"
    return Schedule.from_transfers(program.collective, name, program.num_ranks, program.num_chunks, steps)


def build_from_msccl(algorithm: str) -> Schedule:
    """Return what `read_msccl` gives for the file named `algorithm`.

    ValueError if there is none, and what that raises.
    """
    path = Path(algorithm)
    if not path.is_file():
        raise ValueError(f"algorithm {algorithm!r}: there is no such file")
    return read_msccl(path)
