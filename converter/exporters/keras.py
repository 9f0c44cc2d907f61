"""Keras models (`.keras`, `.h5`, in memory, Keras 3 and tf_keras) and `tf.Module`s become ONNX through tf2onnx.

A Keras file can carry Python code: a Lambda layer holds marshalled bytecode that runs when the model is called.
Such a file is refused unread unless it is trusted. Files are looked into as a zip or HDF5 with JSON first, so
a half-written or foreign one gets a plain word instead of Keras's traceback.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError, SourceNotFound, UnsafeSource
from paritygate.converter.exporters._tensorflow import Call, TensorFlowModel, source_dtype
from paritygate.converter.exporters.base import Exporter, SourceInput, SourceModel, Versions, Weights
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.types import DType, TensorSpec

KERAS_SUFFIX = ".keras"
HDF5_SUFFIXES = (".h5", ".hdf5")

_FLOATS = ("float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16")
_CONFIG_LIMIT_BYTES = 256 * 1024 * 1024
