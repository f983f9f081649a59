"""Names of operations that benchmarks time beside the collectives of `Collective`: no schedule of ours says them."""

SENDRECV = "sendrecv"  # every rank sends to its right neighbour while it receives from its left one
PT2PT_LATENCY = "pt2pt_latency"  # half a round trip between two ranks
PT2PT_BANDWIDTH = "pt2pt_bandwidth"  # one of many messages on the way from one rank to another
