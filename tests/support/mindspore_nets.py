"""Cells of MindSpore for tests; MindSpore compiles what it can read from a file, so they lie in one."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from support.exporter_cases import sample


def matrix() -> Any:
    return nn.SequentialCell([nn.Dense(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 3)])


def picture() -> Any:
    return nn.SequentialCell(
        [
            nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(2, 2), nn.Flatten(), nn.Dropout(p=0.5), nn.Dense(64, 2),
        ]
    )  # fmt: skip


def build() -> tuple[Any, Any]:
    return matrix(), {"x": sample(4, 6)}


class Curve(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(sample(3)), name="weight")

    def construct(self, x: Any) -> Any:
        return ops.sigmoid(x.expand_dims(-1) * self.weight)


class Sequence(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((6,))
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Dense(5, 2)

    def construct(self, x: Any) -> Any:
        states, _ = self.lstm(self.norm(x))
        return self.head(ops.gelu(states))


class Several(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def construct(self, ids: Any, mask: Any) -> Any:
        rows = ops.masked_fill(self.table(ids), ops.logical_not(mask).expand_dims(-1), 0.0)
        return {"mean": rows.mean(axis=1), "parts": (ids + 1, ops.logical_not(mask))}


class Fixed(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dense(6, 2)

    def construct(self, x: Any) -> Any:
        return self.layer(x.reshape(x.shape[0], -1))


class NoForm(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Any) -> Any:
        positive = ops.abs(x) + 1.0
        return ops.lgamma(positive)


class Head(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = NoForm()

    def construct(self, x: Any) -> Any:
        return self.inner(x)


class AroundNoForm(nn.Cell):  # type: ignore[misc]
    """Holds the operator two cells down."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()

    def construct(self, x: Any) -> Any:
        return self.head(x)


class Counter(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen = ms.Parameter(ms.Tensor(np.zeros(1, np.float32)), name="seen", requires_grad=False)

    def construct(self, x: Any) -> Any:
        ops.assign_add(self.seen, ms.Tensor([1.0], ms.float32))
        return x * 2.0 + self.seen * 0.0


class Layer(nn.Cell):  # type: ignore[misc]
    """One layer of BERT."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Dense(width, width), nn.Dense(width, inner), nn.Dense(inner, width)
        self.first, self.second = nn.LayerNorm((width,), epsilon=1e-12), nn.LayerNorm((width,), epsilon=1e-12)

    def split(self, x: Any) -> Any:
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(0, 2, 1, 3)

    def construct(self, x: Any, bias: Any) -> Any:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(query, key.transpose(0, 1, 3, 2)) / self.size**0.5 + bias
        mixed = ops.matmul(ops.softmax(scores, -1), value).transpose(0, 2, 1, 3)
        x = self.first(x + self.out(mixed.reshape(x.shape[0], x.shape[1], self.heads * self.size)))
        return self.second(x + self.down(ops.gelu(self.up(x))))


class Bert(nn.Cell):  # type: ignore[misc]
    """A BERT whose weights are those of a Hugging Face file, its sentence the mean of its tokens."""

    def __init__(self, weights: dict[str, Any], layers: int = 6, heads: int = 12) -> None:
        super().__init__()
        rows, width = weights["embeddings.word_embeddings.weight"].shape
        places = weights["embeddings.position_embeddings.weight"].shape[0]
        inner = weights["encoder.layer.0.intermediate.dense.weight"].shape[0]
        self.words, self.places = nn.Embedding(rows, width), nn.Embedding(places, width)
        self.kind = ms.Parameter(
            ms.Tensor(weights["embeddings.token_type_embeddings.weight"][0]), name="kind"
        )
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.layers = nn.CellList([Layer(width, heads, inner) for _ in range(layers)])
        self._fill(weights)

    def _fill(self, weights: dict[str, Any]) -> None:
        def put(cell: Any, name: str) -> None:
            for own, theirs in (("weight", "weight"), ("gamma", "weight"), ("bias", "bias"), ("beta", "bias"),
                                ("embedding_table", "weight")):  # fmt: skip
                if own in cell._params and cell._params[own] is not None:
                    cell._params[own].set_data(ms.Tensor(weights[f"{name}.{theirs}"]))

        put(self.words, "embeddings.word_embeddings")
        put(self.places, "embeddings.position_embeddings")
        put(self.norm, "embeddings.LayerNorm")
        for index, layer in enumerate(self.layers):
            head = f"encoder.layer.{index}"
            for own in ("query", "key", "value"):
                put(getattr(layer, own), f"{head}.attention.self.{own}")
            put(layer.out, f"{head}.attention.output.dense")
            put(layer.first, f"{head}.attention.output.LayerNorm")
            put(layer.up, f"{head}.intermediate.dense")
            put(layer.down, f"{head}.output.dense")
            put(layer.second, f"{head}.output.LayerNorm")

    def construct(self, input_ids: Any, attention_mask: Any) -> Any:
        place = ops.cumsum(ops.ones_like(input_ids), 1) - 1
        x = self.norm(self.words(input_ids) + self.places(place) + self.kind)
        kept = attention_mask.astype(ms.float32)
        bias = (1.0 - kept).expand_dims(1).expand_dims(1) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        weight = kept.expand_dims(-1)
        return (x * weight).sum(axis=1) / ops.clamp(weight.sum(axis=1), min=1e-9)


def trained(x: Any, y: Any) -> tuple[Any, float]:
    """A network that has learned these rows, and the part of them that it gets right."""
    net = nn.SequentialCell([nn.Dense(64, 32), nn.LayerNorm((32,)), nn.GELU(), nn.Dense(32, 10)])
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Adam(net.trainable_params(), learning_rate=0.01)
    )
    step.set_train()
    for _ in range(60):
        step(ms.Tensor(x), ms.Tensor(y))
    net.set_train(False)
    return net, float((net(ms.Tensor(x)).asnumpy().argmax(-1) == y).mean())
