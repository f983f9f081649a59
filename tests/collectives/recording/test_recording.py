"""Programs recorded as one rank of many: what a trace has of their calls, and programs that cannot be recorded."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from ringsim.traces import TraceEventKind, TraceRequest
from tests.collectives.recording.recorded import BACKEND, HEAD, IMPORTS, LINE, record, recorded, trace_of

CALL, WAIT = TraceEventKind.CALL, TraceEventKind.WAIT
DDP = """
from torch.utils.checkpoint import checkpoint
class Checkpointed(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)
layers = nn.Sequential(*[(Checkpointed if "checkpoints" in sys.argv else nn.Linear)(8, 8) for _ in range(4)])
model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=5e-4)
optimizer = torch.optim.AdamW(model.parameters())
def step_of_one():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def try_an_optimizer():
    weights = torch.ones(8, requires_grad=True)
    on_trial = torch.optim.SGD([weights])
    for _ in range(3):
        weights.grad = torch.ones(8)
        on_trial.step()
for _ in range(2 * ("on trial" in sys.argv)):
    try_an_optimizer()
while "forks" in sys.argv:
    multiprocessing.Process(target=never.wait).start()
    os.fork()
    break
try:
    while True:
        step_of_one()
except BaseException:
    sys.exit("ends badly" in sys.argv)
"""


@pytest.mark.parametrize("way", ["", "checkpoints", "ends badly"])
def test_ddp_is_recorded_as_one_of_many_ranks(way: str) -> None:
    """A call for each bucket during the backward pass, and their waits after it; then the program is stopped.

    The backward pass of a layer may be one within another, as of a reentrant checkpoint. The program may catch what
    stops it, and end with an error.
    """
    trace = trace_of(HEAD + DDP, way, num_ranks=64, rank=9, num_steps=2)
    assert (trace.num_ranks, trace.rank, trace.ranks_per_host) == (64, 9, 8)
    (group,), (_, step) = trace.groups, trace.steps
    assert (len(group.ranks), group.backend) == (64, BACKEND)
    assert sum(call.size_bytes for call in step.calls) == 4 * 4 * (8 * 8 + 8)
    kinds = [event.kind for event in step.events if event.kind in (CALL, WAIT)]
    assert kinds == [CALL] * len(step.calls) + [WAIT] * len(step.calls)
    assert len(step.calls) > 1
    assert step.compute_s > 0


@pytest.mark.parametrize("way", ["on trial", "forks"])
def test_what_a_program_does_besides_does_not_count(way: str) -> None:
    """It may step an optimizer to see its state, and fork processes that do not train: these write no trace."""
    trace, plain = (trace_of(HEAD + DDP, each) for each in (way, ""))
    assert [call.size_bytes for call in trace.steps[0].calls] == [call.size_bytes for call in plain.steps[0].calls]
    assert trace.memory == plain.memory


def watch_while_stopped(request: TraceRequest) -> list[bool]:
    """Return whether the recorder was stopped whenever the watch of the operators began or ended."""
    from collectives.recording.operators import OperatorWatch

    stopped: list[bool] = []

    def noting(call: Callable[[Any], None]) -> Callable[[Any], object]:
        return lambda it: (stopped.append(it._recorder.is_stopped), call(it))

    with patch.multiple(OperatorWatch, start=noting(OperatorWatch.start), stop=noting(OperatorWatch.stop)):
        record(request)
    return stopped


def test_beginning_and_ending_the_watch_is_not_timed() -> None:
    """The next step, which is the first that is recorded, was several times as long as the others."""
    assert recorded(HEAD + DDP, call=watch_while_stopped) == [True, True]


CALLS = """
rank, size, one = dist.get_rank(), dist.get_world_size(), torch.ones(2)
def objects():
    everywhere, sent, output = [None] * size, [{"of": rank}] if rank == 0 else [None], [None]
    dist.all_gather_object(everywhere, rank)
    dist.broadcast_object_list(sent, src=0)
    dist.scatter_object_list([None], list(range(size)) if rank == 0 else None, src=0)
    given = [rank] * size if rank == 0 else None
    dist.scatter_object_list(scatter_object_output_list=output, scatter_object_input_list=given, src=0)
    assert output == ([rank] if rank == 0 else [None])
    pair = dist.new_group([2, 3], use_local_synchronization=rank > 1)
    if rank == 3:
        dist.scatter_object_list(output, ["of 2", "of 3"], src=3, group=pair)
        assert output == ["of 3"]
    dist.recv_object_list([None], src=1)
    dist.monitored_barrier()
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as calls:
        dist.all_reduce(torch.ones(2))
    calls.wait()
    dist.group.WORLD.broadcast(torch.ones(2), 1).wait()
    dist.group.WORLD.allgather([torch.empty(2) for _ in range(size)], torch.ones(2)).wait()
    assert everywhere == [rank] * size
    assert sent == ([{"of": 0}] if rank == 0 else [None])
    import warnings
    with warnings.catch_warnings(record=True) as told:
        dist.broadcast_object_list([None, 2], src=rank)
        dist.scatter_object_list([None], [None] * size, src=rank)
        dist.broadcast_object_list([None], group_src=dist.get_rank(pair), group=pair) if rank > 1 else None
    assert not told
def shapes():
    dist.all_reduce(total := torch.ones(2), group=dist.new_subgroups(2)[0])
    dist.all_gather(parts := [torch.empty(3) for _ in range(size)], torch.full((3,), 5.0))
    dist.reduce_scatter_tensor(mine := torch.empty(1), torch.arange(float(size)), dist.ReduceOp.AVG)
    dist.all_to_all_single(outputs := torch.empty(size), torch.arange(float(size)))
    dist.send(torch.ones(5), (rank + 1) % size)
    dist.recv(received := torch.ones(2), (rank - 1) % size)
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(5), (rank + 1) % size)])[0].wait()
    assert (total.tolist(), parts[-1].tolist(), mine.item()) == ([2.0] * 2, [5.0] * 3, rank)
    assert (outputs.tolist(), received.tolist()) == ([rank] * size, [0.0] * 2)
while True:
    shapes(), objects(), train(1)
"""


@pytest.mark.parametrize("rank", [0, 3])
def test_what_programs_call(rank: int) -> None:
    """Objects are this rank's own; other ranks hold what this one holds."""
    trace = trace_of(HEAD + CALLS, num_ranks=4, rank=rank)
    (step,) = trace.steps
    calls = [(call.collective, call.size_bytes, len(trace.groups[call.group].ranks)) for call in step.calls]
    of_two, *of_four = calls[:7]
    assert of_two == ("all_reduce", 8, 2)
    names = ["all_gather", "reduce_scatter", "all_to_all", "send", "recv", "recv"]
    assert of_four == list(zip(names, [48, 16, 16, 20, 8, 20], [4] * 6, strict=True))
    assert ("all_gather", 32, 4) in calls[7:]
    waited = [event.call for event in step.events if event.kind is WAIT]
    assert waited == [index for index, call in enumerate(step.calls) if call.is_async]


RINGS = """
rank, size = dist.get_rank(), dist.get_world_size()
def ops(sent, received, numbers=5):
    to, source = (rank + sent) % size, (rank + received) % size
    return [dist.P2POp(dist.isend, torch.ones(numbers), to), dist.P2POp(dist.irecv, torch.ones(numbers), source)]
while True:
    batch = [*ops(1, -1), *ops(-2, 2, 6)]
    for ordered in (batch, batch[::-1], [batch[1], batch[3], batch[0], batch[2]]):
        [work.wait() for work in dist.batch_isend_irecv(ordered)]
    for waited in ops(1, -1):  # as a stage of a pipeline
        waited.op(waited.tensor, waited.peer).wait()
    dist.batch_isend_irecv(ops(1, 1))[0].wait()  # as with a partner
    train(1)
"""


def test_a_send_and_a_recv_that_all_ranks_make_are_one_call() -> None:
    """The call has the distance of the ring, in any order; a wait between the two leaves them single."""
    trace = trace_of(HEAD + RINGS, num_ranks=4, rank=3)
    calls = [(call.collective, call.size_bytes, call.peer) for call in trace.steps[0].calls]
    near, far = ("sendrecv", 20, 1), ("sendrecv", 24, 2)
    assert calls[:6] == [near, far, far, near, near, far]
    assert calls[6:10] == [("send", 20, 0), ("recv", 20, 2), ("send", 20, 0), ("recv", 20, 0)]


EXCHANGES = """
import collectives
calls = collectives if sys.argv[1] == "collectives" else dist
rank, size = dist.get_rank(), dist.get_world_size()
lengths = list(range(1, size + 1))  # of the blocks for each rank
mine = lengths[rank]
def exchange():
    equal, uneven = torch.empty(size), torch.empty(size * mine)
    calls.all_to_all_single(equal, torch.arange(float(size)))
    assert equal.tolist() == [rank] * size
    calls.all_to_all_single(uneven, torch.arange(float(sum(lengths))), [mine] * size, lengths, async_op=True).wait()
    assert uneven.tolist() == list(range(sum(lengths[:rank]), sum(lengths[: rank + 1]))) * size
    received = [torch.empty(mine) for _ in lengths]
    calls.all_to_all(received, [torch.full((length,), float(length)) for length in lengths])
    assert all(block.tolist() == [mine] * mine for block in received)
def share():
    gathered = [torch.empty(3) for _ in lengths] if rank == 1 else None
    calls.gather(torch.full((3,), 5.0), gathered, dst=1)
    assert gathered is None or gathered[2].tolist() == [5.0] * 3
    given = [torch.full((2,), float(length)) for length in lengths] if rank == 1 else None
    calls.scatter(share := torch.zeros(2), given, src=1)
    assert share.tolist() == ([mine] * 2 if rank == 1 else [0.0] * 2)
    calls.all_gather(parts := [torch.empty(length) for length in lengths], torch.full((mine,), 5.0))
    assert all(part.tolist() == [5.0] * len(part) for part in parts)
    calls.reduce_scatter(total := torch.empty(mine), [torch.ones(length) for length in lengths])
    assert total.tolist() == [size] * mine
while True:
    exchange(), share(), train(1)
"""


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_exchanges_are_recorded_alike_whoever_does_them(rank: int) -> None:
    """Torch's on Gloo and on "ring", and ours: with the results that come if all ranks hold what this one holds."""
    recordings, algorithms = [], []
    for way in ("gloo", "ring", "collectives"):
        head = HEAD if way == "gloo" else HEAD.replace(BACKEND, "ring")
        trace = trace_of(head + EXCHANGES, way, num_ranks=4, rank=rank)
        calls = trace.steps[-1].calls
        recordings.append([(call.collective, call.size_bytes, call.dtype, call.is_async, call.peer) for call in calls])
        algorithms.append([call.algorithm for call in calls])
    names = ["all_to_all", "all_to_all", "all_to_all", "gather", "scatter", "all_gather", "reduce_scatter"]
    sizes = [4 * length for length in (4, 10, 10, 3 * 4, 2 * 4, 10, 10)]
    assert [(name, size) for name, size, *_ in recordings[0]] == list(zip(names, sizes, strict=True))
    assert recordings[0] == recordings[1] == recordings[2]
    assert algorithms[1] == algorithms[2]


SPAWNS = f"""{IMPORTS}
def main(local_rank, node, size):
    dist.init_process_group("gloo", "tcp://localhost:29500", rank=8 * node + local_rank, world_size=size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (int(sys.argv[1]), int(sys.argv[2])), 8, join=False).join()
"""


def test_ranks_that_the_program_spawns_are_recorded() -> None:
    """The process of the recorded rank only, on one host and on one of two; else the job has other ranks."""
    for node in (0, 1):
        size = 8 * (node + 1)
        (step,) = trace_of(SPAWNS, str(node), str(size), num_ranks=size, rank=size - 1).steps
        assert [(call.collective, call.size_bytes) for call in step.calls] == [("all_reduce", 24)]
    told = "the program makes itself rank 3 of 16, and is recorded as rank 3 of 8: give --ranks 16 --rank 3"
    assert told in str(recorded(SPAWNS, "0", "16", rank=3))


STARTS = f"""{IMPORTS}
import contextlib, queue, time
def main(rank, size):
    if rank == 0: time.sleep(1)
    if rank == 7: child = multiprocessing.Process(target=time.sleep, args=(0.5,)); child.start(); child.join()
    dist.init_process_group("gloo", rank=rank, world_size=size)
    weights = nn.Parameter(torch.ones(size))
    optimizer = torch.optim.SGD([weights])
    while True: optimizer.zero_grad(), dist.all_reduce(torch.ones(size)), optimizer.step()
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    ranks = [multiprocessing.Process(target=main, args=(rank, 8)) for rank in range(8)]
    for rank in ranks: rank.start()
    if sys.argv[2] == "manager": multiprocessing.Manager().Queue().get()
    if sys.argv[2] == "pipe": ends = multiprocessing.Pipe(); ends[0].recv()
    while sys.argv[2] == "queue":
        with contextlib.suppress(queue.Empty): multiprocessing.Queue().get(timeout=0.1)
    for rank in ranks[:int(sys.argv[2])]: rank.join()
"""


WAYS = [("spawn", "8"), ("fork", "0"), ("fork", "pipe"), ("fork", "queue"), ("forkserver", "manager")]


@pytest.mark.parametrize(("way", "awaited"), WAYS)
def test_of_processes_that_are_ranks_one_is_recorded(way: str, awaited: str) -> None:
    """The program joins them or waits for a message, or Python joins; another number of ranks is refused."""
    (step,) = trace_of(STARTS, way, awaited, rank=5, is_fake=True).steps
    assert [(call.collective, call.size_bytes) for call in step.calls] == [("all_reduce", 32)]
    assert "give --ranks 8 --rank 0" in str(recorded(STARTS, way, awaited, num_ranks=4))


AVERAGES = """
import warnings
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
with warnings.catch_warnings(record=True) as told:
    averager = PeriodicModelAverager(period=4, warmup_steps=4)
assert [str(one.message)[:31] for one in told] == ["the program averages its parame"] * (sys.argv[1] == "1")
while True: train(1), averager.average_parameters([weights])
"""


@pytest.mark.parametrize(("num_steps", "num_calls"), [(1, 0), (8, 2)])
def test_steps_that_average_parameters_are_asked_for(num_steps: int, num_calls: int) -> None:
    """By a warning, if a single step is recorded, which may be one that warms up."""
    steps = trace_of(HEAD + AVERAGES, str(num_steps), is_fake=True, num_steps=num_steps).steps
    assert sum(len(step.calls) for step in steps) == num_calls


@pytest.mark.parametrize(("num_ranks", "size_bytes"), [(4, 32), (16, 0)])
def test_nccl_exchanges_equal_parts_and_leaves_what_remains(num_ranks: int, size_bytes: int) -> None:
    """Of a count that is no multiple of the ranks, NCCL exchanges the equal parts and leaves the rest."""
    exchange = "dist.all_to_all_single(torch.empty(10), torch.ones(10))"
    (step,) = trace_of(f"{HEAD}while True: {exchange}; train(1)\n", num_ranks=num_ranks).steps
    assert [(call.collective, call.size_bytes) for call in step.calls] == [("all_to_all", size_bytes)]


@pytest.mark.parametrize("asked", ['"mpi"', '"gloo", store=dist.TCPStore("host", 1, 8), rank=0, world_size=8'])
def test_groups_meet_by_themselves(asked: str) -> None:
    """MPI would know the rank, and a TCPStore would wait for all ranks."""
    assert len(trace_of(HEAD.replace(f'"{BACKEND}"', asked) + "train()").groups[0].ranks) == 8


PROCESSES = (
    "ranks = [multiprocessing.Process(target=train) for _ in 'ab']; [each.start() for each in ranks]; "
    "[each.join() for each in ranks]"
)
STARTS_RANKS = "the program starts its ranks itself, by multiprocessing: let torchrun start them"
REFUSALS = {
    **{f"train({n})": f"it ended after {n} steps of a torch.optim.Optimizer; 3 warm up" for n in (3, 0)},
    **{f"multiprocessing.set_start_method({way!r}); {PROCESSES}": STARTS_RANKS for way in ("fork", "spawn")},
    "torch.multiprocessing.spawn(print, (), 2)": "the program starts 2 ranks itself: give --ranks 2",
    "dist.TCPStore('host', 1, 8).get('key')": "a recorded rank has no peers that write into its store: leave it out",
    "dist.recv(torch.ones(1))": "the program must name the one that it receives from",
    "dist.recv(size := torch.ones(1), 1); torch.ones(4).view(int(size), 4)": "size 4; a recorded rank has no peers",
    "dist.all_reduce(torch.eye(2).to_sparse())": f"train.py:{LINE}: RuntimeError: calls of sparse tensors cannot be",
    "torch.distributed.rpc.init_rpc('worker')": f"train.py:{LINE}: the program calls other ranks by torch.distributed",
    "dist.all_reduce(sent := torch.ones(9, dtype=torch.uint8)); pickle.loads(bytes(sent))": "by all_gather_object, or",
    "pickle.loads(b'version 1')": "UnpicklingError: invalid load key, 'v'.",
    "dist.barrier(); pickle.loads(b'version 1')": "UnpicklingError: invalid load key, 'v'.",
    "assert 1 > 2": f"train.py:{LINE}: AssertionError: assert 1 > 2",
    "raise KeyError('data')": f"train.py:{LINE}: KeyError: 'data'",
    "class Stop(BaseException): pass\nraise Stop('now')": f"train.py:{LINE + 1}: Stop: now",
    "sys.exit(7)": "it ended with exit code 7",
    "try: [][1]\nexcept IndexError: sys.exit(7)": "it ended with exit code 7 after /",
    "import traceback\ntry: [][1]\nexcept IndexError: text = traceback.format_exc()": (
        f"/train.py:{LINE + 1}: IndexError: list index out of range"
    ),
    "import logging\ntry: [][1]\nexcept IndexError: logging.exception('failed')\n{}['data']": (
        f"train.py:{LINE + 3}: KeyError: 'data'; before, it had caught "
    ),
    "def f(:": f"train.py: SyntaxError: invalid syntax (train.py, line {LINE})",
    "'nosuch'": "train.py:6: AssertionError: Unknown c10d backend type NOSUCH",
    "'cpu:gloo,cuda:nosuch'": "train.py:6: AssertionError: Unknown c10d backend type NOSUCH",
}


@pytest.mark.parametrize("body", REFUSALS)
def test_what_cannot_be_recorded_is_refused(body: str) -> None:
    """In one line with the place; what is only a name is that of the backend."""
    head = HEAD.replace(BACKEND, body.strip("'")) if body.startswith("'") else HEAD
    assert REFUSALS[body] in str(recorded(f"{head}{body}\n"))


def test_a_mistake_is_not_blamed_on_missing_peers() -> None:
    """Although the program receives from one."""
    told = str(recorded(f"{HEAD}dist.recv(torch.ones(1), 1); nosuch\n"))
    assert told.endswith(f"train.py:{LINE}: NameError: name 'nosuch' is not defined")


def test_a_package_that_a_program_does_without_is_no_earlier_error() -> None:
    """As a library tells of one when it is imported."""
    optional = "import traceback\ntry: import nosuch\nexcept ImportError: traceback.print_exc()\n"
    assert str(recorded(f"{HEAD}{optional}{{}}['data']\n")).endswith("KeyError: 'data'")


def test_a_forked_process_ends_with_its_own_exit_code() -> None:
    """Which its parent may read."""
    forked = "if not (forked := os.fork()): sys.exit(3)\nassert os.waitpid(forked, 0)[1] == 3 << 8\ntrain()\n"
    assert trace_of(HEAD + forked).steps


FUTURES = """
values = lambda done: done.value()
again = lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().value()
while True:
    first, second = [dist.all_reduce(torch.ones(4), async_op=True).get_future() for _ in range(2)]
    WAY
    torch.ones(64, 64) @ torch.ones(64, 64)
    WAIT
    train(1)
"""


@pytest.mark.parametrize(
    ("way", "wait", "waits"),
    [
        ("pass", "first.wait(), second.value()", [0, 1]),
        ("first.wait()", "second.wait()", [1]),
        ("chained = first.then(values)", "chained.wait()", [0]),
        ("chained = first.then(again)", "chained.value()", [0, 2]),
        ("first.add_done_callback(values)", "second.wait()", [1]),
        ("both = torch.futures.collect_all([first, second])", "both.wait()", [0, 1]),
        ("pass", "torch.futures.wait_all([second, first])", [1, 0]),
        ("chained = first.then(lambda _: 1 / 0)", "second.wait()", [1]),
    ],
)
def test_a_program_waits_where_it_asks_its_future(way: str, wait: str, waits: list[int]) -> None:
    """And not where it takes it, so that the product between hides the calls."""
    trace = trace_of(HEAD + FUTURES.replace("WAY", way).replace("WAIT", wait), is_fake=True)
    events = trace.steps[0].events
    product = next(place for place, event in enumerate(events) if any(op.flops for op in event.operators))
    assert [event.call for event in events[product:] if event.kind is WAIT] == waits
