"""The JAX and Flax models of the exporter conformance suite."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import BuildIn, ExporterCases, Refusal, sample

_NETS = "support.jax_nets"


def _nets() -> Any:
    return importlib.import_module(_NETS)


def _scalar() -> tuple[Any, dict[str, Any]]:
    import jax.numpy as jnp

    return lambda x: jnp.tanh(x) * 2, {"inputs": {"x": np.float32(0.5)}}


def _whole_numbers() -> tuple[Any, dict[str, Any]]:
    a, b = np.array([-7, 7, -8, 9, -1, 0], np.int32), np.array([2, 3, 4, 5, 6, 7], np.int32)
    ranges = {"a": (-(2**31) + 1, 2**31 - 1), "b": (1, 9)}
    return _nets().whole_numbers, {"inputs": {"a": a, "b": b}, "integer_ranges": ranges}


def _matrix() -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {"inputs": {"x": sample(4, 6)}}


def _linen() -> tuple[Any, dict[str, Any]]:
    return _nets().small(), {"inputs": {"x": sample(4, 6)}}


def _words() -> tuple[Any, dict[str, Any]]:
    from flax import nnx

    tokens = np.arange(10, dtype=np.int32).reshape(2, 5)
    return _nets().Words(nnx.Rngs(0)), {"inputs": tokens, "dynamic": {"tokens": {0: "batch", 1: "time"}}}


def _sequence() -> tuple[Any, dict[str, Any]]:
    return _nets().sequence(), {"inputs": {"x": sample(2, 7, 3)}}


def _picture() -> tuple[Any, dict[str, Any]]:
    return _nets().picture(), {"inputs": {"image": sample(2, 8, 8, 1)}}


def _narrow() -> tuple[Any, dict[str, Any]]:
    import jax.numpy as jnp

    weight = jnp.asarray(sample(6, 3), jnp.bfloat16)
    return (lambda w, x: jnp.tanh(x.astype(jnp.bfloat16) @ w), weight), {"inputs": {"x": sample(4, 6)}}


def _demoted() -> tuple[Any, dict[str, Any]]:
    import jax.numpy as jnp

    def answer(x: Any) -> Any:
        return jnp.tanh(x).reshape(-1, 6) if x.shape[1] == 3 else x[:, 0]

    return answer, {"inputs": {"x": sample(2, 3, 2)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


# --- files --------------------------------------------------------------------------------------------------


def _save(path: Path, tree: Any, **options: Any) -> None:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as saver:
        saver.save(path, tree)


def _orbax(folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    _save(folder / "net", _nets().matrix()[1], **options)
    return folder / "net", {"factory": f"{_NETS}:matrix_with_example"}


def _orbax_in_files(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _orbax(folder, use_ocdbt=False)


def _orbax_zarr3(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _orbax(folder, use_zarr3=True)


def _orbax_of_nnx(folder: Path) -> tuple[Any, dict[str, Any]]:
    from flax import nnx

    _save(folder / "net", nnx.to_pure_dict(nnx.state(_nets().picture(), nnx.Not(nnx.RngState))))
    return folder / "net", {"factory": f"{_NETS}:picture_with_example"}


def _orbax_of_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """What nnx calls the state itself: every variable is a box with its value."""
    from flax import nnx

    _save(folder / "net", nnx.state(_nets().picture(), nnx.Not(nnx.RngState)))
    return folder / "net", {"factory": f"{_NETS}:picture_with_example"}


def _orbax_of_whole_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """All that `nnx.split` gives, the random streams of dropout with it."""
    from flax import nnx

    _save(folder / "net", nnx.split(_nets().picture())[1])
    return folder / "net", {"factory": f"{_NETS}:picture_with_example"}


def _orbax_of_training(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Steps of a training, each with the state of the optimiser."""
    import jax
    import optax
    import orbax.checkpoint as ocp

    _, variables = _nets().small()
    with ocp.CheckpointManager(folder / "steps") as manager:
        for step, factor in ((9, 0.5), (10, 1.0)):
            params = jax.tree_util.tree_map(lambda leaf, factor=factor: leaf * factor, variables["params"])
            state = {
                "params": params, "batch_stats": variables["batch_stats"], "step": step,
                "opt_state": optax.adam(0.1).init(params),
            }  # fmt: skip
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()
    return folder / "steps", {"factory": f"{_NETS}:small_with_example"}


def _msgpack(folder: Path) -> tuple[Any, dict[str, Any]]:
    from flax import serialization

    _, variables = _nets().small()
    (folder / "net.msgpack").write_bytes(serialization.to_bytes(variables))
    return folder / "net.msgpack", {"factory": f"{_NETS}:small_with_example"}


def _factory(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return f"{_NETS}:picture_with_example", {}


def _loops(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return f"{_NETS}:loops_with_example", {"dynamic": {}}


def _windows(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return f"{_NETS}:windows_with_example", {"dynamic": {}}


# --- trained ------------------------------------------------------------------------------------------------
# The one package known to ship weights for JAX (expaloma, Equinox) needs rdkit, so that the weights which others
# trained are a PyTorch package's here, in the same network said in JAX.


def _proposals() -> tuple[Any, dict[str, Any]]:
    return _nets().proposals(), {
        "inputs": {"image": sample(2, 24, 24, 3)},
        "dynamic": {"image": {0: "batch", 1: "height", 2: "width"}},
    }


def _digits() -> tuple[Any, dict[str, Any]]:
    net, pictures = _nets().trained()
    return net, {"inputs": {"image": pictures}, "output_names": ("logits",)}


# --- refused ------------------------------------------------------------------------------------------------
# Both forms of file hold names and numbers only, so that no trust is ever asked for: what would have to be trusted
# (objects, links, names that lead elsewhere) is refused always.


def _without_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _orbax(folder)[0], {}


def _other_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _orbax_of_nnx(folder)[0], {"factory": f"{_NETS}:other_picture_with_example"}


def _foreign_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _msgpack(folder)[0], {"factory": f"{_NETS}:matrix_with_example"}


def _half_a_msgpack(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = _msgpack(folder)
    source.write_bytes(source.read_bytes()[:-40])
    return source, options


def _objects_in_msgpack(folder: Path) -> tuple[Any, dict[str, Any]]:
    """An array of addresses of Python objects, as NumPy would write it."""
    import msgpack

    source, options = _msgpack(folder)
    array = msgpack.ExtType(1, msgpack.packb(((1,), "O", b"\1" * 8)))
    source.write_bytes(msgpack.packb({"params": {"w": array}}))
    return source, options


def _half_an_orbax(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = _orbax(folder)
    for part in (source / "d").iterdir():
        part.unlink()
    for part in source.glob("ocdbt.process_*/d/*"):
        part.unlink()
    return source, options


def _without_metadata(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = _orbax(folder)
    (source / "_METADATA").unlink()
    return source, options


def _names_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A checkpoint whose list of names leads to the arrays of another one."""
    source, options = _orbax_in_files(folder)
    (source / "w1").rename(folder / "w1")
    metadata = json.loads((source / "_METADATA").read_text())
    for leaf in metadata["tree_metadata"].values():
        for part in leaf["key_metadata"]:
            part["key"] = "../w1" if part["key"] == "w1" else part["key"]
    (source / "_METADATA").write_text(json.dumps(metadata))
    return source, options


def _link_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = _orbax_in_files(folder)
    (source / "w1").rename(folder / "w1")
    (source / "w1").symlink_to(folder / "w1")
    return source, options


def _function(function: Callable[..., Any], *arrays: Any, **options: Any) -> BuildIn:
    return lambda _folder: (function, {"inputs": arrays, **options})


def _singular(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.linalg.svd(x)[1]


def _shifted(x: Any) -> Any:
    return x << 1


def _product(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.cumprod(x, 1)


def _spectrum(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.abs(jnp.fft.rfft(x))


def _decides(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def _without_inputs(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {}


def _other_size(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {"inputs": {"x": sample(4, 5)}}


def _unsupported(function: Callable[..., Any], operator: str, array: Any = None) -> Refusal:
    given = sample(3, 4) if array is None else array
    said = rf"operator {operator}, used at jax\.py:\d+ \({function.__name__}\), has no ONNX form"
    return Refusal(_function(function, given, dynamic={}), "UnsupportedOperator", said)


CASES = ExporterCases(
    module="jax2onnx",
    environment="jax",
    ranks={
        "rank0": _scalar, "rank1_integers": _whole_numbers,
        "rank2": _matrix, "rank2_linen": _linen, "rank2_tokens": _words, "rank2_bfloat16": _narrow,
        "rank3": _sequence, "rank4": _picture,
    },
    demoted=_demoted,
    guarded=_matrix,
    files={
        "orbax": _orbax, "orbax_in_files": _orbax_in_files, "orbax_zarr3": _orbax_zarr3,
        "orbax_of_nnx": _orbax_of_nnx, "orbax_of_state": _orbax_of_state,
        "orbax_of_whole_state": _orbax_of_whole_state, "orbax_of_training": _orbax_of_training,
        "msgpack": _msgpack, "factory": _factory, "factory_of_loops": _loops, "factory_of_windows": _windows,
    },
    trained={"facenet_pnet": _proposals, "digits": _digits},
    packages=("facenet-pytorch", "scikit-learn"),
    refused={
        "without_factory": Refusal(_without_factory, "SourceError", "holds weights only.*--factory"),
        "other_factory": Refusal(
            _other_factory, "SourceError", r"other shapes: head\.bias is \[3\], the model has \[5\]"
        ),
        "foreign_factory": Refusal(_foreign_factory, "SourceError", r"missing b1.*unexpected batch_stats\."),
        "half_a_msgpack": Refusal(_half_a_msgpack, "SourceError", "is no whole Flax msgpack file"),
        "objects_in_msgpack": Refusal(_objects_in_msgpack, "SourceError", "it has an array of O"),
        "half_an_orbax": Refusal(_half_an_orbax, "SourceError", "has no whole array"),
        "without_metadata": Refusal(_without_metadata, "SourceError", "has no _METADATA"),
        "names_elsewhere": Refusal(_names_elsewhere, "SourceError", "names an array .*expected keys without '/'"),
        "link_elsewhere": Refusal(_link_elsewhere, "SourceError", "is a link .*outside its own directory"),
        "singular": _unsupported(_singular, "svd"),
        "product": _unsupported(_product, "cumprod"),
        "spectrum": _unsupported(_spectrum, "fft"),
        "shifted": _unsupported(_shifted, "shift_left", np.array([1, 2], np.int32)),
        "decides": Refusal(
            _function(_decides, sample(3)), "ExportError", r"JAX cannot trace jax\.py:\d+.*jnp\.where"
        ),
        "without_inputs": Refusal(_without_inputs, "ExportError", "does not say what it takes.*--samples"),
        "other_size": Refusal(_other_size, "ExportError", "the model refuses its own example inputs"),
    },
)  # fmt: skip
