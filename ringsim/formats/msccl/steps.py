"""`steps_of`: the steps in which moves happen, as early as the rule of execution lets them.

A transfer reads what its chunk on `src` was before its step, so it is in a later step than the write of what it takes
and not in a later one than the write that follows; the writes of a chunk on a rank keep their order, in a step by rows.
Moves that must be in no later step than one another (an exchange) share one.
"""

from collections.abc import Iterator

from ringsim.formats.msccl.moves import START, Move, Moves
from ringsim.formats.msccl.program import Program
from ringsim.schedule import ScheduleError, Transfer

Arrows = list[list[tuple[int, int]]]  # for each move those it must not be after, with the least distance: 0 or 1


def steps_of(program: Program, moves: Moves) -> list[list[Transfer]]:
    """The transfers of each step.

    Raises ScheduleError if a chunk is added, or put in place, only after what its sender did next has come back.
    """
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
    """The strongly connected parts, each after those that its arrows lead to (Tarjan 1972), without recursion."""
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
