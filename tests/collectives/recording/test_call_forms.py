"""The methods of a recorded process group, called directly as programs and libraries call them."""

from pathlib import Path

import pytest

from tests.collectives.recording.recorded import BACKEND, HEAD, trace_of

# By methods with one signature: the kind and the bytes of the call, and its forms, each with its root. Rank 0 of 4
# calls them; `to` makes options of a kind with a root, and `t` has 8 bytes, as each of `outs` and `parts`.
FORMS: dict[str, tuple[str, int, dict[str, int]]] = {
    "allreduce": (
        "all_reduce",
        8,
        {
            "[t]": -1,
            "[t], to('Allreduce')": -1,
            "[t], opts=to('Allreduce')": -1,
            "tensors=[t]": -1,
            "tensors=[t], opts=to('Allreduce')": -1,
            "[t], op": -1,
            "[t], op, limit": -1,
            "[t], timeout=limit": -1,
            "t": -1,
            "t, op": -1,
            "t, op, limit": -1,
            "tensor=t, op=op": -1,
        },
    ),
    "allreduce_coalesced": (
        "all_reduce",
        8,
        {
            "[t]": -1,
            "[t], to('AllreduceCoalesced')": -1,
            "tensors=[t]": -1,
            "tensors=[t], opts=to('AllreduceCoalesced')": -1,
        },
    ),
    "reduce": (
        "reduce",
        8,
        {
            "[t]": 0,
            "[t], None": 0,
            "[t], to('Reduce', 2)": 2,
            "tensors=[t]": 0,
            "tensors=[t], opts=to('Reduce', 2)": 2,
            "t, 2": 2,
            "t, 2, op": 2,
            "t, 2, op, limit": 2,
            "t, root=2, timeout=None": 2,
            "tensor=t, root=2, op=op, timeout=limit": 2,
        },
    ),
    "broadcast": (
        "broadcast",
        8,
        {
            "[t]": 0,
            "[t], to('Broadcast', 2)": 2,
            "tensors=[t], opts=to('Broadcast', 2)": 2,
            "t, 2": 2,
            "t, 2, limit": 2,
            "tensor=t, root=2": 2,
        },
    ),
    "barrier": (
        "barrier",
        0,
        {"": -1, "to('Barrier')": -1, "opts=to('Barrier')": -1, "limit": -1, "timeout=limit": -1},
    ),
    "allgather": (
        "all_gather",
        32,
        {
            "[outs], [t]": -1,
            "[outs], [t], to('Allgather')": -1,
            "output_tensors=[outs], input_tensors=[t]": -1,
            "input_tensors=[t], output_tensors=[outs], opts=to('Allgather')": -1,
            "outs, t": -1,
            "outs, t, limit": -1,
            "output_tensors=outs, input_tensor=t": -1,
        },
    ),
    "allgather_coalesced": (
        "all_gather",
        32,
        {
            "[[out] for out in outs], [t]": -1,
            "[[out] for out in outs], [t], to('Allgather')": -1,
            "[[out] for out in outs], [t], opts=to('Allgather')": -1,
            "output_lists=[[out] for out in outs], input_list=[t]": -1,
            "outputs=[[out] for out in outs], inputs=[t]": -1,
        },
    ),
    "all_gather_single _allgather_base": (
        "all_gather",
        32,
        {
            "whole, t": -1,
            "whole, t, None": -1,
            "whole, t, to('Allgather')": -1,
            "output=whole, input=t": -1,
            "input=t, output=whole, opts=to('Allgather')": -1,
        },
    ),
    "all_gather_single_coalesced allgather_into_tensor_coalesced": (
        "all_gather",
        32,
        {
            "[whole], [t]": -1,
            "[whole], [t], to('Allgather')": -1,
            "outputs=[whole], inputs=[t]": -1,
            "inputs=[t], outputs=[whole], opts=to('Allgather')": -1,
        },
    ),
    "reduce_scatter": (
        "reduce_scatter",
        32,
        {
            "[t], [parts]": -1,
            "[t], [parts], to('ReduceScatter')": -1,
            "output_tensors=[t], input_tensors=[parts]": -1,
            "output_tensors=[t], input_tensors=[parts], opts=to('ReduceScatter')": -1,
            "t, parts": -1,
            "t, parts, op": -1,
            "t, parts, op, limit": -1,
            "output=t, input=parts": -1,
        },
    ),
    "reduce_scatter_single _reduce_scatter_base": (
        "reduce_scatter",
        32,
        {
            "t, whole": -1,
            "t, whole, to('ReduceScatter')": -1,
            "outputTensor=t, inputTensor=whole": -1,
            "output=t, input=whole, opts=to('ReduceScatter')": -1,
        },
    ),
    "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced": (
        "reduce_scatter",
        32,
        {
            "[t], [whole]": -1,
            "[t], [whole], to('ReduceScatter')": -1,
            "outputs=[t], inputs=[whole]": -1,
            "outputs=[t], inputs=[whole], opts=to('ReduceScatter')": -1,
        },
    ),
    "gather": (
        "gather",
        32,
        {
            "[outs], [t]": 0,
            "[outs], [t], None": 0,
            "[], [t], to('Gather', 2)": 2,
            "[], [t], opts=to('Gather', 2)": 2,
            "output_tensors=[outs], input_tensors=[t]": 0,
            "outputs=[], inputs=[t], opts=to('Gather', 2)": 2,
            "outs, t, 0": 0,
            "[], t, 2": 2,
            "[], t, 2, limit": 2,
            "output_tensors=[], input_tensor=t, root=2": 2,
        },
    ),
    "scatter": (
        "scatter",
        32,
        {
            "[t], [parts]": 0,
            "[t], [parts], None": 0,
            "[t], [], to('Scatter', 2)": 2,
            "[t], [], opts=to('Scatter', 2)": 2,
            "output_tensors=[t], input_tensors=[parts]": 0,
            "outputs=[t], inputs=[], opts=to('Scatter', 2)": 2,
            "t, parts, 0": 0,
            "t, [], 2": 2,
            "t, [], 2, limit": 2,
            "output_tensor=t, input_tensors=[], root=2": 2,
        },
    ),
    "alltoall": (
        "all_to_all",
        32,
        {
            "outs, parts": -1,
            "outs, parts, None": -1,
            "outs, parts, to('AllToAll')": -1,
            "output_tensors=outs, input_tensors=parts": -1,
            "inputs=parts, outputs=outs, opts=to('AllToAll')": -1,
        },
    ),
    "all_to_all_single alltoall_base": (
        "all_to_all",
        32,
        {
            "whole, sent, [], []": -1,
            "whole, sent, [2] * 4, [2] * 4, to('AllToAll')": -1,
            "whole, sent, [], [], opts=to('AllToAll')": -1,
            "whole, sent, [], [], limit": -1,
            "output=whole, input=sent, output_split_sizes=[], input_split_sizes=[]": -1,
        },
    ),
}
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


@pytest.mark.parametrize("backend", [BACKEND, "ring"])
def test_each_form_of_a_call_is_recorded_once(backend: str, tmp_path: Path) -> None:
    """With options, with what torch's overloads take in their place, or with neither; each argument also by keyword."""
    in_barrier = 4 if backend == "ring" else 0  # which sums one number
    expected = {
        f"{method}({form})": [(kind, size_bytes or in_barrier, root)]
        for methods, (kind, size_bytes, forms) in FORMS.items()
        for method in methods.split()
        for form, root in forms.items()
    }
    (program := tmp_path / "train.py").write_text(HEAD.replace(BACKEND, backend) + PROGRAM)
    (step,) = trace_of(program, *expected, num_ranks=4).steps
    recorded: list[list[tuple[str, int, int]]] = [[]]
    for call in step.calls:
        if call.collective == "send":  # which follows each form
            recorded.append([])
        else:
            recorded[-1].append((call.collective, call.size_bytes, call.peer))
    assert dict(zip([*expected, "then"], recorded, strict=True)) == {**expected, "then": []}
