"""Where a measurement with torch comes from: what `ringsim.provenance` says, and torch and its threads."""

import os
from typing import Any

import torch

import ringsim.provenance


def provenance() -> dict[str, Any]:
    """What a reader must know to judge a figure, for JSON."""
    return {
        **ringsim.provenance.provenance(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
