"""Networks: the costs of messages and reductions, and the resources that they share."""

from ringsim.network.fabric import lay_out, nic_share, slowdown, with_ports
from ringsim.network.file import load_network, network_text, preset_names, read_network
from ringsim.network.network import BANDWIDTHS, OF_THE_LIBRARY, CalibratedCells, Calibration, Network, parameter_names
from ringsim.network.spec import (
    FabricPoint,
    Host,
    Link,
    MemoryRate,
    MessageCosts,
    Nics,
    PlacedHost,
    Processor,
    Protocol,
    RingStep,
    SharedMemory,
    SlowLink,
    Spec,
    Tuning,
    quantities,
    scaled,
    with_free_bytes,
)
from ringsim.network.topology import (
    NONE,
    Floats,
    InSwitch,
    Ints,
    Jitter,
    Paths,
    Resources,
    Topology,
    connection_ends,
    connection_keys,
)
