"""The double-precision twin of a Keras model with a Lambda layer: built only where its code is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.environments import real_environment, run_in

_SCRIPT = """
import json
import sys
from pathlib import Path

from paritygate.converter.exporters import export_model

folder, package = Path(sys.argv[1]), sys.argv[2]
if package == "tf_keras":
    import tf_keras as keras
else:
    import keras
serialization = sys.modules[f"{package}.src.saving.serialization_lib"]
layers = keras.layers
twice = layers.Lambda(lambda x: x * 2)
model = keras.Sequential([layers.Dense(4), twice])
model.build((None, 3))
said = {}
for trust in (False, True):
    bundle = export_model(model, folder / f"{package}{trust}", name="net", trust=trust)
    wide = [probe.float64 is not None for probe in bundle.probes()]
    said[str(trust)] = [any(wide), all(wide), serialization.in_safe_mode() is False]
(folder / "said.json").write_text(json.dumps(said))
"""


@pytest.mark.real
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_a_lambda_layer_has_a_twin_where_it_is_trusted_alone(package: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    run_in(real_environment("tensorflow"), script, tmp_path, package, folder=tmp_path)
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["False"] == [False, False, False]
    assert said["True"] == [True, True, False]
