"""Runs inside the tensorflow environment: exports models of TensorFlow there, and says what it saw.

    tensorflow_zoo.py OUT       writes OUT/<name>/ (bundles) and OUT/report.json

The report has, for each model, the error if there was one, and the largest distance between the sealed answers and
what the model itself answers to the sealed questions.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import export_model
from support import tensorflow_files as files
from support import tensorflow_nets as nets
from support.model_packages import unpacked

FOLDER = Path(sys.argv[1]) / "files"

Answer = Callable[..., Any]
Entry = tuple[Any, dict[str, Any], Answer | None]
"""A source, the arguments of `export_model`, and what answers for it: takes the inputs in order, gives tensors."""


def _function(*specs: Any) -> Callable[[Callable[..., Any]], Any]:
    return tf.function(input_signature=specs)


FLOATS = tf.TensorSpec([None, 3], tf.float32, "x")

# --- what is taken ------------------------------------------------------------------------------------------


def other_signature() -> Entry:
    """Its inputs are declared as second, first; its outputs as small, large."""
    files.save_with_two_signatures(nets.matrix()[0], FOLDER / "two")
    loaded = tf.saved_model.load(str(FOLDER / "two"))

    def answer(first: Any, second: Any) -> list[Any]:
        said = loaded.signatures["scaled"](first=first, second=second)
        return [said["large"], said["small"]]

    return str(FOLDER / "two"), {"signature": "scaled"}, answer


def frozen_at_an_inner_node() -> Entry:
    """Cut where the user says, before the softmax."""
    source, _ = files.frozen_by_tf_1(FOLDER)
    graph = tf.compat.v1.GraphDef.FromString(Path(source).read_bytes())
    (inner,) = [node.input[0] for node in graph.node if node.name == "probs"]
    held = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    return source, {"output_names": (inner,)}, held.prune("x:0", f"{inner}:0")


def checkpoint_of_other_values() -> Entry:
    """The factory builds a network of other numbers than those of the checkpoint."""
    net = files.matrix_net()
    for variable in net.weights:
        variable.assign(variable * 0.5 + 0.25)
    prefix = tf.train.Checkpoint(model=net).save(str(FOLDER / "other"))
    return prefix, {"factory": "support.tensorflow_files:matrix_net"}, lambda x: net(x)["y"]


def several_inputs_and_nested_outputs() -> Entry:
    @tf.function
    def mixed(numbers: Any, ids: Any, keep: Any) -> Any:
        rows = tf.gather(tf.reshape(tf.range(40, dtype=tf.float32), [10, 4]), ids)
        kept = tf.where(keep[:, None], numbers, -numbers)
        return {"z": kept + rows, "a": (kept, {"m": tf.reduce_sum(rows, 1), "b": ids * 2})}

    example = (
        np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), np.array([1, 9]), np.array([True, False]),
    )  # fmt: skip
    options = {
        "inputs": example, "integer_ranges": {"ids": (0, 9)},
        "dynamic": {name: {0: "batch"} for name in ("numbers", "ids", "keep")},
    }  # fmt: skip
    return mixed, options, lambda *given: tf.nest.flatten(_in_order(mixed(*given)))


def _in_order(answer: Any) -> list[Any]:
    return [answer["z"], answer["a"][0], answer["a"][1]["m"], answer["a"][1]["b"]]


def words() -> Entry:
    @_function(tf.TensorSpec([None], tf.string, "words"), tf.TensorSpec([None], tf.int32, "places"))
    def chosen(words: Any, places: Any) -> Any:
        return {"chosen": tf.gather(words, places), "twice": tf.concat([words, words], 0)}

    options = {
        "inputs": {"words": np.array(["ä", "", "long word"], object), "places": np.array([2, 0], np.int32)},
        "integer_ranges": {"places": (0, 0)}, "dynamic": {"words": {0: "n"}, "places": {0: "m"}},
    }  # fmt: skip
    return chosen, options, lambda w, p: list(chosen(w, p).values())


def loop_as_long_as_its_input_says() -> Entry:
    @_function(FLOATS, tf.TensorSpec([], tf.int32, "steps"))
    def powers(x: Any, steps: Any) -> Any:
        _, y = tf.while_loop(lambda k, y: k < steps, lambda k, y: (k + 1, y * 0.5 + x), [0, x])
        return {"y": y}

    options = {
        "inputs": (np.ones((2, 3), np.float32), np.array(3, np.int32)),
        "integer_ranges": {"steps": (0, 9)},
    }
    return powers, options, lambda x, steps: [powers(x, steps)["y"]]


def branch_by_value() -> Entry:
    @_function(FLOATS, tf.TensorSpec([], tf.bool, "up"))
    def branch(x: Any, up: Any) -> Any:
        if up:
            y = tf.exp(x)
        elif tf.reduce_sum(x) > 0:
            y = -x
        else:
            y = x * 3
        return {"y": y}

    example = (np.ones((2, 3), np.float32), np.array(True))
    samples = ({"x": -np.ones((2, 3), np.float32), "up": np.array(False)},)
    options = {"inputs": example, "samples": samples, "include_samples": True}
    return branch, options, lambda x, up: [branch(x, up)["y"]]


def loop_over_rows() -> Entry:
    @_function(tf.TensorSpec([None, None, 2], tf.float32, "x"))
    def rows(x: Any) -> Any:
        kept = tf.TensorArray(tf.float32, size=tf.shape(x)[1])
        state = tf.zeros_like(x[:, 0])
        for k in tf.range(tf.shape(x)[1]):
            state = tf.tanh(state + x[:, k])
            kept = kept.write(k, state)
        return {"y": tf.transpose(kept.stack(), [1, 0, 2])}

    return rows, {"inputs": np.ones((2, 3, 2), np.float32)}, lambda x: [rows(x)["y"]]


def casts() -> Entry:
    """Floats of both signs cut and rounded to integers, in TensorFlow's four ways."""

    @_function(FLOATS)
    def cut(x: Any) -> Any:
        ways = {"cut": x, "floor": tf.floor(x), "ceil": tf.math.ceil(x), "even": tf.round(x)}
        return {name: tf.cast(y, tf.int32) for name, y in ways.items()}

    halves = np.array([[-2.5, -1.5, -0.5], [0.5, 1.5, 2.5], [-1.9, -0.1, 1.9]], np.float32)
    options = {"inputs": halves, "samples": ({"x": halves},), "include_samples": True}
    return cut, options, lambda x: list(_cut(x))


def _cut(x: Any) -> list[Any]:
    return [np.trunc(x).astype(np.int32), np.floor(x).astype(np.int32), np.ceil(x).astype(np.int32),
            np.round(x).astype(np.int32)]  # fmt: skip


def _quotients(dtype: Any) -> Entry:
    spec = (tf.TensorSpec([None], dtype, "a"), tf.TensorSpec([None], dtype, "b"))

    @_function(*spec)
    def divide(a: Any, b: Any) -> Any:
        answers = {
            "floor": tf.math.floordiv(a, b), "cut": tf.truncatediv(a, b), "modulo": tf.math.floormod(a, b),
            "ceil": -((-a) // b), "by_seven": a // 7, "modulo_five": a % 5,
        }  # fmt: skip
        if dtype.size >= 4:  # TensorFlow has it for no narrower type
            answers["rest"] = tf.truncatemod(a, b)
        return answers

    example = (np.array([9, 7, 100], dtype.as_numpy_dtype), np.array([2, 3, 7], dtype.as_numpy_dtype))
    # The same number of either: TensorFlow broadcasts, and would refuse two open sizes that differ.
    return divide, {"inputs": example, "dynamic": {"a": {0: "n"}, "b": {0: "n"}}}, None


def quotients_int32() -> Entry:
    return _quotients(tf.int32)


def quotients_int64() -> Entry:
    return _quotients(tf.int64)


def _comparisons(dtype: tf.DType) -> Entry:
    """Numbers of one minute, in seconds, which float32 cannot tell from one another."""
    moment = 1_700_000_000

    @tf.function
    def compare(a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
        later = {"later": a > b, "not_before": a >= b, "before": a < b, "not_later": a <= b}
        return {**later, "past": a > moment, "chosen": tf.where(a < moment, a, b)}

    example = tuple(
        np.array([moment + s for s in row], dtype.as_numpy_dtype) for row in ([0, 30, 5], [5, 7, 30])
    )
    return compare, {"inputs": example, "dynamic": {"a": {0: "n"}, "b": {0: "n"}}}, None


def comparisons_int32() -> Entry:
    return _comparisons(tf.int32)


def comparisons_int64() -> Entry:
    return _comparisons(tf.int64)


def comparisons_uint32() -> Entry:
    return _comparisons(tf.uint32)


def quotients_int16() -> Entry:
    return _quotients(tf.int16)


def quotients_int8() -> Entry:
    return _quotients(tf.int8)


def quotients_float32() -> Entry:
    return _quotients(tf.float32)


def quotients_of_keras() -> Entry:
    import keras

    a, b = (keras.Input((), name=name, dtype="int32") for name in "ab")
    ops = keras.ops
    outputs = {"floor": ops.floor_divide(a, b), "modulo": ops.mod(a, b), "ceil": -(-a // b)}
    example = {"a": np.array([9, 7, 100], np.int32), "b": np.array([2, 3, 7], np.int32)}
    return keras.Model([a, b], outputs), {"inputs": example, "framework": "keras"}, None


def basic_pitch() -> Entry:
    """The notes in two seconds of music, trained by the authors of the package; saved by TensorFlow 2.4."""
    music = np.zeros((2, 43844, 1), np.float32)
    seconds = np.arange(43844) / 22050
    for row, notes in enumerate([(220.0, 277.2, 329.6), (440.0, 523.3)]):
        music[row, :, 0] = sum(np.sin(2 * np.pi * note * seconds) / 4 for note in notes)
    folder = unpacked("basic-pitch") / "basic_pitch" / "saved_models" / "icassp_2022" / "nmp"
    name = "input_2"
    options = {"samples": ({name: music},), "include_samples": True}
    return str(folder), options, None


# --- what is refused ----------------------------------------------------------------------------------------


def near_zero() -> Entry:
    """Its answers are of one size over all inputs, so that no digit hides behind a larger answer."""
    x = np.array([[1e-6, -2e-7, 3e-8], [1e-20, -0.5, 5.0]], np.float32)

    @_function(FLOATS)
    def net(x: Any) -> Any:
        return {"log1p": tf.math.log1p(x) / x, "expm1": tf.math.expm1(x) / x}

    return (
        net,
        {"inputs": x, "samples": [{"x": x}], "include_samples": True},
        lambda x: [tf.math.log1p(x) / x, tf.math.expm1(x) / x],
    )


def no_signature_named() -> Entry:
    files.save_with_two_signatures(nets.matrix()[0], FOLDER / "unnamed")
    return str(FOLDER / "unnamed"), {}, None


def ragged_input() -> Entry:
    @_function(tf.RaggedTensorSpec([None, None], tf.float32))
    def total(x: Any) -> Any:
        return tf.reduce_sum(x, 1)

    return total, {}, None


def sparse_input() -> Entry:
    @_function(tf.SparseTensorSpec([None, 3], tf.float32))
    def dense(x: Any) -> Any:
        return tf.sparse.to_dense(x)

    return dense, {}, None


def sparse_output() -> Entry:
    return _function(FLOATS)(lambda x: {"deep": [tf.sparse.from_dense(x)]}), {}, None


def text_operator() -> Entry:
    @_function(tf.TensorSpec([None], tf.string, "words"))
    def upper(words: Any) -> Any:
        return {"upper": tf.strings.upper(words)}

    return upper, {"inputs": np.array(["a", "b"], object), "dynamic": {"words": {0: "n"}}}, None


def unsupported_operator() -> Entry:
    class Net(tf.Module):
        @_function(FLOATS)
        def __call__(self, x: Any) -> Any:
            with tf.name_scope("tail"):
                if tf.reduce_sum(x) > 0:
                    x = _erfinv(x)
            return {"y": x}

    return Net(), {}, None


def _erfinv(x: Any) -> Any:
    return tf.math.erfinv(x)  # the line that the error names


def unsupported_operator_in_a_file() -> Entry:
    net = unsupported_operator()[0]
    tf.saved_model.save(net, str(FOLDER / "erfinv"))
    return str(FOLDER / "erfinv"), {}, None


def reads_a_file() -> Entry:
    @_function(FLOATS)
    def serve(x: Any) -> Any:
        return {"y": x + tf.cast(tf.strings.length(tf.io.read_file(str(FOLDER / "secret"))), tf.float32)}

    net = tf.Module()
    net.serve = serve
    tf.saved_model.save(net, str(FOLDER / "reads"), signatures=serve)
    return str(FOLDER / "reads"), {}, None


def calls_numpy() -> Entry:
    @_function(FLOATS)
    def serve(x: Any) -> Any:
        return {"y": tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [None, 3])}

    net = tf.Module()
    net.serve = serve
    tf.saved_model.save(net, str(FOLDER / "numpy"), signatures=serve)
    return str(FOLDER / "numpy"), {}, None


def module_without_call() -> Entry:
    class Holder(tf.Module):
        @_function(FLOATS)
        def serve(self, x: Any) -> Any:
            return x

    return Holder(), {"framework": "tensorflow"}, None


def wrong_example() -> Entry:
    return _function(FLOATS)(lambda x: {"y": x}), {"inputs": np.ones((2, 4), np.float32)}, None


ZOO: tuple[Callable[[], Entry], ...] = (
    other_signature, frozen_at_an_inner_node, checkpoint_of_other_values, several_inputs_and_nested_outputs, words,
    loop_as_long_as_its_input_says, branch_by_value, loop_over_rows, casts, quotients_int32, quotients_int64,
    comparisons_int32, comparisons_int64, comparisons_uint32,
    quotients_int16, quotients_int8, quotients_float32, quotients_of_keras, basic_pitch, near_zero,
    no_signature_named, ragged_input,
    sparse_input, sparse_output, text_operator, unsupported_operator, unsupported_operator_in_a_file, reads_a_file,
    calls_numpy, module_without_call, wrong_example,
)  # fmt: skip


def _export(build: Callable[[], Entry], out: Path) -> dict[str, Any]:
    source, options, answer = build()
    try:
        bundle = export_model(
            source, out / build.__name__, name="net", **{"framework": "tensorflow", **options}
        )
    except (ConverterError, ValueError) as error:
        return {
            "error": type(error).__name__, "message": str(error), "module": getattr(error, "module", None),
        }  # fmt: skip
    except Exception:
        return {"error": "unexpected", "message": traceback.format_exc()}
    return {"farthest": _farthest(answer, bundle)} if answer else {}


def _farthest(answer: Answer, bundle: Any) -> float:
    farthest = 0.0
    for probe in bundle.probes():
        own = tf.nest.flatten(answer(*(_tensor(array) for array in probe.inputs.values())))
        for sealed, tensor in zip(probe.outputs.values(), own, strict=True):
            array = np.asarray(tensor)
            if array.dtype == object:
                assert [text.decode() for text in array] == sealed.tolist()
            else:
                difference = np.abs(sealed.astype(np.float64) - array.astype(np.float64))
                farthest = max(farthest, float(np.max(difference, initial=0.0)))
    return farthest


def _tensor(array: Any) -> Any:
    return tf.constant(array.tolist() if array.dtype == object else array)


def main(out: Path) -> None:
    FOLDER.mkdir()
    (out / "report.json").write_text(json.dumps({build.__name__: _export(build, out) for build in ZOO}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
