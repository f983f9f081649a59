"""Time our collectives beside torch.distributed's: `torchrun --nproc-per-node 4 -m collectives.benchmark`."""

from collectives.benchmark.command import main

if __name__ == "__main__":
    main(prog_name="benchmark")  # in messages, as it is where they do not come from click
