"""The classification extension: the best classes of an output as text, instead of the tensor.

Source: triton-inference-server/server, docs/protocol/extension_classification.md.
"""

from __future__ import annotations

import numpy as np

from paritygate.serving.errors import InvalidArgument
from paritygate.serving.types import DATATYPES, InferTensor


def best_classes(tensor: InferTensor, count: int, *, labels: tuple[str, ...], batched: bool) -> InferTensor:
    """The `count` largest values of each row as `value:index` or `value:index:label`.

    Equal values keep the order of their indexes and NaN comes last, so that the same tensor gives the same answer.

    Args:
        tensor: The output.
        count: How many classes; more than there are gives all.
        labels: Class names by index; an index beyond them has no label.
        batched: Whether axis 0 is the batch; the index then counts through the rest of the row.

    Raises:
        InvalidArgument: If the output holds text, or no values at all.
    """
    dtype = DATATYPES[tensor.datatype]
    if tensor.array.dtype == object:
        raise InvalidArgument(f"output '{tensor.name}' is BYTES; classification takes an output of numbers.")
    rows = tensor.array.reshape(tensor.array.shape[0], -1) if batched else tensor.array.reshape(1, -1)
    if rows.size == 0:
        raise InvalidArgument(
            f"output '{tensor.name}' has no values to classify: shape {list(tensor.array.shape)}."
        )
    # ~x turns the order of whole numbers around without overflow, which -x cannot.
    keys = -rows.astype(np.float64) if dtype.is_floating else ~rows
    order = np.argsort(keys, axis=1, kind="stable")[:, :count]
    texts = np.empty(order.shape, dtype=object)
    for row, indexes in enumerate(order):
        texts[row] = [_entry(rows[row, index], int(index), labels) for index in indexes]
    return InferTensor(tensor.name, "BYTES", texts if batched else texts[0])


def _entry(value: object, index: int, labels: tuple[str, ...]) -> str:
    # Six decimals, as clients of Triton parse them.
    text = f"{float(value):f}:{index}"  # type: ignore[arg-type]
    return f"{text}:{labels[index]}" if index < len(labels) and labels[index] else text
