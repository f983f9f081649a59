"""A program with Lightning, to be started by torchrun with the name of a backend and a directory for what it leaves."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import collectives  # noqa: F401  makes "ring" known


class Plane(LightningModule):
    """Fits a plane through points."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The loss, which is logged as the mean over the ranks."""
        points, heights = batch
        loss: torch.Tensor = (self.plane(points) - heights).square().mean()
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train a few epochs; Lightning shares the samples among the ranks."""
    backend, folder = sys.argv[1:]
    seed_everything(0)
    points = torch.randn(64, 3)
    data = DataLoader(TensorDataset(points, points @ torch.tensor([[1.0], [-2.0], [3.0]])), batch_size=8)
    model = Plane()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = DDPStrategy(process_group_backend=backend)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=8, default_root_dir=folder, **quiet)
    trainer.fit(model, data)
    loss, weights = trainer.callback_metrics["loss"].item(), model.plane.weight.flatten().tolist()
    everywhere: list[Any] = [None, None]
    dist.all_gather_object(everywhere, [loss, *weights])
    if trainer.is_global_zero:
        first, second = everywhere
        print(f"on {dist.get_backend()}: loss and weights {first}, the same on both: {first == second}")


if __name__ == "__main__":
    main()
