"""MSCCL XML: a published algorithm as a `Schedule`, to be proved, timed and run here, and a `Schedule` as XML."""

import os
from pathlib import Path

from ringsim.formats.msccl.moves import moves_of
from ringsim.formats.msccl.order import order_of
from ringsim.formats.msccl.program import read_program
from ringsim.formats.msccl.steps import steps_of
from ringsim.schedule import Schedule

SUFFIX = ".xml"


def read_msccl(path: str | os.PathLike[str]) -> Schedule:
    """The schedule that does what the MSCCL program in the file does: the same sums in the same order.

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
    """What `read_msccl` gives for the file named `algorithm`; ValueError if there is none, and what that raises."""
    path = Path(algorithm)
    if not path.is_file():
        raise ValueError(f"algorithm {algorithm!r}: there is no such file")
    return read_msccl(path)
