"""Lightning's Trainer with DDP: logged values, a metric, a sanity check of the validation."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
        self.accuracy = MulticlassAccuracy(10)

    def training_step(self, batch, index):
        x, y = batch
        assert x.device == self.device
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.accuracy(self.layers(x), y)
        self.log("accuracy", self.accuracy, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]


data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
trainer = lightning.Trainer(
    accelerator="auto",
    devices="auto",
    strategy="ddp",
    max_steps=12,
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    gradient_clip_val=1.0,
    num_sanity_val_steps=2,
    val_check_interval=8,
    num_nodes=1,
    enable_model_summary=True,
)
trainer.fit(Module(), DataLoader(data, 64, num_workers=2), DataLoader(data, 64))
