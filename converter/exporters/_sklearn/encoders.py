"""Encoders whose categories are whole numbers that come as floats.

skl2onnx cuts such a number off before it looks for it, so that 1.7 is the category 1, or rounds it to float32, in
which ids beyond 2**24 are not apart. In scikit-learn a number that is not whole is no category.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.trees import OwnConverters, hand_over
from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.types import Array


def encoder_converters() -> OwnConverters:
    """For encoders that know categories."""
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

    own = {OneHotEncoder: _encode_one_hot, OrdinalEncoder: _encode, TargetEncoder: _encode}
    return OwnConverters(own, {}, {})


def _encode(scope: Any, operator: Any, container: Any) -> None:
    """As skl2onnx does, with whole numbers in the place of floats where all categories are whole."""
    from skl2onnx.common._registration import get_converter

    categories, inputs, start = operator.raw_operator.categories_, [], 0
    for value in operator.inputs:
        width = value.type.shape[1] or len(categories)  # a matrix that stands alone may leave it open
        known = categories[start : start + width]
        inputs.append(_as_codes(scope, container, value, known) if all(map(_are_whole, known)) else value)
        start += width
    told = SimpleNamespace(
        raw_operator=operator.raw_operator, inputs=inputs, output_full_names=operator.output_full_names
    )
    get_converter(operator.type)(scope, told, container)


def _encode_one_hot(scope: Any, operator: Any, container: Any) -> None:
    """The unknown is nothing also for `infrequent_if_exist` without any, where skl2onnx has onnxruntime raise."""
    before = len(container.nodes)
    _encode(scope, operator, container)
    encoder = operator.raw_operator
    infrequent = getattr(encoder, "infrequent_categories_", ())
    if encoder.handle_unknown == "error" or any(some is not None for some in infrequent):
        return
    for node in container.nodes[before:]:
        if node.op_type == "OneHotEncoder":
            next(attribute for attribute in node.attribute if attribute.name == "zeros").i = 1


def _are_whole(categories: Array) -> bool:
    """Whether all are numbers that int64 holds."""
    if not all(isinstance(category, int | float | np.number) for category in categories.tolist()):
        return False
    numbers = categories.astype(np.float64)
    return bool(np.all((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**63)))


def _as_codes(scope: Any, container: Any, value: Any, categories: Sequence[Array]) -> Any:
    """An input of floats as int64; what is not whole becomes a number that is no category. Others stay."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType

    if not isinstance(value.type, FloatTensorType | DoubleTensorType):
        return value
    kind = np.float64 if isinstance(value.type, DoubleTensorType) else np.float32
    codes = scope.declare_local_variable("codes", Int64TensorType(value.type.shape))
    graph, name = GraphBuilder(), value.full_name
    is_whole = graph.add("Equal", name, graph.add("Floor", name))
    told = graph.add("Where", is_whole, name, graph.constant(kind(_no_category(categories))))
    hand_over(graph, scope, container, {name: name, graph.cast(told, np.int64): codes.full_name})
    return codes


def _no_category(categories: Sequence[Array]) -> int:
    """The smallest whole number that is no category of any of these columns."""
    known = {float(category) for column in categories for category in column}
    return next(number for number in range(len(known) + 1) if number not in known)
