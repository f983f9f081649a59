"""Two views of images, normalized over all ranks, and compared with those of all ranks, like SimCLR and MoCo."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, SIZE, CLASSES = 16, 4, 16, 8

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
encoder = nn.Sequential(
    *(nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()),
    *(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES, bias=False)),
)
encoder = nn.SyncBatchNorm.convert_sync_batchnorm(encoder).cuda().to(memory_format=torch.channels_last)
teacher = copy.deepcopy(encoder).requires_grad_(False)
model = DistributedDataParallel(encoder, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")

for _ in range(6):
    images = torch.rand(2, BATCH, 3, SIZE, SIZE).to("cuda", memory_format=torch.channels_last_3d)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        features = F.normalize(model(images[0]), dim=1)
        with torch.no_grad():
            keys = F.normalize(teacher(images[1]), dim=1)
        keys = torch.cat(all_gather(keys))
        loss = F.cross_entropy(features @ keys.T, torch.arange(BATCH, device="cuda") + BATCH * local_rank)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for mean, parameter in zip(teacher.parameters(), encoder.parameters(), strict=True):
            mean.lerp_(parameter, 0.01)
