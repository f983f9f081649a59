"""The fuzzer: attacks that draw cases from a seed, and the campaign that runs them in turn."""
