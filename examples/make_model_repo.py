"""Makes model_repo/: one small proven model, so that a clone can serve something without training anything.

Run it after a change of the bundle's or the certificate's schema: `.venv/bin/python examples/make_model_repo.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_iris
from torch import nn

from paritygate.converter.exporters import export_model
from paritygate.converter.parity import validate_bundle, write_evidence
from paritygate.serving.publish import publish_bundle

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repo"


def train() -> nn.Module:
    """A small network on Fisher's irises: float32[batch, 4], centimetres -> probabilities float32[batch, 3]."""
    torch.manual_seed(0)
    data = load_iris()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.nll_loss(model(x).log(), y).backward()
        optimizer.step()
    return model


def main() -> None:
    """Train, export, prove and publish as version 1."""
    shutil.rmtree(REPOSITORY / "iris", ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = export_model(
            train(),
            Path(scratch) / "bundle",
            name="iris",
            inputs={"flower": torch.tensor(load_iris().data[:8], dtype=torch.float32)},
            output_names=["probabilities"],
            dynamic={"flower": {0: "batch"}},
        )
        certificate = validate_bundle(bundle)
        write_evidence(bundle, certificate)
        print(publish_bundle(bundle.path, REPOSITORY), certificate.reason)


if __name__ == "__main__":
    main()
