"""Data-parallel training: strategies of gradient synchronisation, a training loop, and the launch of ranks.

Importing this package loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringsim.console import needs_torch

if TYPE_CHECKING:
    from ringsim.console import spawn as spawn
    from trainers.data_parallel import DataParallel as DataParallel
    from trainers.launch.environment import distributed_environment as distributed_environment
    from trainers.launch.rendezvous import init_process_group as init_process_group
    from trainers.loop.config import TrainConfig as TrainConfig
    from trainers.loop.trainer import Trainer as Trainer
    from trainers.strategies import STRATEGIES as STRATEGIES
    from trainers.tasks import load_task as load_task

_MODULES = {
    "STRATEGIES": "trainers.strategies",
    "DataParallel": "trainers.data_parallel",
    "TrainConfig": "trainers.loop.config",
    "Trainer": "trainers.loop.trainer",
    "distributed_environment": "trainers.launch.environment",
    "init_process_group": "trainers.launch.rendezvous",
    "load_task": "trainers.tasks",
    "spawn": "ringsim.console",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(needs_torch(f"trainers.{name}"), name="torch") from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
