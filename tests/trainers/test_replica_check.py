"""Whether two models are the same, bit for bit."""

import torch
from torch import nn

from trainers.replica_check import fingerprint


def test_fingerprints_see_a_single_bit() -> None:
    """Equal models agree; the smallest change of one number does not go unseen, in a buffer neither."""
    model, same, other = (nn.BatchNorm1d(3) for _ in range(3))
    other.running_mean[1] = torch.finfo(torch.float32).tiny
    assert fingerprint(model) == fingerprint(same)
    assert fingerprint(model) != fingerprint(other)
