"""A network of hosts on one machine, whose links have a known rate; docs/testbed.md. Starts torchrun, imports no torch.

It stands on this floor because nothing above it is needed: it makes interfaces, starts processes and describes
itself as a network file.
"""

from netns_testbed.description import network_text
from netns_testbed.jobs import Ending
from netns_testbed.leftovers import clean
from netns_testbed.testbed import Testbed, run_ranks, why_not

__all__ = ["Ending", "Testbed", "clean", "network_text", "run_ranks", "why_not"]
