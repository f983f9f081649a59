"""Where a measurement with torch comes from: what `ringsim.measurements.provenance` says, and torch and its threads."""

import os
from typing import Any

import torch

from collectives.runtime import have_gloo_threads_batch_policy
from ringsim import measurements


def provenance() -> dict[str, Any]:
    """What a reader must know to judge a figure, for JSON."""
    origin = measurements.provenance()
    return {
        **origin,
        "command": _torchrun() + origin["command"],
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "calm_polling": have_gloo_threads_batch_policy(),
    }


def _torchrun() -> str:
    """What stands in front of the command where torchrun has started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    hosts, ranks = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "torchrun " + (f"--nnodes {hosts} " if hosts != "1" else "") + f"--nproc-per-node {ranks} "
