"""`ringsim trace --fake`: values, memory and files of programs whose tensors have no data."""

from pathlib import Path

import pytest

from tests.collectives.recording.recorded import HEAD, trace_of
from tests.forked import ROOT

DATA = """
class Native:  # as code in C or Rust does, this asks for the address of the memory, and then uses it
    def __init__(self, tensor): self.address = getattr(tensor, "data" + "_ptr")()
    def write(self, size): ctypes.memset(self.address, 1, size)
averaged = torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
copied = copy.deepcopy([averaged, half := torch.tensor(0.5)])
assert copied[1].fake_mode is half.fake_mode
assert copy.deepcopy(torch.arange(3)).tolist() == [0, 1, 2] and copy.deepcopy(torch.tensor(7)).item() == 7
assert copy.deepcopy(optimizer).param_groups[0]["lr"] == 1e-3
assert (torch.arange(8).view(2, 4) == 6).nonzero().tolist() == [[1, 2]]
assert torch.full((2,), 3).tolist() == [3, 3] and torch.tril_indices(2, 2).tolist() == [[0, 1, 1], [0, 0, 1]]
assert not isinstance(torch.arange(4).share_memory_(), torch._subclasses.FakeTensor)
torch.arange(10**12), torch.ones(2**40, dtype=torch.int64)  # too many to have data
counts = torch.zeros(3, dtype=torch.int64)
counts.scatter_add_(0, torch.ones(2, 3).argmax(1), torch.tensor([5, 5]))
assert counts.tolist() == [1, 1, 1] and (counts + 1)[0].item() == 1  # nobody knows them
buffer = torch.empty(2**16, dtype=torch.uint8)
Native(buffer).write(2**16)
ones, others = torch.ones(2), torch.ones(2)
assert ones.data_ptr() == ones.view(2, 1).data_ptr() != others.data_ptr()
assert len(ctypes.string_at(ctypes.memset(ones.data_ptr(), 1, 8), 8)) == 8
file = torch.UntypedStorage.from_file(__file__, shared=False, nbytes=8)
assert isinstance(torch.asarray(file[0:8], dtype=torch.float32), torch._subclasses.FakeTensor)
train()
"""


def test_without_data_what_has_values_keeps_them(tmp_path: Path) -> None:
    """Copies are right, values that are not known are 1, and what other libraries read and write is memory."""
    (program := tmp_path / "train.py").write_text(HEAD + DATA)
    trace_of(program, is_fake=True)


CHECKPOINTS = """
import torch.distributed.checkpoint as checkpoint
while True:
    train(1)
    torch.save({"weights": weights}, sys.argv[1] + "/weights.pt")
    checkpoint.save({"weights": weights}, checkpoint_id=sys.argv[1])
"""


def test_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    """With --fake, torch.save and torch.distributed.checkpoint write nothing, since tensors have no data."""
    program, saved = tmp_path / "saves.py", tmp_path / "saved"
    program.write_text(HEAD + CHECKPOINTS)
    saved.mkdir()
    names = ("weights.pt", ".metadata", "__0_0.distcp")
    for name in names:
        (saved / name).write_text("of a real run")
    trace_of(program, str(saved), is_fake=True)
    assert {file.name: file.read_text() for file in saved.iterdir()} == dict.fromkeys(names, "of a real run")


def test_llama_computes_half_of_its_products_again() -> None:
    """Of the seven of each block the second, fourth and sixth; all others are computed once forward, twice backward.

    Of attention the positions count that the causal mask leaves: 4 W for each pair of them, layer and sequence forward,
    2.5 times as many backward, and it is not computed again.
    """
    layers, batch, length, width, hidden, vocabulary = 2, 2, 1024, 4096, 14336, 128256
    trace = trace_of(ROOT / "examples" / "llama.py", "--layers", str(layers), "--length", str(length), is_fake=True)
    (step,) = trace.steps
    keys = width * width // 4
    of_block = 2 * width**2 + 2 * keys + 3 * width * hidden
    again = keys + width**2 + width * hidden
    products = batch * length * (6 * (layers * of_block + width * vocabulary) + 2 * layers * again)
    attention = layers * batch * 4 * width * (length * (length + 1) // 2) * 7 // 2
    assert step.flops == products + attention
    gathered = sum(call.size_bytes for call in step.calls if call.collective == "all_gather")
    # The last block and what is at the root stay gathered; the other blocks are gathered twice, in bfloat16.
    assert gathered == pytest.approx(2 * ((2 * layers - 1) * of_block + 2 * width * vocabulary), rel=0.01)


@pytest.mark.slow
def test_llama_is_recorded_on_a_laptop() -> None:
    """One rank of 128 reduces each of the 8.03 billion parameters once, in float32."""
    trace = trace_of(ROOT / "examples" / "llama.py", num_ranks=128, is_fake=True)
    scattered = sum(call.size_bytes for call in trace.steps[0].calls if call.collective == "reduce_scatter")
    assert scattered == pytest.approx(4 * 8.03e9, rel=0.001)
