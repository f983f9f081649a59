"""A network of hosts on one machine, whose links have a known rate; docs/testbed.md. Starts torchrun, imports no torch.

It stands on this floor because nothing above it is needed: it makes interfaces, starts processes and describes
itself as a network file.
"""

from ringsim.testbed.description import network_text
from ringsim.testbed.jobs import Ending
from ringsim.testbed.leftovers import clean
from ringsim.testbed.run_ranks import run_ranks
from ringsim.testbed.testbed import Testbed, why_not

__all__ = ["Ending", "Testbed", "clean", "network_text", "run_ranks", "why_not"]
