"""Measure where our all_reduce spends its time: `torchrun --nproc-per-node 2 scripts/where_time_goes.py`.

A rank's instructions (collectives/runtime/instructions.py) are timed one by one; the remainder is Python before and
after.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch
import torch.distributed as dist

import collectives
from collectives.calls import AUTO
from collectives.runtime import TRANSPORTS, GlooTransport, SharedMemoryTransport, resolve, transport_in_use
from ringsim.console import Choice, IntRange, TorchrunCommand, num_ranks
from ringsim.units import format_size

START = "torchrun --nproc-per-node 2 scripts/where_time_goes.py"
OPCODES = ("post_recv", "send", "wait_recv", "apply", "repost_recv", "wait_send")
COLUMNS = ("dist", "ours", *OPCODES, "python", "cpu")
Seconds = dict[str, float]


def time_instructions(spent: Seconds) -> None:
    """Add the time of each instruction to `spent`, by opcode, from now on."""
    for transport in (GlooTransport, SharedMemoryTransport):
        for opcode in OPCODES:
            if hasattr(transport, opcode):
                setattr(transport, opcode, _timed(getattr(transport, opcode), opcode, spent))


def _timed(action: Callable[[Any, int], None], opcode: str, spent: Seconds) -> Callable[[Any, int], None]:
    def timed(transport: Any, index: int) -> None:
        begin = time.perf_counter()
        action(transport, index)
        spent[opcode] += time.perf_counter() - begin

    return timed


def times_of(call: Callable[[], object], iterations: int, spent: Seconds) -> list[Seconds]:
    """Return for each call the total seconds, the CPU seconds of all threads, and the noted times."""
    calls = []
    for _ in range(iterations):
        dist.barrier()
        spent.clear()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        call()
        calls.append({"all": time.perf_counter() - begin, "cpu": time.process_time() - begin_cpu, **spent})
    return calls


def row(tensor: torch.Tensor, algorithm: str, iterations: int, spent: Seconds) -> Seconds:
    """Return the medians of this rank, in seconds, by column."""
    ours = partial(collectives.all_reduce, tensor, algorithm=algorithm)
    theirs = partial(dist.all_reduce, tensor)
    times_s: dict[str, list[float]] = defaultdict(list)
    for _ in range(4):  # in turn, so that a slow moment falls on both
        for call, name in ((theirs, "dist"), (ours, "ours")):
            tensor.zero_()
            call()
            for call_s in times_of(call, iterations // 4, spent):
                times_s[name].append(call_s["all"])
                if name == "ours":
                    opcodes = {opcode: call_s.get(opcode, 0.0) for opcode in OPCODES}
                    for column, seconds in {**opcodes, "cpu": call_s["cpu"]}.items():
                        times_s[column].append(seconds)
                    times_s["python"].append(call_s["all"] - sum(opcodes.values()))
    return {column: statistics.median(times_s[column]) for column in COLUMNS}


@click.command(cls=TorchrunCommand, context_settings={"show_default": True})
@click.option("--algorithm", default=AUTO, help="Algorithm of this project's all_reduce.")
@click.option("-n", "--iterations", type=IntRange(4), default=200, help="Number of calls of each size.")
@click.option(
    "--transport",
    type=Choice(list(TRANSPORTS)),
    help="Transport of our chunks; auto is shared memory within a host [default: COLLECTIVES_TRANSPORT].",
)
def main(**options: Any) -> None:
    """Print where rank 0's time goes in an all_reduce of each size, in microseconds (medians)."""
    num_ranks(START)
    dist.init_process_group("gloo")
    if options["transport"] is not None:
        collectives.use_transport(options["transport"])
    spent: Seconds = defaultdict(float)
    time_instructions(spent)
    transport = transport_in_use(resolve(None))
    lines = [
        f"# dist: Gloo; ours: {options['algorithm']} over {transport}",
        f"{'size':>8}" + "".join(f"{column:>12}" for column in COLUMNS),
    ]
    for power in range(6, 27, 4):
        medians = row(torch.zeros(2**power // 4), options["algorithm"], options["iterations"], spent)
        lines.append(f"{format_size(2**power):>8}" + "".join(f"{1e6 * medians[column]:12.0f}" for column in COLUMNS))
    if dist.get_rank() == 0:
        click.echo("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
