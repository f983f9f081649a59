"""Memory for messages: made, or kept from one collective to the next."""

import torch

from collectives.runtime.transport import CPU


def new_buffer(length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
    """(length,): new memory, which may be written to in any mode, whatever the mode is now.

    pinned: as a GPU copies from and to fastest; not heeded where there is no GPU.
    """
    # What is made in inference mode must not be written to outside of it, where it is used again.
    with torch.inference_mode(mode=False):
        return torch.empty(length, dtype=dtype, device=device, pin_memory=pinned and torch.cuda.is_available())


def reused_buffer(
    kept: torch.Tensor, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False
) -> torch.Tensor:
    """`kept`, or a new buffer if that is too short or of another kind: new memory costs more than the sending."""
    if kept.dtype == dtype and len(kept) >= length and kept.device == device:
        return kept
    return new_buffer(length, dtype, device, pinned)
