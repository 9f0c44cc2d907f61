"""Support vector machines whose features lie far from zero.

The operators of ONNX for them compute in float32. A radial kernel reads nothing but differences, so features and
support vectors are moved together, in float64, to where float32 holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.trees import OwnConverters, hand_over
from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.types import Array


def kernel_converters() -> OwnConverters:
    """For every support vector machine that keeps its vectors."""
    from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

    return OwnConverters(dict.fromkeys((SVC, NuSVC, SVR, NuSVR, OneClassSVM), _convert), {}, {})


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """As skl2onnx does, with what the operator is given moved to where its support vectors lie."""
    from skl2onnx.common._registration import get_converter

    convert = get_converter(operator.type)
    if (
        operator.type == "SklearnOVRDecisionFunction"
    ):  # what skl2onnx appends for the scores of several classes
        convert(scope, operator, container)
        return
    machine = operator.raw_operator
    center = _center(machine)
    before = len(container.nodes)
    with _moved(machine, center):
        convert(scope, operator, container)
    graph = GraphBuilder()
    names = [value.full_name for value in operator.inputs]
    given = names[0] if len(names) == 1 else graph.add("Concat", *names, axis=1)
    moved = graph.add("Sub", graph.cast(given, np.float64), graph.constant(center[None]))
    result = graph.cast(moved, np.float32)
    centred = scope.get_unique_variable_name("centred")
    for node in container.nodes[before:]:
        if node.op_type.startswith("SVM"):
            node.input[0] = centred
    hand_over(graph, scope, container, {name: name for name in names} | {result: centred})


def _center(machine: Any) -> Array:
    """float64[feature]: where to move zero; only a radial kernel does not mind."""
    width = int(machine.n_features_in_)
    vectors = machine.support_vectors_
    if machine.kernel != "rbf" or not isinstance(vectors, np.ndarray) or not len(vectors):
        return np.zeros(width)
    center: Array = vectors.astype(np.float64).mean(axis=0)
    return center


@contextmanager
def _moved(machine: Any, center: Array) -> Iterator[None]:
    """During one call, the support vectors lie around zero."""
    vectors = machine.support_vectors_
    if center.any():
        machine.support_vectors_ = vectors - center
    try:
        yield
    finally:
        machine.support_vectors_ = vectors
