"""Benchmark of our collectives and of torch.distributed's: `torchrun --nproc-per-node 4 -m collectives.benchmark`."""
