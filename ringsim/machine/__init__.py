"""The machine as measurements will find it: what is read of it, and what that means for them."""

from ringsim.machine.examination import Level, MachineFinding, examine
from ringsim.machine.reading import gloo_address, is_loopback, read_machine
