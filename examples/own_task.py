"""A task of your own: `torchrun --nproc-per-node 2 -m trainers --task own_task:Sine`, started in this folder."""

import sys

import torch
from torch import nn


class Sine:
    """Fit a wave through points, and be judged between them; each rank makes one with Sine(seed=...)."""

    name = "sine"
    num_samples, global_batch_size, epochs = 512, 32, 50

    def __init__(self, seed):
        self.seed = seed
        self.points = torch.randn(512, 1, generator=torch.Generator().manual_seed(seed))
        self.between = torch.linspace(-2, 2, 100).unsqueeze(1)

    def model(self):
        return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=0.03)

    def batch(self, indices):
        return self.points[indices]

    def loss(self, model, points):
        return (model(points) - torch.sin(2 * points)).square().mean()

    def evaluate(self, model):
        device = next(model.parameters()).device
        return {"loss": self.loss(model, self.between.to(device)).item()}

    def show(self, model):
        return f"it misses the wave by {self.evaluate(model)['loss'] ** 0.5:.3f}"

    def config(self):
        return {"seed": self.seed}


if __name__ == "__main__":
    print(
        "own_task.py: start it with python -m trainers --task own_task:Sine --ranks 2, in its folder", file=sys.stderr
    )
    sys.exit(2)
