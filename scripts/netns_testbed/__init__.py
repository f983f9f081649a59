"""A network of hosts on one machine, with links of known rates (docs/testbed.md). Starts torchrun, imports no torch."""

from netns_testbed.description import network_text
from netns_testbed.jobs import Ending
from netns_testbed.leftovers import clean
from netns_testbed.testbed import Testbed, run_ranks, why_not

__all__ = ["Ending", "Testbed", "clean", "network_text", "run_ranks", "why_not"]
