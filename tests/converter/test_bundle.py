"""Bundles: whole or absent, read with every digest checked, and one clear line for what is not right."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import helper

from paritygate.converter import _json
from paritygate.converter.bundle import (
    Bundle,
    BundleDraft,
    OmittedCase,
    Probe,
    read_bundle,
    write_bundle,
)
from paritygate.converter.errors import BundleCorrupt, BundleError, ModelInvalid
from paritygate.converter.schemas import load_schema
from paritygate.converter.types import Array, DemotedDim, DType, Signature, TensorSpec
from support.sealed import TRACE, Classifier, classifier_bundle, model_of, seal


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return classifier_bundle(tmp_path)


def reseal(bundle: Bundle, change: Callable[[dict[str, Any]], None]) -> Path:
    """Give the bundle another manifest, as someone who knows the format would."""
    manifest = json.loads((bundle.path / "bundle.json").read_bytes())
    change(manifest)
    (bundle.path / "bundle.json").write_bytes(_json.canonical(manifest))
    return bundle.path


def test_a_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = classifier_bundle(
        tmp_path,
        notes=("a note",),
        demoted=(DemotedDim("time", 5, "traced"),),
        omitted=(OmittedCase("sweep:batch=99", "raised"),),
        weights_selection="ema",
        source_sha256="0" * 64,
        samples={"count": 3},
    )
    found = read_bundle(written.path)
    assert found == written
    assert found.name == "model"
    assert found.signature == Classifier.signature
    assert found.trace_dims == {"batch": TRACE}
    assert found.demoted == (DemotedDim("time", 5, "traced"),)
    assert found.manifest["weights"] == {"selection": "ema", "source_sha256": "0" * 64}
    assert found.manifest["probes"]["omitted"] == [{"case": "sweep:batch=99", "reason": "raised"}]
    assert found.certificate() is None


def test_the_digest_is_that_of_the_manifest_bytes(bundle: Bundle) -> None:
    data = (bundle.path / "bundle.json").read_bytes()
    assert bundle.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert data == _json.canonical(json.loads(data))


def test_the_same_model_and_probes_give_the_same_digest(tmp_path: Path) -> None:
    assert classifier_bundle(tmp_path / "a").digest == classifier_bundle(tmp_path / "b").digest


def test_a_real_manifest_follows_the_published_schema(bundle: Bundle) -> None:
    jsonschema.Draft202012Validator(load_schema("bundle.v1")).validate(dict(bundle.manifest))


def test_the_layout_is_that_of_onnx_test_data(bundle: Bundle) -> None:
    folder = bundle.path / "probes" / "test_data_set_0"
    names = ["input_0.pb", "output_0.float64.pb", "output_0.pb", "output_1.pb"]
    assert sorted(path.name for path in folder.iterdir()) == names
    tensor = onnx.TensorProto.FromString((folder / "output_0.pb").read_bytes())
    expected = next(bundle.probes()).outputs["probs"]
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), expected)


def every_dtype_probe() -> tuple[Signature, Probe]:
    texts = np.empty((2, 2), object)
    texts[:] = [["", "Grüße"], ["a\0b", "日本語"]]
    arrays: dict[str, Array] = {
        dtype.value: texts if dtype is DType.STRING else np.arange(4).reshape(2, 2).astype(dtype.numpy)
        for dtype in DType
    }
    arrays["scalar"] = np.array(1.5, np.float32)
    arrays["empty"] = np.zeros((0, 3), np.float32)
    arrays["specials"] = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    arrays["no_texts"] = np.empty((0,), object)
    arrays["scalar_text"] = np.array("x", object)
    arrays["big"] = np.array([2**63 - 1, -(2**63)])
    specs = tuple(TensorSpec(n, DType.from_numpy(a.dtype), a.shape) for n, a in arrays.items())
    outputs = tuple(TensorSpec(f"{spec.name}_out", spec.dtype, spec.shape) for spec in specs)
    answers = {f"{name}_out": array for name, array in arrays.items()}
    wide = {n: a.astype(np.float64) for n, a in answers.items() if DType.from_numpy(a.dtype).is_floating}
    return Signature(specs, outputs), Probe(0, "base", {}, arrays, answers, wide)


def test_every_dtype_scalars_and_empty_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    signature, probe = every_dtype_probe()
    nodes = [helper.make_node("Identity", [s.name], [f"{s.name}_out"]) for s in signature.inputs]
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(nodes, signature).SerializeToString())
    write_bundle(BundleDraft("m", path, signature, "numpy", "2", "hand", "1", [probe]), tmp_path / "b")
    (found,) = read_bundle(tmp_path / "b").probes()
    for side in ("inputs", "outputs", "float64"):
        expected = getattr(probe, side)
        for name, array in getattr(found, side).items():
            assert array.dtype == expected[name].dtype
            assert array.shape == expected[name].shape
            if array.dtype == object:
                assert array.tolist() == expected[name].tolist()
            else:
                assert array.tobytes() == expected[name].tobytes()


def test_probes_past_the_budget_are_left_out_and_listed(tmp_path: Path) -> None:
    whole = classifier_bundle(tmp_path / "a")
    budget = next(whole.probes()).nbytes * 3
    cut = classifier_bundle(tmp_path / "b", budget_bytes=budget)
    kept = list(cut.probes())
    omitted = cut.manifest["probes"]["omitted"]
    assert sum(probe.nbytes for probe in kept) <= budget
    assert kept[0].case == "base"
    assert len(kept) + len(omitted) == len(list(whole.probes()))
    assert all("would pass the budget" in entry["reason"] for entry in omitted)
    assert [probe.index for probe in kept] == list(range(len(kept)))


def test_an_existing_directory_is_never_overwritten(bundle: Bundle, tmp_path: Path) -> None:
    before = (bundle.path / "bundle.json").read_bytes()
    with pytest.raises(BundleError, match="never overwritten"):
        classifier_bundle(tmp_path)
    assert (bundle.path / "bundle.json").read_bytes() == before


def test_nothing_is_left_behind_when_a_probe_fails(tmp_path: Path) -> None:
    def source(_: object) -> dict[str, Array]:
        raise RuntimeError("the source died")

    twin = Classifier()
    with pytest.raises(RuntimeError, match="the source died"):
        seal(tmp_path, twin.model(), twin.signature, source)
    assert [path.name for path in tmp_path.iterdir()] == ["exported.onnx"]


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    twin = Classifier()
    path = tmp_path / "m.onnx"
    path.write_bytes(twin.model().SerializeToString())
    draft = BundleDraft("m", path, twin.signature, "numpy", "2", "hand", "1", (), {"batch": 2})
    with pytest.raises(
        BundleError, match=r"cannot write the bundle to .*: (Not a directory|File exists)|never"
    ):
        write_bundle(draft, tmp_path / "file" / "bundle")


KILL_AT = """
import os, signal, sys
from pathlib import Path
real, count, last = os.fsync, 0, int(sys.argv[2])
def fsync(descriptor):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = fsync
from support.sealed import classifier_bundle
classifier_bundle(Path(sys.argv[1]), cases=lambda cases: cases[:2])
print(count)
"""


def run_killed(directory: Path, at: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", KILL_AT, str(directory), str(at)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_a_writer_that_is_killed_leaves_a_whole_bundle_or_none(tmp_path: Path) -> None:
    counted = run_killed(tmp_path / "counted", 0)
    assert counted.returncode == 0, counted.stderr
    total = int(counted.stdout)
    assert total >= 10
    for at in sorted({1, total // 2, total - 2, total - 1, total}):
        directory = tmp_path / str(at)
        assert run_killed(directory, at).returncode == -9
        whole = (directory / "bundle").exists()
        # The last flush is that of the parent, after the rename.
        assert whole == (at == total)
        if whole:
            read_bundle(directory / "bundle")
        else:
            classifier_bundle(directory, cases=lambda cases: cases[:2])


def test_files_are_flushed_before_their_folders_and_the_parent_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    bundle = classifier_bundle(tmp_path, cases=lambda cases: cases[:2])
    partial = re.compile(r"\.bundle\.partial-[0-9a-f]{8}")
    names = [partial.sub("bundle", event) for event in events]
    files = [str(p) for p in bundle.path.rglob("*") if p.is_file()]
    folders = [str(bundle.path), *(str(p) for p in bundle.path.rglob("*") if p.is_dir())]
    assert set(files) | set(folders) <= set(names[: names.index("rename")])
    assert max(map(names.index, files)) < min(map(names.index, folders))
    assert names.index(str(bundle.path)) == max(map(names.index, folders))
    assert names[-2:] == ["rename", str(tmp_path)]


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("model_changed", lambda b: flip(b / "model.onnx"), "model.onnx has sha256 .* changed after sealing"),
    ("model_cut", lambda b: cut(b / "model.onnx"), "model.onnx has .* bytes, the manifest says"),
    ("probe_changed", lambda b: flip(b / "probes/test_data_set_0/output_0.pb"), "output_0.pb has sha256"),
    ("probe_missing", lambda b: (b / "probes/test_data_set_0/input_0.pb").unlink(), "input_0.pb is missing"),
    ("model_missing", lambda b: (b / "model.onnx").unlink(), "model.onnx is missing"),
    ("extra_file", lambda b: (b / "extra.txt").write_text("x"), "extra.txt is not listed in the manifest"),
    ("extra_data", lambda b: (b / "model.onnx.data").write_bytes(b"x"), "not listed in the manifest"),
    ("link_out", lambda b: link(b / "model.onnx", Path("/etc/hostname")), "is a link"),
    ("link_inside", lambda b: (b / "again.onnx").symlink_to("model.onnx"), "is a link"),
    ("folder_link", lambda b: link(b / "probes", b.parent), "is a link"),
    ("pipe", lambda b: pipe(b / "model.onnx"), "no plain file"),
    ("manifest_cut", lambda b: cut(b / "bundle.json"), "bundle.json is damaged"),
    ("manifest_empty", lambda b: (b / "bundle.json").write_bytes(b""), "bundle.json is damaged"),
    ("manifest_binary", lambda b: (b / "bundle.json").write_bytes(b"\xff\xfe"), "is not UTF-8"),
    ("manifest_deep", lambda b: (b / "bundle.json").write_bytes(b"[" * 200_000), "nested too deeply"),
    ("manifest_list", lambda b: (b / "bundle.json").write_bytes(b"[]"), "expected object"),
    ("manifest_twice", lambda b: (b / "bundle.json").write_bytes(b'{"name":1,"name":2}'), "given twice"),
    ("manifest_nan", lambda b: (b / "bundle.json").write_bytes(b'{"name":NaN}'), "NaN is not JSON"),
    (
        "manifest_digits",
        lambda b: (b / "bundle.json").write_bytes(b'{"a":' + b"9" * 9999 + b"}"),
        "is damaged",
    ),
    ("manifest_link", lambda b: link(b / "bundle.json", Path("/etc/hostname")), "cannot be read"),
    (
        "manifest_huge",
        lambda b: os.truncate(b / "bundle.json", _json.MAX_DOCUMENT_BYTES + 1),
        "is larger than",
    ),
]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_damage_is_refused_in_one_line(
    bundle: Bundle, damage: Callable[[Path], object], message: str
) -> None:
    damage(bundle.path)
    with pytest.raises(BundleCorrupt, match=message) as caught:
        read_bundle(bundle.path)
    assert "\n" not in str(caught.value)
    assert caught.value.file


def drop_model(manifest: dict[str, Any]) -> None:
    del manifest["files"]["model.onnx"]


def escape(name: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"sha256": "0" * 64, "size_bytes": 1}

    return change


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for key in parents:
            manifest = manifest[int(key)] if key.isdigit() else manifest[key]
        manifest[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(escape("../outside"), "names no sealed file inside it", id="parent"),
        pytest.param(escape("/etc/passwd"), "names no sealed file inside it", id="absolute"),
        pytest.param(escape("probes/../../x"), "names no sealed file inside it", id="parent_inside"),
        pytest.param(escape("./model.onnx"), "names no sealed file inside it", id="odd_spelling"),
        pytest.param(escape("a\\b"), "names no sealed file inside it", id="backslash"),
        pytest.param(escape(""), "names no sealed file inside it", id="empty"),
        pytest.param(escape("evidence/certificate.json"), "names no sealed file", id="evidence"),
        pytest.param(escape("bundle.json"), "names no sealed file", id="itself"),
        pytest.param(escape("more.bin"), "more.bin is missing", id="missing"),
        pytest.param(drop_model, r"'model.onnx' is missing @ \$.files", id="no_model"),
        pytest.param(put("schema", "paritygate.bundle/v9"), "expected .*bundle/v1", id="schema"),
        pytest.param(put("name", "../x"), "does not have the form", id="name"),
        pytest.param(put("name", "x\n"), "does not have the form", id="name_with_newline"),
        pytest.param(
            put("framwork", {}), "unknown key .framwork.; did you mean 'framework'", id="unknown_key"
        ),
        pytest.param(put("ir_version", True), "expected integer, got true", id="bool_for_int"),
        pytest.param(put("trace_dims", {}), r"dim 'batch' has no trace size", id="no_trace_size"),
        pytest.param(put("probes.cases.0.index", 5), "not numbered 0, 1, 2", id="index"),
        pytest.param(put("signature.outputs.1.name", "probs"), "given twice", id="output_twice"),
        pytest.param(put("signature.outputs.0.name", "other"), "the graph has", id="output_of_another_name"),
        pytest.param(
            put("signature.inputs.0.dtype", "float64"), "the graph has", id="input_of_another_dtype"
        ),
        pytest.param(put("signature.inputs.0.shape", [4]), "the graph has", id="input_of_another_rank"),
    ],
)
def test_a_forged_manifest_is_refused(
    bundle: Bundle, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(BundleCorrupt, match=message) as caught:
        read_bundle(reseal(bundle, change))
    assert "\n" not in str(caught.value)


def reseal_file(bundle: Bundle, name: str, data: bytes) -> Path:
    """Replace a sealed file with valid digests."""
    (bundle.path / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = entry

    return reseal(bundle, change)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../b", "other.data", "model.onnx.data"]
)
def test_weights_outside_what_is_sealed_are_refused(bundle: Bundle, location: str) -> None:
    model = Classifier().model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(BundleCorrupt, match=r"not a file name inside|which is not sealed"):
        read_bundle(reseal_file(bundle, "model.onnx", model.SerializeToString()))


def test_a_truncated_model_with_a_valid_digest_is_one_clear_line(bundle: Bundle) -> None:
    data = bundle.model_bytes()
    for size in (0, 1, 10, len(data) // 2, len(data) - 3):
        with pytest.raises(BundleCorrupt, match=r"model\.onnx: the \d+ bytes (are not|hold no)"):
            read_bundle(reseal_file(bundle, "model.onnx", data[:size]))


PROBE = "probes/test_data_set_0/input_0.pb"


def external_tensor() -> bytes:
    tensor = onnx.TensorProto(data_type=1, dims=[TRACE, 6], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    return tensor.SerializeToString()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\xff" * 30, "not an ONNX tensor", id="no_tensor"),
        pytest.param(external_tensor(), "in another file, which a probe must not", id="external_data"),
        pytest.param(
            onnx.TensorProto(data_type=1, dims=[2**40, 6], raw_data=b"1234").SerializeToString(),
            "has 4 bytes, its shape",
            id="huge_shape",
        ),
        pytest.param(
            onnx.TensorProto(data_type=1, dims=[-1, 6], raw_data=b"").SerializeToString(),
            "negative dimension",
            id="negative",
        ),
        pytest.param(
            onnx.TensorProto(data_type=7, dims=[1, 1], raw_data=b"1" * 8).SerializeToString(),
            "the signature says",
            id="other_dtype",
        ),
        pytest.param(
            onnx.TensorProto(data_type=1, dims=[TRACE + 1, 6], raw_data=b"1" * 72).SerializeToString(),
            "which is not x: float32",
            id="not_the_size_of_its_case",
        ),
        pytest.param(
            onnx.TensorProto(data_type=99, dims=[1], raw_data=b"1").SerializeToString(),
            "element type 99",
            id="unknown_type",
        ),
    ],
)
def test_a_hostile_probe_is_refused_and_opens_no_other_file(
    bundle: Bundle, data: bytes, message: str
) -> None:
    found = read_bundle(reseal_file(bundle, PROBE, data))
    with pytest.raises(BundleCorrupt, match=message):
        list(found.probes())


def test_files_are_checked_when_they_are_used_and_not_only_when_the_bundle_is_opened(bundle: Bundle) -> None:
    opened = read_bundle(bundle.path)
    flip(bundle.path / "model.onnx")
    flip(bundle.path / PROBE)
    with pytest.raises(BundleCorrupt, match="changed after sealing"):
        opened.model_bytes()
    with pytest.raises(BundleCorrupt, match="changed after sealing"):
        next(opened.probes())


def test_without_verifying_only_the_manifest_is_read(bundle: Bundle) -> None:
    flip(bundle.path / "model.onnx")
    assert read_bundle(bundle.path, verify=False).digest == bundle.digest
    with pytest.raises(BundleCorrupt):
        read_bundle(bundle.path)


def test_evidence_may_lie_in_the_bundle_but_a_damaged_certificate_is_told(bundle: Bundle) -> None:
    (bundle.path / "evidence").mkdir()
    (bundle.path / "evidence" / "certificate.json").write_text("{}")
    found = read_bundle(bundle.path)
    with pytest.raises(BundleCorrupt, match=r"is not a certificate: key .* is missing"):
        found.certificate()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "absent", "is not a directory; expected a bundle"),
        (lambda p: p, "holds no bundle.json"),
    ],
)
def test_what_is_no_bundle_is_told(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_bundle(make(tmp_path))


def draft_of(tmp_path: Path, **changes: Any) -> BundleDraft:
    twin = Classifier()
    path = tmp_path / "m.onnx"
    path.write_bytes(twin.model().SerializeToString())
    return replace(
        BundleDraft("m", path, twin.signature, "numpy", "2", "hand", "1", (), {"batch": TRACE}), **changes
    )


def one_probe(**changes: Any) -> Probe:
    twin = Classifier()
    x = np.ones((TRACE, 6), np.float32)
    return replace(Probe(0, "base", {"batch": TRACE}, {"x": x}, twin.source({"x": x})), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"name": "../x"}, "model name '../x' cannot be used", id="name"),
        pytest.param({"name": ""}, "model name '' cannot be used", id="no_name"),
        pytest.param(
            {"trace_dims": {}}, "no trace size is given for the dynamic dims batch", id="trace_dims"
        ),
        pytest.param({"model_path": Path("/absent.onnx")}, "there is no ONNX file", id="no_file"),
        pytest.param(
            {"probes": [one_probe(inputs={})]}, r"has inputs \[\], .* asks for \['x'\]", id="inputs"
        ),
        pytest.param(
            {"probes": [one_probe(inputs={"x": np.ones((TRACE, 6))})]}, "'x' is float64", id="input_dtype"
        ),
        pytest.param({"probes": [one_probe(dims={"batch": 7})]}, "is not x: float32", id="dims_that_lie"),
        pytest.param({"probes": [one_probe(float64={})]}, "the float64 form .* is missing", id="float64"),
        pytest.param({"samples": {"x": float("nan")}}, "would not be valid", id="nan_in_samples"),
        pytest.param({"source_sha256": "xyz"}, "does not have the form", id="source_digest"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        write_bundle(draft_of(tmp_path, **changes), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_of_another_signature_is_refused(tmp_path: Path) -> None:
    twin = Classifier()
    wrong = Signature(twin.signature.inputs, twin.signature.outputs[:1])
    with pytest.raises(ModelInvalid, match="the signature promises outputs"):
        write_bundle(draft_of(tmp_path, signature=wrong), tmp_path / "out")


def test_side_files_of_any_name_are_gathered_into_one(tmp_path: Path) -> None:
    twin = Classifier()
    source = tmp_path / "src"
    source.mkdir()
    path = source / "exported.onnx"
    onnx.save_model(
        twin.model(),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
        convert_attribute=False,
    )
    assert len(list(source.iterdir())) == 4
    bundle = seal(source, path.read_bytes(), twin.signature, twin.source)
    assert sorted(p.name for p in bundle.path.iterdir() if p.is_file()) == [
        "bundle.json",
        "model.onnx",
        "model.onnx.data",
    ]
    loaded = onnx.load(bundle.path / "model.onnx")
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in loaded.graph.initializer}
    assert all(np.array_equal(found[name], weights) for name, weights in twin.weights.items())
