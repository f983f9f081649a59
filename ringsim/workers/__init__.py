"""Who computes many independent tasks: this process, processes on this machine, or a Dask cluster."""

from ringsim.workers.pools import WorkerError
from ringsim.workers.workers import Workers
