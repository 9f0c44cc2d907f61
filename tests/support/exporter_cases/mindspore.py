"""The MindSpore models of the exporter conformance suite."""

from __future__ import annotations

from typing import Any

from support.exporter_cases import ExporterCases, sample


def _matrix() -> tuple[Any, dict[str, Any]]:
    import mindspore as ms
    from mindspore import nn

    ms.set_seed(0)
    net = nn.SequentialCell([nn.Dense(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 3)])
    return net, {"inputs": {"x": sample(4, 6)}}


CASES = ExporterCases(
    module="mindspore",
    environment="mindspore",
    ranks={"rank2": _matrix},
    guarded=_matrix,
)
