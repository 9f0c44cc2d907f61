"""Any probe of any dtype and shape comes back from a bundle as it was sealed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import helper

from paritygate.converter.bundle import BundleDraft, Probe, read_bundle, write_bundle
from paritygate.converter.types import Array, DType, Signature, TensorSpec
from support.sealed import model_of

NUMBERS = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
numbers = st.sampled_from(NUMBERS).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
texts = hnp.arrays(object, shapes, elements=st.text(max_size=6))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(numbers | texts, min_size=1, max_size=3), st.text(max_size=10).filter(bool))
def test_a_bundle_gives_back_what_was_sealed(arrays: list[Array], note: str) -> None:
    specs = tuple(TensorSpec(f"x{k}", DType.from_numpy(a.dtype), a.shape) for k, a in enumerate(arrays))
    answers = tuple(TensorSpec(f"y{k}", spec.dtype, spec.shape) for k, spec in enumerate(specs))
    signature = Signature(specs, answers)
    nodes = [helper.make_node("Identity", [f"x{k}"], [f"y{k}"]) for k in range(len(arrays))]
    inputs = {f"x{k}": array for k, array in enumerate(arrays)}
    outputs = {f"y{k}": array for k, array in enumerate(arrays)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(model_of(nodes, signature).SerializeToString())
        probes = [Probe(0, "base", {}, inputs, outputs)]
        draft = BundleDraft("m", path, signature, "numpy", "2", "hand", "1", probes, notes=(note,))
        written = write_bundle(draft, Path(folder, "bundle"))
        found = read_bundle(written.path)
        (probe,) = found.probes()
        assert found.digest == written.digest
        assert found.manifest["notes"] == [note]
        for expected, got in ((inputs, probe.inputs), (outputs, probe.outputs)):
            for name, array in expected.items():
                assert got[name].dtype == array.dtype
                assert got[name].shape == array.shape
                same = got[name].tolist() == array.tolist() if array.dtype == object else None
                assert same if same is not None else got[name].tobytes() == array.tobytes()
