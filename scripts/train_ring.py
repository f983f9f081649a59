"""Probe, predict, train and compare: `torchrun --nproc-per-node 4 scripts/train_ring.py`."""

from trainers.cli.main_job import main

if __name__ == "__main__":
    main()
