"""The SavedModel that travels with a bundle: asked anew, compared with the sealed answers, laid out for serving.

TensorFlow Serving loads no ONNX. What it is given here is the very SavedModel that the bundle was exported from,
and only after it has answered every sealed probe as it did then: in the framework environment, from the bytes that
the bundle seals.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paritygate.converter._atomic import atomic_directory, write_file
from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.environments.protocol import OnEvent
from paritygate.converter.errors import BundleError, ParityError
from paritygate.converter.exporters._tensorflow.keeping import FOLDER, NOTE_FILE
from paritygate.converter.parity.compare import compare_outputs
from paritygate.converter.parity.replay import Replay
from paritygate.converter.parity.report import Figure

_SAMPLE = "sample:"


@dataclass(frozen=True)
class LaidOut:
    """A SavedModel where TensorFlow Serving finds it.

    Attributes:
        path: The directory of the version.
        version: Its number.
        signature: The signature that the bundle was exported from.
        figures: How its answers compare with the sealed ones.
    """

    path: Path
    version: int
    signature: str
    figures: tuple[Figure, ...]

    @property
    def max_abs_diff(self) -> float:
        """The largest difference between an answer and the sealed one."""
        return max(figure.max_abs_diff for figure in self.figures)

    @property
    def share(self) -> float:
        """The most of what is allowed that an answer has used, see `Figure.share`."""
        return max(figure.share for figure in self.figures)


def lay_out(
    bundle: Bundle,
    directory: Path,
    *,
    trust: bool = False,
    isolated: bool | None = None,
    on_event: OnEvent | None = None,
) -> LaidOut:
    """Write the SavedModel of a bundle as the next version of a model of TensorFlow Serving.

    Args:
        bundle: A bundle that was exported with `keep_saved_model`.
        directory: The model's base path; versions are the numbered directories in it.
        trust: Whether a SavedModel may be loaded that can run code or touch files.
        isolated: As for `export_source`.
        on_event: Told what goes on in the framework environment.

    Raises:
        BundleError: If no SavedModel travels with the bundle, or the version cannot be written.
        ParityError: If the SavedModel does not answer as it was sealed; nothing is written then.
        ConverterError: If it cannot be loaded.
    """
    names = [name for name in bundle.asset_names if name.startswith(f"{FOLDER}/")]
    if not names or NOTE_FILE not in bundle.asset_names:
        raise BundleError(
            f"no SavedModel travels with {bundle.path}. Export it again with --keep-saved-model "
            "(keep_saved_model=True)."
        )
    signature = str(json.loads(bundle.asset(NOTE_FILE))["signature"])
    with tempfile.TemporaryDirectory(prefix="paritygate-saved-model-") as folder:
        kept = Path(folder) / "kept"
        _write(bundle, names, kept)
        figures = _compare(bundle, kept, signature, trust=trust, isolated=isolated, on_event=on_event)
    bad = [figure for figure in figures if figure.verdict != "pass"]
    if bad:
        raise ParityError(
            f"the SavedModel that travels with {bundle.name!r} does not answer as it was sealed: "
            f"{bad[0].describe()}; {len(bad)} of {len(figures)} figures fail. Nothing was written."
        )
    version = _next_version(directory)
    with atomic_directory(directory / str(version)) as partial:
        _write(bundle, names, partial)
    return LaidOut(directory / str(version), version, signature, tuple(figures))


def _write(bundle: Bundle, names: list[str], target: Path) -> None:
    """Write the verified bytes of the SavedModel's files."""
    for name in names:
        file = target / name.removeprefix(f"{FOLDER}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, bundle.asset(name))


def _next_version(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    return 1 + max((int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()), default=0)


def _compare(
    bundle: Bundle,
    kept: Path,
    signature: str,
    *,
    trust: bool,
    isolated: bool | None,
    on_event: OnEvent | None,
) -> list[Figure]:
    """Ask the SavedModel every sealed probe, as samples of an export of its own, and compare the answers."""
    replay = Replay.of(bundle)
    config = ExportConfig(
        name=bundle.name,
        inputs=bundle.signature.inputs,
        input_names=tuple(spec.name for spec in bundle.signature.inputs),
        output_names=tuple(spec.name for spec in bundle.signature.outputs),
        signature=signature,
        trust=trust,
        samples=tuple(dict(probe.inputs) for probe in replay.probes),
        include_samples=True,
        float64=False,
    )
    again = export_source(
        str(kept), kept.parent / "again", config, framework="tensorflow", isolated=isolated, on_event=on_event
    )
    answers = [probe for probe in again.probes() if probe.case.startswith(_SAMPLE)]
    _check_all_asked(bundle, replay.probes, answers)
    return [
        figure
        for probe, answer in zip(replay.probes, answers, strict=True)
        for figure in compare_outputs(
            probe.outputs, answer.outputs, tolerance=replay.tolerance, weights=replay.weights,
            contexts=replay.contexts(probe, {}), case=probe.case,
        )
    ]  # fmt: skip


def _check_all_asked(bundle: Bundle, probes: Sequence[Probe], answers: Sequence[Probe]) -> None:
    same = [_same_inputs(probe, answer) for probe, answer in zip(probes, answers, strict=False)]
    if len(answers) != len(probes) or not all(same):
        raise ParityError(
            f"the SavedModel that travels with {bundle.name!r} could be asked {sum(same)} of {len(probes)} sealed "
            "probes, so it is not proven: they are too large to be asked and sealed twice."
        )


def _same_inputs(probe: Probe, answer: Probe) -> bool:
    pairs = zip(probe.inputs.values(), answer.inputs.values(), strict=True)
    return all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs)
