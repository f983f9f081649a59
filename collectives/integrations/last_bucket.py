"""The last bucket of DistributedDataParallel: a call that its caller waits for at once, though it asks not to wait.

A communication hook is told which bucket is the last, a process group is not; so it is marked where it is allocated.
"""

import torch


def mark_last_bucket(bucket: torch.Tensor) -> None:
    """Let `is_last_bucket` know a tensor that has all of its memory to itself."""
    bucket.untyped_storage().is_last_bucket = True  # type: ignore[attr-defined]


def is_last_bucket(tensor: torch.Tensor) -> bool:
    """Whether this is called in a backward pass, in which a bucket that was marked is to be reduced."""
    is_in_backward = torch._C._current_graph_task_id() >= 0
    return is_in_backward and getattr(tensor.untyped_storage(), "is_last_bucket", False)
