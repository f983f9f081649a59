"""Models that the CPU bounds, without torch.compile: inference by Hugging Face, training of DenseNet."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

IMAGE_CLASSIFIERS = {
    "vit": ("ViT", {"num_labels": 1000}),
    "beit": ("Beit", {"num_labels": 21_841, "use_relative_position_bias": True}),
    "resnet": ("ResNet", {"num_labels": 1000}),
    "convnext": ("ConvNext", {"hidden_sizes": [192, 384, 768, 1536], "depths": [3, 3, 27, 3], "num_labels": 1000}),
}


def model_of(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the model of the published table, and its inputs for one image."""
    import transformers

    if name in IMAGE_CLASSIFIERS:
        kind, options = IMAGE_CLASSIFIERS[name]
        config = getattr(transformers, f"{kind}Config")(**options)
        return getattr(transformers, f"{kind}ForImageClassification")(config), {"pixel_values": image(224)}
    if name == "segformer":
        config = transformers.SegformerConfig(num_labels=150, decoder_hidden_size=256)
        return transformers.SegformerForSemanticSegmentation(config), {"pixel_values": image(512)}
    if name == "mobilenet":
        config = transformers.MobileNetV2Config(
            image_size=513, num_labels=21, output_stride=8, finegrained_output=False
        )
        return transformers.MobileNetV2ForSemanticSegmentation(config), {"pixel_values": image(513)}
    if name == "owlvit":
        config = transformers.OwlViTConfig(vision_config={"image_size": 768, "patch_size": 32})
        words = torch.ones(2, 16, dtype=torch.int64)
        inputs = {"pixel_values": image(768), "input_ids": words, "attention_mask": words}
        return transformers.OwlViTForObjectDetection(config), inputs
    backbone = transformers.ResNetConfig(depths=[3, 4, 23, 3], out_features=["stage4"])
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone, num_labels=91
    )
    mask = torch.ones(1, 800, 1066, dtype=torch.int64)
    return transformers.DetrForObjectDetection(config), {"pixel_values": image(800, 1066), "pixel_mask": mask}


def image(height: int, width: int = 0) -> Tensor:
    return torch.randn(1, 3, height, width or height)


def inference(name: str) -> Callable[[], None]:
    model, inputs = model_of(name)
    model.cuda().eval()
    inputs = {key: value.cuda() for key, value in inputs.items()}
    # A recorded step ends after an optimizer's.
    optimizer = torch.optim.SGD([torch.zeros(1, device="cuda", requires_grad=True)])

    def step() -> None:
        with torch.no_grad():
            model(**inputs)
        optimizer.step()

    return step


def densenet() -> Callable[[], None]:
    from torchvision.models import densenet121

    model = densenet121().cuda()
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()

    def step() -> None:
        images, labels = torch.randn(16, 3, 128, 128, device="cuda"), torch.randint(1000, (16,), device="cuda")
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    step = densenet() if sys.argv[1] == "densenet" else inference(sys.argv[1])
    for _ in range(3):
        step()
