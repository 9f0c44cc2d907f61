"""Exceptions that nobody foresaw: one line for a file, the user's own for a model in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paritygate.converter.errors import BundleCorrupt, ConverterError, ExportError, SourceError
from paritygate.converter.exporters import export_model, get_exporter


def raises(error: BaseException) -> Callable[..., Any]:
    def opened(*_: Any) -> Any:
        raise error

    return opened


def exported(error: BaseException, source: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_exporter("onnx")), "open_source", raises(error))
    export_model(source, folder / "bundle", name="net", framework="onnx")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (TypeError("a bytes-like object is required"), SourceError, "TypeError: a bytes-like object"),
        (UnicodeDecodeError("utf-8", b"\x90", 0, 1, "invalid"), SourceError, "UnicodeDecodeError"),
        (RecursionError("maximum recursion\ndepth"), SourceError, "RecursionError: maximum recursion"),
        (MemoryError("Unable to allocate 2 GiB"), ExportError, "not enough memory .* 2 GiB"),
        (BundleCorrupt("b", file="x"), BundleCorrupt, "^b$"),
    ],
)
def test_a_file_is_refused_in_one_line(
    error: Exception, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises(kind, match=said) as caught:
        exported(error, str(file), tmp_path, monkeypatch)
    if kind is SourceError:
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(13, "Permission denied")])
def test_what_the_system_says_is_not_blamed_on_the_file(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises(OSError, match=error.strerror):
        exported(error, str(file), tmp_path, monkeypatch)


def test_what_a_builtin_raises_under_our_code_is_no_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paritygate.converter.exporters import unforeseen as ours

    def opened(*_: Any) -> Any:
        return exporter_reads(b"\xff")

    code = "def exporter_reads(data): return data.decode('ascii')"
    names: dict[str, Any] = {}
    exec(compile(code, ours.__file__, "exec"), names)
    exporter_reads = names["exporter_reads"]
    monkeypatch.setattr(type(get_exporter("onnx")), "open_source", opened)
    file = tmp_path / "net.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises(SourceError, match=r"damaged.*UnicodeDecodeError"):
        export_model(str(file), tmp_path / "bundle", name="net", framework="onnx")


def test_a_factory_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="mine"):
        exported(TypeError("mine"), "package.module:build", tmp_path, monkeypatch)


def test_an_exception_of_a_model_in_memory_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError, match="mine"):
        exported(KeyError("mine"), object(), tmp_path, monkeypatch)


def test_a_sentence_about_a_bad_argument_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises((ValueError, ConverterError)) as caught:
        export_model(str(file), tmp_path / "bundle", name="a name that no model may have/", framework="onnx")
    assert "does not foresee" not in str(caught.value)


def test_an_old_framework_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening and exporting both say what they meet, one inside the other."""
    old = "onnx 1.0 is older than 2.0"
    monkeypatch.setattr("paritygate.converter.exporters.unforeseen.too_old", lambda _: old)
    with pytest.raises(ConverterError) as caught:
        exported(RuntimeError("bad"), "net", tmp_path, monkeypatch)
    assert str(caught.value).count(old) == 1
