"""What the JAX exporter says without JAX, and checkpoints that are read without it."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.checkpoints import flax as files
from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters import get_exporter
from paritygate.converter.parity import validate_bundle
from support.environments import real_environment, run_in

_SUPPORT = Path(__file__).parents[2] / "support"

WANTED = {
    ("params", "dense", "kernel"): ((3, 2), np.dtype(np.float32)),
    ("params", "dense", "bias"): ((2,), np.dtype(np.float32)),
}


def _checkpoint(**arrays: Any) -> files.Checkpoint:
    def entry(array: np.ndarray[Any, Any]) -> files.Entry:
        return files.Entry(array.shape, array.dtype, lambda: array)

    entries = {
        tuple(name.split("__")): functools.partial(entry, np.asarray(value)) for name, value in arrays.items()
    }
    return files.Checkpoint(Path("net"), entries, "0" * 64)


def _kernel(value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full((3, 2), value, np.float32)


BIAS = np.zeros(2, np.float32)


@pytest.mark.parametrize("prefix", ["params__", "", "state__params__", "model__"])
def test_weights_are_found_at_every_depth(prefix: str) -> None:
    checkpoint = _checkpoint(**{f"{prefix}dense__kernel": _kernel(), f"{prefix}dense__bias": BIAS})
    values, selection, _ = files.take(checkpoint, WANTED, None, "nets:build")
    assert values["params", "dense", "kernel"].tolist() == _kernel().tolist()
    assert selection.startswith("raw")


def test_boxes_of_nnx_are_opened() -> None:
    checkpoint = _checkpoint(params__dense__kernel__value=_kernel(), params__dense__bias__value=BIAS)
    assert set(files.take(checkpoint, WANTED, None, "nets:build")[0]) == set(WANTED)


def test_averaged_weights_are_taken_only_when_named() -> None:
    checkpoint = _checkpoint(
        params__dense__kernel=_kernel(1), params__dense__bias=BIAS,
        ema_params__dense__kernel=_kernel(2), ema_params__dense__bias=BIAS,
    )  # fmt: skip
    raw, said, notes = files.take(checkpoint, WANTED, None, "nets:build")
    assert (raw["params", "dense", "kernel"][0, 0], said) == (1, "raw")
    assert notes == ["Entries beside the weights were not needed: ema_params."]
    averaged, said, _ = files.take(checkpoint, WANTED, "ema_params", "nets:build")
    assert (averaged["params", "dense", "kernel"][0, 0], said) == (2, "ema: checkpoint entry ema_params")


def test_other_types_are_cast_and_noted() -> None:
    checkpoint = _checkpoint(params__dense__kernel=_kernel().astype(np.float16), params__dense__bias=BIAS)
    values, _, notes = files.take(checkpoint, WANTED, None, "nets:build")
    assert values["params", "dense", "kernel"].dtype == np.float32
    assert notes == ["Weights that are float16 in the checkpoint were cast to the model's float32."]


_WEIGHTS = {"params__dense__kernel": _kernel(), "params__dense__bias": BIAS}
_COUNT, _KEY = np.uint32(0), np.array([0, 7], np.uint32)


@pytest.mark.parametrize(
    "streams",
    [
        {"params__drop__rngs__count": _COUNT, "params__drop__rngs__key": _KEY},
        {
            "params__drop__rngs__dropout__count__value": _COUNT,
            "params__drop__rngs__dropout__key__value": _KEY,
        },
        {"params__noise__count": _COUNT, "params__noise__key": _KEY},
        {"params__drop__rngs__key__raw_value": _KEY},
        {"rngs__default__count": _COUNT, "rngs__default__key": _KEY},
    ],
    ids=["of-a-dropout", "boxed-and-named", "under-another-name", "key-alone", "beside-the-weights"],
)
def test_random_streams_are_left_out_and_noted(streams: dict[str, Any]) -> None:
    values, _, notes = files.take(_checkpoint(**_WEIGHTS, **streams), WANTED, None, "nets:build")
    assert set(values) == set(WANTED)
    (note,) = (note for note in notes if note.startswith("The states of random generators are no weights"))
    for name in streams:
        assert name.replace("__", ".").removeprefix("params.") in note


@pytest.mark.parametrize(
    "extra",
    [
        {"params__drop__rngs__key": BIAS},
        {"params__noise__key": _KEY},
        {"params__noise__count": BIAS, "params__noise__key": BIAS},
        {"params__drop__rngs__kernel": _KEY},
    ],
    ids=["floats-of-rngs", "key-alone", "floats-of-both-names", "another-name"],
)
def test_weights_that_are_called_as_random_streams_are_missed(extra: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="unexpected params"):
        files.take(_checkpoint(**_WEIGHTS, **extra), WANTED, None, "nets:build")


def test_random_stream_that_the_model_wants_is_taken() -> None:
    name = ("params", "drop", "rngs", "key")
    wanted = {**WANTED, name: ((2,), np.dtype(np.uint32))}
    checkpoint = _checkpoint(**_WEIGHTS, params__drop__rngs__key=_KEY)
    values, _, notes = files.take(checkpoint, wanted, None, "nets:build")
    assert (values[name].tolist(), notes) == ([0, 7], [])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"params__dense__kernel": _kernel()}, r"missing params\.dense\.bias"),
        (
            {"params__dense__kernal": _kernel(), "params__dense__bias": BIAS},
            r"missing params\.dense\.kernel \(nearest: params\.dense\.kernal\); unexpected params\.dense\.kernal",
        ),
        (
            {"params__dense__kernel": _kernel().T, "params__dense__bias": BIAS},
            r"kernel is \[2, 3\], the model has \[3, 2\]",
        ),
        (
            {"params__dense__kernel": _kernel() * 1j, "params__dense__bias": BIAS.astype(np.int32)},
            r"other types: params\.dense\.kernel is complex64, .*bias is int32, the model has float32",
        ),
        (
            {"params__dense__kernel": _kernel(), "params__dense__bias": BIAS, "other__scale": BIAS},
            r"unexpected other\.scale",
        ),
    ],
)
def test_what_does_not_fit_is_listed(arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=f"net does not fit the model of nets:build: .*{said}"):
        files.take(_checkpoint(**arrays), WANTED, None, "nets:build")


@pytest.mark.timeout(20)
def test_thousands_of_entries_are_looked_through_once() -> None:
    arrays = {f"w{k}__kernel": BIAS for k in range(20_000)} | {f"s{k}__scale": BIAS for k in range(20_000)}
    with pytest.raises(SourceError, match=r"missing params\.dense\.bias"):
        files.take(_checkpoint(**arrays), WANTED, None, "nets:build")


@pytest.mark.parametrize(
    "leaf",
    [
        {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": ["jax.Array"]}},
        {"key_metadata": 5, "value_metadata": {"value_type": "jax.Array"}},
        ["w"],
    ],
    ids=["kind-is-a-list", "keys-are-a-number", "leaf-is-a-list"],
)
def test_metadata_of_another_form_is_called_damaged(leaf: Any, tmp_path: Path) -> None:
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {"w": leaf}}))
    with pytest.raises(SourceError, match="is damaged at 'w'"):
        files.read(tmp_path)


def test_an_absent_entry_is_named() -> None:
    with pytest.raises(SourceError, match="has no entry 'ema'; it holds params"):
        files.take(_checkpoint(params__dense__bias=BIAS), WANTED, "ema", "nets:build")


def test_a_folder_of_steps_is_an_orbax_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "_CHECKPOINT_METADATA").touch()
    assert look_at(tmp_path) is Form.ORBAX
    assert get_exporter("jax").recognises(tmp_path)


def test_a_checkpoint_that_was_never_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / "default.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(SourceError, match=r"was never finished.*take an earlier step"):
        files.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "3", '{"tree_metadata": 1}'])
def test_damaged_metadata_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "_METADATA").write_text(text)
    with pytest.raises(SourceError, match="_METADATA is damaged"):
        files.read(tmp_path)


@pytest.mark.parametrize("key", ["..", ".", "../x", "/etc", "a\\b", "a\0", ""])
def test_names_that_lead_elsewhere_are_refused(key: str, tmp_path: Path) -> None:
    leaf = {"key_metadata": [{"key": key, "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}}
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {"('x',)": leaf}}))
    with pytest.raises(SourceError, match="expected keys without '/'"):
        files.read(tmp_path)


@pytest.mark.parametrize(
    "source", [3, None, print, dict, len, "m.pt", ("a", "b"), lambda x: x, (lambda p, x: x, {"w": BIAS})]
)
def test_other_sources_are_not_recognised(source: Any) -> None:
    assert not get_exporter("jax").recognises(source)


@pytest.mark.real
def test_steps_that_onnx_does_otherwise_keep_jaxs_meaning(tmp_path: Path) -> None:
    """The odd places, halves and numbers are sealed as samples, so parity asks just them."""
    run_in(real_environment("jax"), _SUPPORT / "jax_forms.py", tmp_path, folder=tmp_path)
    bundles = sorted(path.parent for path in tmp_path.glob("*/bundle.json"))
    verdicts = {path.name: validate_bundle(read_bundle(path)) for path in bundles}
    assert len(verdicts) >= 15
    assert {name: c.reason for name, c in verdicts.items() if c.verdict != "pass"} == {}
    refused = json.loads((tmp_path / "refused.json").read_text("utf-8"))
    assert re.search(r"UnsupportedOperator: .*complex", refused["complex"])
    assert re.search(r"UnsupportedOperator: .*fft.*jax_forms\.py", refused["fft"])
