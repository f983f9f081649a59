"""Whatever would train the ranks apart, or otherwise than asked, is an error on every rank.

Most of it concerns sharded strategies, with which a rank has the mean gradients of its share only.
"""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import BUCKETS, SGD, Tied, backward, inputs, seeded, small_model
from trainers.data_parallel import DataParallel

Use = Callable[[DataParallel, torch.optim.Optimizer, int], object]


def own_optimizer(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Made of all parameters, as with other strategies."""
    backward(parallel, step)
    parallel.unshard()
    SGD(parallel.parameters()).step()


def by_hand(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Without any optimizer, past autograd's counters."""
    parallel.zero_grad()
    backward(parallel, step)
    for parameter in parallel.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.1 * parameter.grad


def own_clipping(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """By torch's function, of what has left the parameters; those of fsdp are whole, and the optimizer has rows."""
    backward(parallel, step)
    parallel.unshard()
    nn.utils.clip_grad_norm_(parallel.parameters(), 1e-3)
    optimizer.step()


def never_synchronised(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The last backward pass communicates nothing, either."""
    optimizer.zero_grad()
    with parallel.no_sync():
        backward(parallel, step)
    optimizer.step()


def moved(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Into memory that is not gathered into."""
    parallel.double().float()
    optimizer.zero_grad()
    backward(parallel, step)
    optimizer.step()


def with_one_more_group(_: DataParallel, optimizer: torch.optim.Optimizer, __: int) -> None:
    """Which nobody would step."""
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.step()


def forgotten_by_hand(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of one parameter, so that the step leave it as it is."""
    backward(parallel, step)
    next(parallel.parameters()).grad = None
    optimizer.step()


def made_before(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """An optimizer of a model that is wrapped only then."""
    model = small_model()
    early = SGD(model.parameters())
    DataParallel(model, parallel.strategy.name, parallel.group)  # type: ignore[arg-type]
    early.step()


def of_two_dtypes(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """A layer has parameters of both."""
    DataParallel(seeded(Tied), parallel.strategy.name, parallel.group)  # type: ignore[arg-type]


def compiled(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """A model that is compiled."""
    parallel.compile()


def synchronised_by_hand(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """Gradients that are synchronised after `no_sync`."""
    with parallel.no_sync():
        parallel(inputs(0)).sum().backward()
    parallel.sync_gradients()


def assigned(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """Another tensor in place of a parameter's rows."""
    for parameter in parallel.parameters():
        parameter.data = parameter.data * 2
    parallel(inputs(0))


def assigned_whole(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """Another tensor in place of a whole parameter."""
    parallel.unshard()
    for parameter in parallel.parameters():
        parameter.data = parameter.data * 2
    parallel(inputs(0))


def replaced(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """A layer that is given another parameter."""
    parallel.module[0].weight = nn.Parameter(torch.zeros(4, 3))  # type: ignore[index]
    parallel(inputs(0))


def hooked(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """A hook that would double a gradient."""
    loss = parallel(inputs(0)).sum()
    next(parallel.parameters()).register_hook(lambda gradient: gradient * 2)
    loss.backward()


def retried(parallel: DataParallel, optimizer: torch.optim.Optimizer, _: int) -> None:
    """A second backward pass through what has failed, and a step."""
    out = parallel(inputs(0))

    def fail(_: torch.Tensor) -> None:
        raise ArithmeticError("of the program")

    hook = out.register_hook(fail)
    with pytest.raises(ArithmeticError):
        out.sum().backward(retain_graph=True)
    hook.remove()
    out.sum().backward()
    optimizer.step()


def written_early(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """Whole parameters that are written to while a backward pass is still to come, which lets go of them."""
    loss = parallel(inputs(0)).sum()
    parallel.unshard()
    torch.nn.init.zeros_(parallel.module[0].weight)  # type: ignore[index]
    loss.backward()
    parallel(inputs(0))


def cast(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """To another dtype."""
    backward(parallel, step)
    parallel.double()


def from_before_a_step(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A backward pass through a forward pass with other parameters."""
    backward(parallel, step)
    loss = parallel(inputs(0)).sum()
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()


def changed(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """A parameter that is not there now."""
    backward(parallel, step)
    torch.nn.init.ones_(parallel.model[2].bias)  # type: ignore[index]


def borrowed(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Another layer's weight."""
    parallel.model[1].register_forward_hook(lambda *_: parallel.model[0].weight.sum())  # type: ignore[index]
    backward(parallel, step)


def copied(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Between two passes."""
    backward(parallel, step)
    copy.deepcopy(parallel.module)


def saved(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """The state of the plain model."""
    backward(parallel, step)
    parallel.module.state_dict()


def second_optimizer(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """Of a half of the model."""
    parallel.optimizer(lambda parameters: SGD(list(parameters)[3:]))


def used(group: dist.ProcessGroup, name: str, use: Use) -> str:
    """Return the error in four steps with that strategy."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    try:
        for step in range(4):
            use(parallel, optimizer, step)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


FOREIGN = "ShardingError: SGD was constructed from the model's own parameters: with"
REDUCED = "ShardingError: zero1, zero2 and zero3 leave no gradient in the model's parameters"
UNSYNCHRONISED = "ShardingError: there are gradients that have not been synchronised"
SET_TO_NONE = "ShardingError: the gradients of some parameters were set to None"
EMPTY = "is empty: with zero3 a parameter is there only while its layer is called"
MOVED = "ShardingError: the model's parameters have been moved, or have another dtype, since they were sharded"
FSDP_UNSYNCHRONISED = "ShardingError: fsdp: some gradients have not been synchronised"


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        ("zero1", own_optimizer, f"{FOREIGN} zero1 "),
        ("zero1", made_before, f"{FOREIGN} zero1 "),
        ("zero1", by_hand, REDUCED),
        ("zero1", own_clipping, REDUCED),
        ("zero1", never_synchronised, UNSYNCHRONISED),
        ("zero1", moved, MOVED),
        ("zero1", with_one_more_group, "ValueError: SGD: must be made of exactly the parameters that the function"),
        (BUCKETS, own_optimizer, f"{FOREIGN} zero2 "),
        (BUCKETS, by_hand, REDUCED),
        (BUCKETS, forgotten_by_hand, SET_TO_NONE),
        (BUCKETS, from_before_a_step, "RuntimeError: one of the variables needed for gradient computation has been"),
        ("zero3", own_optimizer, f"{FOREIGN} zero3 "),
        ("zero3", own_clipping, REDUCED),
        ("zero3", never_synchronised, UNSYNCHRONISED),
        ("zero3", cast, "RuntimeError: 0.weight has become torch.float64 since the model was wrapped"),
        ("zero3", compiled, "ValueError: zero3: its passes cannot be compiled; use zero1 or zero2"),
        ("zero3", from_before_a_step, "ShardingError: a backward pass belongs to a forward pass from before the last"),
        ("zero3", changed, f"ShardingError: 2.bias {EMPTY}"),
        ("zero3", borrowed, f"ShardingError: 0.weight {EMPTY}"),
        ("zero3", copied, f"ShardingError: 0.weight {EMPTY}"),
        ("zero3", saved, f"ShardingError: 0.weight {EMPTY}"),
        ("fsdp", own_optimizer, f"{FOREIGN} fsdp "),
        ("fsdp", made_before, f"{FOREIGN} fsdp "),
        ("fsdp", own_clipping, REDUCED),
        ("fsdp", of_two_dtypes, "ValueError: fsdp: a layer has parameters of torch.float32, torch.float64, and torch"),
        ("fsdp", compiled, "ValueError: fsdp: its passes cannot be compiled; use ddp or zero2"),
        ("fsdp", synchronised_by_hand, FSDP_UNSYNCHRONISED),
        ("fsdp", never_synchronised, FSDP_UNSYNCHRONISED),
        ("fsdp", retried, FSDP_UNSYNCHRONISED),
        ("fsdp", assigned, MOVED),
        ("fsdp", assigned_whole, MOVED),
        ("fsdp", replaced, "RuntimeError: 0.weight is new or requires a gradient only since the model was wrapped"),
        ("fsdp", hooked, "ShardingError: fsdp does not call the hooks of Tensor.register_hook on parameters: use reg"),
        ("fsdp", written_early, "ShardingError: fsdp: values that were written to parameters after unshard() are l"),
        ("local_sgd", second_optimizer, "ValueError: local_sgd: model.optimizer(...) has already made an optimizer, "),
        ("diloco", own_optimizer, f"{FOREIGN} diloco "),
    ],
)
def test_misuse_is_an_error_on_every_rank(ranks: RankPool, name: str, use: Use, message: str) -> None:
    """In one line, and with what to do."""
    for error in ranks.run(used, name, use, num_ranks=2):
        assert error.startswith(message)
        assert "\n" not in error or error.startswith("RuntimeError: one of")  # torch's
