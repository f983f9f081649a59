"""`rows_of`: the published steps, and for each the recordings from which it is predicted.

Micro-steps of gradient accumulation, and layers, repeat: the step of more follows from those of one and two, so that
hundreds of rows need few recordings.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

RANKS_PER_HOST = 8
FITTED = "a100", "h100"  # GPUs whose figures come from their rows on one host
TABLES = Path(__file__).parents[2] / "examples" / "steps"


class Recording(NamedTuple):
    """A program of `programs/`, its arguments and the number of its ranks."""

    program: str
    arguments: tuple[str, ...]
    num_ranks: int

    @property
    def file(self) -> str:
        return "-".join([self.program, str(self.num_ranks), *(value.removeprefix("--") for value in self.arguments)])


@dataclass(frozen=True)
class Row:
    """A published step.

    program: all that one host and several have in common. tensor: ranks among which each tensor is divided.
    tokens: of a step, over all ranks. measured_s: seconds of a step.
    parts: recordings, each with its weight in the step.
    reserved_bytes: the memory that torch's allocator reserved; None if not published.
    """

    name: str
    program: str
    parallelism: str
    gpu: str
    num_ranks: int
    tokens: int
    measured_s: float
    parts: tuple[tuple[Recording, float], ...]
    tensor: int = 1
    reserved_bytes: float | None = None

    @property
    def is_on_one_host(self) -> bool:
        return self.num_ranks <= RANKS_PER_HOST

    @property
    def is_fitted(self) -> bool:
        """Whether the figures of the GPU's file come from such rows."""
        return self.is_on_one_host and self.gpu in FITTED

    @property
    def tokens_per_rank_s(self) -> float:
        return self.tokens / self.num_ranks / self.measured_s


def _combined(
    program: str, num_ranks: int, fixed: dict[str, object], repeated: dict[str, int], first: int = 1
) -> tuple[tuple[Recording, float], ...]:
    """Return recordings with `first` and `first + 1` repetitions of each kind, weighted for a straight line."""
    ends = [
        ((first, 1.0),) if n == first else ((first, first + 1 - n), (first + 1, n - first)) for n in repeated.values()
    ]
    parts = []
    for chosen in product(*ends):
        given = {**fixed, **{key: number for key, (number, _) in zip(repeated, chosen, strict=True)}}
        arguments = [text for key, value in given.items() if value is not False for text in _argument(key, value)]
        parts.append((Recording(program, tuple(arguments), num_ranks), prod(weight for _, weight in chosen)))
    return tuple(parts)


def _argument(key: str, value: object) -> tuple[str, ...]:
    return (f"--{key}",) if value is True else (f"--{key}", str(value))


def _mpt(row: dict[str, str]) -> Row:
    num_ranks, accumulation = int(row["gpus"]), int(row["accumulation"])
    fixed = {"model": row["model"], "sequence": row["sequence"], "micro": row["micro_batch"]}
    checkpoint = row["activation_checkpointing"] == "True"
    parts = _combined("mpt", num_ranks, {**fixed, "checkpoint": checkpoint}, {"accumulation": accumulation})
    tokens = int(row["global_batch"]) * int(row["sequence"])
    program = f"MPT-{row['model']}, {row['sequence']}"
    name = f"{program}, {num_ranks} GPUs"
    return Row(name, program, "FSDP", "a100-40gb", num_ranks, tokens, tokens / float(row["tokens_per_s"]), parts)


def _megatron(row: dict[str, str]) -> Row:
    num_ranks, batch, micro, width, heads, layers, sequence, tensor, data = (
        int(value) for value in list(row.values())[:9]
    )
    fixed = {"width": width, "heads": heads, "sequence": sequence, "micro": micro, "parts": tensor}
    repeated = {"layers": layers, "accumulation": batch // data // micro}
    parts = _combined("megatron", num_ranks, fixed, repeated)
    name = f"GPT {width} x {layers}, TP {tensor}, DP {data}, micro-batch {micro}, batch {batch}"
    seconds = float(row["iteration time (ms)"]) / 1e3
    return Row(name, name, f"TP {tensor}", "a100", num_ranks, batch * sequence, seconds, parts, tensor)


def _playbook(row: dict[str, str]) -> Row | None:
    num_ranks, batch = 8 * int(row["Nodes"]), int(row["GBS"])
    if not row["tok/s"] or batch != int(row["MBS"]) * int(row["GradAcc"]) * int(row["DP"]):  # two contradict themselves
        return None
    fixed = {"micro": row["MBS"], "parts": row["TP"], "zero": row["ZeRO"]}
    parts = _combined("nanotron", num_ranks, fixed, {"accumulation": int(row["GradAcc"])})
    kind = f"TP {row['TP']}, ZeRO-{row['ZeRO']}"
    name = f"Llama 1.34B, {num_ranks} GPUs, {kind}, micro-batch {row['MBS']}"
    tokens, reserved_bytes = batch * 4096, float(row["GPU memory"]) * 2**30
    seconds = tokens / float(row["tok/s"])
    return Row(name, "Llama 1.34B", kind, "h100", num_ranks, tokens, seconds, parts, int(row["TP"]), reserved_bytes)


_READERS: dict[str, Callable[[dict[str, str]], Row | None]] = {
    "mpt-a100-40gb": _mpt,
    "megatron-a100-one-host": _megatron,
    "playbook-1.34B-pp1": _playbook,
}


def rows_of(table: str) -> Iterator[Row]:
    """Yield the rows of a table that have a time."""
    with (TABLES / f"{table}.csv").open() as file:
        for values in csv.DictReader(file):
            if row := _READERS[table](values):
                yield row
