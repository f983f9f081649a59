"""The logs of other people's benchmarks: nccl-tests, OSU micro-benchmarks and Gloo's own."""
