"""A data-parallel training step: DDP's buckets, all-reduced while the backward pass goes on."""
