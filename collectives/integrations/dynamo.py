"""`untraced`: what torch.compile leaves alone, so that a compiled program may communicate."""

from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

T = TypeVar("T", bound=Any)
HAS_STRATEGIES = hasattr(eval_frame, "_FrameExecStrategy")  # from torch 2.7 on


def untraced(function: T) -> T:
    """Let Dynamo run a function, or each method of a class, and all that it calls, as the Python that it is.

    In a compiled program Dynamo is asked about every Python frame, also about those that torch's C++ calls, as it calls
    the methods of a process group; but it refuses the attributes of a process group. `torch.compiler.disable` does
    the same, with a wrapper for each call, and imports Dynamo, which takes seconds.
    """
    for method in vars(function).values() if isinstance(function, type) else [function]:
        if isinstance(method, FunctionType):
            method._torchdynamo_disable = True  # type: ignore[attr-defined]  # for code that is traced and calls it
            if HAS_STRATEGIES:
                skip = eval_frame._FrameAction.SKIP
                eval_frame.set_code_exec_strategy(method.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function
