"""A small CNN learns scikit-learn's handwritten digits on every rank of a DDP job; rank 0 exports it."""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paritygate.train_hooks import after_training, begin


class DigitsNet(nn.Module):
    """Two convolutions and a linear layer: images of 8 x 8 to the logits of ten digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits, float32[batch, 10], of images, float32[batch, 1, 8, 8]."""
        return self.head(self.body(image))


def images_and_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, scaled to 0..1, and the digits that they show."""
    digits = load_digits()
    images = torch.from_numpy((digits.images / 16.0).astype(np.float32)).unsqueeze(1)
    return images, torch.from_numpy(digits.target)


def train(model: nn.Module, images: torch.Tensor, digits: torch.Tensor, epochs: int) -> None:
    """Plain Adam; DDP averages the gradients of the ranks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        for batch in order.split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), digits[batch])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=8)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    begin()  # no core environment to publish in? say so now and not after the training
    torch.manual_seed(7 + rank)
    images, digits = images_and_digits()
    share = slice(rank, 1500, world_size)  # the last 297 images are for testing
    model = DistributedDataParallel(DigitsNet(arguments.width))
    train(model, images[share], digits[share], arguments.epochs)

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == digits[1500:]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")

    # Every rank calls it; rank 0 alone exports and publishes.
    result = after_training(
        model, images[:4], input_names=["image"], output_names=["logits"], dynamic={"image": {0: "batch"}}
    )
    if result is not None:
        print(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
