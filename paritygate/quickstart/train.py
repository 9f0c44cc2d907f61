"""The quickstart's training script: a small CNN on handwritten digits, data-parallel over all ranks.

It is an ordinary PyTorch script; what paritygate adds is the one call at its end. Run by the launcher as
`torchrun ... -m paritygate.quickstart.train --width 8 ...`.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paritygate.quickstart.digits import Split, load_splits
from paritygate.train_hooks import after_training

_BATCH = 64
_SEED = 3
_LEAST_PROBABILITY = 1e-9


class DigitsNet(nn.Module):
    """Two convolutions and a linear layer: float32[batch, 1, 8, 8] -> probabilities float32[batch, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width * 16, 10), nn.Softmax(dim=1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The probability of each digit, for each image."""
        probabilities: torch.Tensor = self.classifier(self.features(image))
        return probabilities


def train(width: int, epochs: int) -> DistributedDataParallel:
    """Train on this rank's share of the data; every rank ends with the same weights."""
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)
    # A convolution with one input channel has two equal memory layouts; DDP copies, and says so once a rank.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    model = DistributedDataParallel(DigitsNet(width))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    images, labels = _own_share(load_splits()[0])
    for epoch in range(epochs):
        loss = _run_epoch(model, optimizer, images, labels, epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{epochs}  loss {loss:.3f}", flush=True)  # noqa: T201  a script speaks
    return model


def _own_share(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Every world-size-th image, cut to the same count on each rank, or DDP would wait for ever."""
    rank, world = dist.get_rank(), dist.get_world_size()
    usable = len(split.images) // world * world
    return (
        torch.from_numpy(split.images[:usable][rank::world]),
        torch.from_numpy(split.labels[:usable][rank::world]),
    )


def _run_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    epoch: int,
) -> float:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    total, steps = 0.0, 0
    for rows in order.split(_BATCH):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(images[rows]).clamp_min(_LEAST_PROBABILITY).log(), labels[rows])
        loss.backward()
        optimizer.step()
        total, steps = total + float(loss.detach()), steps + 1
    return total / steps


def main() -> None:
    """Train, save the weights, and hand the model over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--weights", type=Path, required=True, help="Where rank 0 saves the state dict.")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    model = train(arguments.width, arguments.epochs)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), arguments.weights)
    dist.barrier()
    dist.destroy_process_group()

    after_training(
        model,
        {"image": load_splits()[0].images[:8]},  # real ones: their scale is what the probes take
        name="digits",
        repository=arguments.repository,
        bundle_dir=arguments.bundle,
        output_names=["probabilities"],
        dynamic={"image": {0: "batch"}},
    )


if __name__ == "__main__":
    main()
