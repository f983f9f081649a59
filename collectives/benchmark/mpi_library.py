"""`MpiLibrary`: the collectives of Open MPI's C library, called on the memory of tensors."""

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import NO_OP, BenchmarkCase
from ringsim.schedule import Collective

LIBRARY = "libmpi.so.40"  # the name of Open MPI's since version 3
# The symbols behind MPI_FLOAT and so on. MPI has no type for bfloat16 and float16, and no average.
_TYPES = {
    "float32": "ompi_mpi_float",
    "float64": "ompi_mpi_double",
    **{name: f"ompi_mpi_{name}_t" for name in ("int8", "uint8", "int32", "int64")},
}
_OPS = {name: f"ompi_mpi_op_{name}" for name in ("sum", "prod", "min", "max", "band", "bor", "bxor")}
_MAX_COUNT = 2**31 - 1  # counts are C's int
_IN_PLACE = ctypes.c_void_p(1)
_ROOT = 0


def has_collective(case: BenchmarkCase) -> bool:
    """Whether MPI has the type and the operation of `case`, and counts so far."""
    return case.dtype in _TYPES and case.op in (*_OPS, NO_OP) and case.num_elements <= _MAX_COUNT


class MpiLibrary:
    """The library, initialised by `start`; MPI_ERRORS_ARE_FATAL holds, so that errors end the job."""

    def __init__(self) -> None:
        self._library = _load()
        self._world = self._handle("ompi_mpi_comm_world")

    def start(self) -> None:
        """MPI_Init."""
        self._library.MPI_Init(None, None)

    def finish(self) -> None:
        """MPI_Finalize."""
        self._library.MPI_Finalize()

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._library.MPI_Barrier(self._world)

    def collective(self, case: BenchmarkCase, buffers: Buffers, rank: int) -> Callable[[], object]:
        """What does `case` once on `rank`, out of place by MPI's own means.

        buffers: as `buffers_of` gives them.
        """
        given, result, world = _memory(buffers, case), ctypes.c_void_p(buffers.output.data_ptr()), self._world
        kind, library = self._handle(_TYPES[case.dtype]), self._library
        whole, share = ctypes.c_int(case.num_elements), ctypes.c_int(case.share)
        op = None if case.op == NO_OP else self._handle(_OPS[case.op])
        if case.collective is Collective.REDUCE_SCATTER:
            return lambda: library.MPI_Reduce_scatter_block(given, result, share, kind, op, world)
        if case.collective is Collective.ALL_GATHER:
            return lambda: library.MPI_Allgather(given, share, kind, result, share, kind, world)
        if case.collective is Collective.REDUCE:
            if rank != _ROOT:  # only the root may say MPI_IN_PLACE
                given = ctypes.c_void_p(buffers.input.data_ptr())
            return lambda: library.MPI_Reduce(given, result, whole, kind, op, _ROOT, world)
        if case.collective is Collective.BROADCAST:
            return lambda: self._broadcast(buffers, rank, whole, kind)
        return lambda: library.MPI_Allreduce(given, result, whole, kind, op, world)

    def _broadcast(self, buffers: Buffers, rank: int, count: ctypes.c_int, kind: ctypes.c_void_p) -> None:
        if rank == _ROOT and buffers.output is not buffers.input:
            buffers.output.copy_(buffers.input)  # MPI has it in place only, so to copy is part of it
        self._library.MPI_Bcast(ctypes.c_void_p(buffers.output.data_ptr()), count, kind, _ROOT, self._world)

    def _handle(self, symbol: str) -> ctypes.c_void_p:
        """MPI's handles are the addresses of these variables."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, symbol)))


def buffers_of(buffers: Buffers, case: BenchmarkCase) -> Buffers:
    """The same memory, with the result where MPI puts it: of reduce_scatter in place that is the beginning."""
    if case.collective is Collective.REDUCE_SCATTER and case.in_place:
        return Buffers(buffers.data, buffers.input, buffers.input[: case.share])
    return buffers


def _memory(buffers: Buffers, case: BenchmarkCase) -> ctypes.c_void_p:
    """What is sent: MPI_IN_PLACE, or the input."""
    return _IN_PLACE if case.in_place else ctypes.c_void_p(buffers.input.data_ptr())


def _load() -> ctypes.CDLL:
    """The library beside mpirun, or else the system's. Raises OSError if there is neither."""
    program = shutil.which("mpirun")
    beside = Path(program).resolve().parents[1] / "lib" / LIBRARY if program else Path(LIBRARY)
    # Parts of the library that it loads later look for the symbols of this one.
    return ctypes.CDLL(str(beside) if beside.exists() else LIBRARY, mode=ctypes.RTLD_GLOBAL)
