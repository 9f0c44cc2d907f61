"""Pickled estimators: refused unless trusted, opened with one line for whatever goes wrong."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

from paritygate.converter.errors import ExportError, ModuleMissing, SourceError, UnsafeSource


def import_module(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleMissing(
            f"exporting a scikit-learn estimator needs {module}, which cannot be imported here ({error}). "
            "Install paritygate[sklearn], or export the saved file with `paritygate export --trust`, which uses "
            "an environment of its own.",
            module=module,
        ) from error


def refuse_untrusted(path: Path, *, trust: bool) -> None:
    if not trust:
        raise UnsafeSource(
            f"{path} is a pickle, and opening a pickle runs whatever code it carries; it was not opened. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )


def load(path: Path, notes: list[str], *, trust: bool) -> Any:
    refuse_untrusted(path, trust=trust)
    joblib = import_module("joblib")
    import_module("sklearn")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            estimator = joblib.load(path)
        except ModuleNotFoundError as error:
            raise ModuleMissing(
                f"{path} needs the module {error.name!r}, which is not installed here.",
                module=str(error.name).partition(".")[0],
            ) from error
        except Exception as error:
            raise SourceError(
                f"{path} cannot be opened: {type(error).__name__}: {first_line(error)}. "
                "Expected a whole file written by joblib.dump or pickle.dump."
            ) from error
    notes += dict.fromkeys(
        " ".join(str(w.message).split())
        for w in heard
        if type(w.message).__name__ == "InconsistentVersionWarning"
    )
    return estimator


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no text"])[0]


def refuse_unfitted(estimator: Any) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise ExportError(
            f"{type(estimator).__name__} is not fitted; call fit before exporting it."
        ) from error
