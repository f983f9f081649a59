"""The methods of a recorded process group, called directly as programs and libraries call them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectives.recording.recorded import BACKEND, HEAD, trace_of

FORMS = Path(__file__).with_name("call_forms.txt")
PROGRAM = """
import datetime
from torch._C import _distributed_c10d as c10d
def to(kind, root=None):
    options = getattr(c10d, f"{kind}Options")()
    if root is not None:
        options.rootRank = root
    return options
t, whole, sent = torch.ones(2), torch.ones(8), torch.ones(8)
outs, parts = ([torch.ones(2) for _ in range(4)] for _ in "of")
group, op, limit = dist.group.WORLD, dist.ReduceOp.MAX, datetime.timedelta(seconds=9)
while True:
    for form in sys.argv[1:]:
        eval(f"group.{form}").wait()
        dist.send(t, 1)
    train(1)
"""


def call_forms() -> Iterator[tuple[list[str], str, int, dict[str, int]]]:
    """Yield methods with one signature, the kind and the bytes of their calls, and each form with its root, or -1."""
    lines = [line for line in FORMS.read_text().splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    for at, end in itertools.pairwise([*starts, len(lines)]):
        methods, _, called = lines[at].partition(": ")
        kind, size_bytes = called.split()
        forms = (line.strip().partition("|") for line in lines[at + 1 : end])
        yield methods.split(), kind, int(size_bytes), {form: int(root or -1) for root, _, form in forms}


@pytest.mark.parametrize("backend", [BACKEND, "ring"])
def test_each_form_of_a_call_is_recorded_once(backend: str) -> None:
    """With options, with what torch's overloads take in their place, or with neither; each argument also by keyword."""
    in_barrier = 4 if backend == "ring" else 0  # which sums one number
    expected = {
        f"{method}({form})": [(kind, size_bytes or in_barrier, root)]
        for methods, kind, size_bytes, forms in call_forms()
        for method in methods
        for form, root in forms.items()
    }
    (step,) = trace_of(HEAD.replace(BACKEND, backend) + PROGRAM, *expected, num_ranks=4).steps
    recorded: list[list[tuple[str, int, int]]] = [[]]
    for call in step.calls:
        if call.collective == "send":  # which follows each form
            recorded.append([])
        else:
            recorded[-1].append((call.collective, call.size_bytes, call.peer))
    assert dict(zip([*expected, "then"], recorded, strict=True)) == {**expected, "then": []}
