"""The collectives timed beside torch.distributed's own: `torchrun --nproc-per-node 4 -m collectives.benchmark`."""
