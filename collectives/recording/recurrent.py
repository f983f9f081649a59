"""`recurrent_layers`, `packed_sequences`: what nn.LSTM, nn.GRU, nn.RNN and their cells compute, without data.

On a GPU cuDNN computes each layer in one operator. A CPU has one for an LSTM of sequences of one length, and computes
all else step by step. A cell of an LSTM or a GRU is two products and a fused operator on a GPU, and many on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.library import Library

from collectives.recording.placement import CPU, gpu_of, with_data
from collectives.recording.replacements import Replacement, returning
from collectives.recording.without_values import is_unknown

aten = torch.ops.aten
_VF = torch._VF
_PACK, _UNPACK = _VF._pack_padded_sequence, _VF._pad_packed_sequence
_LIBRARY = Library("aten", "IMPL")
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # of the CPU's operator


def _gru_cell(_: Tensor, __: Tensor, state: Tensor, *___: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(state), state.new_empty(len(state), 5 * state.shape[1])


def _gru_cell_backward(gradient: Tensor, workspace: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    gates = [workspace.new_empty(len(workspace), workspace.shape[1] // 5 * 3) for _ in range(2)]
    return *gates, torch.empty_like(gradient), None, None


# Operators that torch has for real GPUs only.
_LIBRARY.impl("_thnn_fused_gru_cell", _gru_cell, "Meta")
_LIBRARY.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward, "Meta")


def recurrent_layers() -> Iterator[Replacement]:
    """Yield replacements that compute layers on a GPU by one operator each, and cells by fused operators."""
    instead = {name: _as_on_gpu(name, getattr(_VF, name)) for name in _MODES}
    yield from ((f"torch._VF.{name}", layer) for name, layer in instead.items())
    for name in ("lstm_cell", "gru_cell"):
        instead[name] = _cell_as_on_gpu(getattr(_VF, name))
        yield from ((f"{module}.{name}", instead[name]) for module in ("torch", "torch._VF"))
    find_builtin: Any = torch.jit._builtins._find_builtin
    names = {id(function): f"aten::{name}" for name, function in instead.items()}
    # TorchScript calls the operators in C++.
    yield "torch.jit._builtins._find_builtin", lambda function: names.get(id(function)) or find_builtin(function)
    yield "torch._meta_registrations.rnn_cell_checkSizes", returning(None)  # which expects biases


def packed_sequences() -> Iterator[Replacement]:
    """Yield replacements that pack sequences of known lengths, whose elements have no data, and unpack them."""
    yield "torch._VF._pack_padded_sequence", _packed
    yield "torch._VF._pad_packed_sequence", _unpacked


def _packed(inputs: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    if is_unknown(lengths) or not is_unknown(inputs):
        packed, batch_sizes = _PACK(inputs, lengths, batch_first)
        return packed, batch_sizes.cpu()  # of numbers on a GPU they are there
    of_each = lengths.tolist()
    sizes = [sum(length > step for length in of_each) for step in range(max(of_each))]
    batch_sizes = with_data(CPU, torch.tensor, sizes, dtype=torch.int64)
    return inputs.flatten(0, 1)[: sum(of_each)].clone(), batch_sizes  # whichever elements


def _unpacked(packed: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, num_steps: int) -> Any:
    """Return padded sequences on the GPU, where C++ would make them on the CPU."""
    if gpu_of(packed) is None:
        return _UNPACK(packed, batch_sizes, batch_first, padding, num_steps)
    sizes, shape, step = batch_sizes.tolist(), packed.shape[1:], 0
    padded = packed.new_full((num_steps, sizes[0], *shape), padding)
    for size, group in groupby(sizes):
        count = len(list(group))
        of_steps, packed = packed[: count * size], packed[count * size :]
        padded[step : step + count, :size] = of_steps.view(count, size, *shape)
        step += count
    lengths = [sum(size > index for size in sizes) for index in range(sizes[0])]
    return padded.transpose(0, 1) if batch_first else padded, with_data(CPU, torch.tensor, lengths, dtype=torch.int64)


def _cell_as_on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the cell in the operators of a GPU.

    The products add the biases, since they are on autocast's list for a CPU, and the fused operators are not. Their
    gradients are a sum for each bias; torch has one for both of an LSTM.
    """

    @wraps(function)
    def called(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:  # noqa: A002
        if gpu_of(input) is None:
            return function(input, hx, w_ih, w_hh, b_ih, b_hh)
        first, *cell = hx if isinstance(hx, Sequence) else (hx,)
        gates = nn.functional.linear(input, w_ih, b_ih), nn.functional.linear(first, w_hh, b_hh)
        fused = aten._thnn_fused_lstm_cell if cell else aten._thnn_fused_gru_cell
        outcome = fused(*gates, (*cell, first)[0].to(gates[0].dtype))
        return outcome[:2] if cell else outcome[0]

    return called


class _Options(NamedTuple):
    """The arguments of torch's functions after the weights."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    is_bidirectional: bool
    batch_first: bool = False


def _as_on_gpu(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any) -> Any:
        is_packed = isinstance(args[3], Sequence)  # weights, which follow the sizes of batches and the states
        inputs, states, weights, *options = (args[0], *args[2:]) if is_packed else args
        states = states if name == "lstm" else (states, states)  # the operator wants two in any case
        if gpu_of(inputs) is None:
            return function(*args)
        if not torch.backends.cudnn.enabled:
            with _without_mkldnn():
                return function(*args)
        if is_packed:  # all steps, as many as the sequences have together, as those of one sequence
            inputs = inputs.unsqueeze(1)
        first = [state[:, :1] if is_packed else state for state in states]
        outputs, *last = _layers(_MODES[name], inputs, first, weights, _Options(*options))
        if is_packed:
            outputs = outputs.squeeze(1)
            last = [state.expand_as(given) for state, given in zip(last, states, strict=True)]
        return (outputs, *(last if name == "lstm" else last[:1]))

    return called


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _layers(
    mode: int, inputs: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], options: _Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, (steps, batch, features) or with the batch first, and the last states of all layers."""
    outputs = inputs.transpose(0, 1) if options.batch_first else inputs
    num_directions, last = 1 + options.is_bidirectional, []
    num_weights = len(weights) // (options.num_layers * num_directions)
    for layer in range(options.num_layers):
        if layer:
            outputs = nn.functional.dropout(outputs, options.dropout, options.train)
        of_directions = []
        for direction in range(num_directions):
            number = layer * num_directions + direction
            own = weights[num_weights * number : num_weights * (number + 1)]
            output, *ends = _layer(mode, outputs, own, [state[number] for state in states], direction == 1, options)
            of_directions.append(output)
            last.append(ends)
        outputs = torch.cat(of_directions, -1) if options.is_bidirectional else output
    outputs = outputs.transpose(0, 1) if options.batch_first else outputs
    return outputs, torch.stack([ends[0] for ends in last]), torch.stack([ends[1] for ends in last])


def _layer(
    mode: int, inputs: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor], is_reverse: bool, options: _Options
) -> tuple[Tensor, Tensor, Tensor]:
    matrices, hidden = weights[:2], states[1].shape[-1]
    biases = weights[2:4] if options.has_biases else [weights[0].new_zeros(len(weights[0]))] * 2
    if mode == _MODES["gru"]:  # whose biases the operator takes for those of four gates
        biases = [nn.functional.pad(bias, (0, hidden)) for bias in biases]
    shape = mode, hidden, options.num_layers, options.has_biases, options.is_bidirectional
    output, state, cell, _ = aten.mkldnn_rnn_layer(
        inputs, *matrices, *biases, *states, is_reverse, [], *shape, False, options.train
    )
    if states[0].shape != states[1].shape:  # which cuDNN projects within its operator
        output = nn.functional.linear(output, weights[-1])
    return output, state, cell
