"""Files of every form, damaged in ways that suit what they hold: refused in one line or exported, nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paritygate.converter.checkpoints.sniffing import Form
from support.exporter_cases import cases_of
from support.fuzzing import NOT_SAMPLED, SAMPLES, faults_of

_SECONDS = float(os.environ.get("PARITYGATE_FUZZ_SECONDS", "60"))
"""For each file; what all of them take is about forty times as long."""

_SEED = int(os.environ.get("PARITYGATE_FUZZ_SEED", "1"))
_FILES = 100_000


def test_every_form_that_is_read_has_a_sample_to_damage() -> None:
    read = {form for form in Form if form.exporters}
    assert read == set(SAMPLES) | set(NOT_SAMPLED)
    for samples in SAMPLES.values():
        for exporter, case in samples:
            assert case in cases_of(exporter).files, (exporter, case)


@pytest.mark.soak
@pytest.mark.parametrize(("exporter", "case"), sorted({s for found in SAMPLES.values() for s in found}))
def test_a_damaged_file_is_refused_in_one_line_or_exported(exporter: str, case: str, tmp_path: Path) -> None:
    faults = faults_of(exporter, case, seed=_SEED, files=_FILES, seconds=_SECONDS, folder=tmp_path / "work")
    said = "\n\n".join(f"{fault.file}: {fault.said[-1500:]}" for fault in faults[:5])
    assert not faults, said.encode("ascii", "backslashreplace").decode()
