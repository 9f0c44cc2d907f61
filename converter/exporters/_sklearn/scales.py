"""On what scale an estimator was fitted: where each of its features lies, and how far it spreads.

An estimator that was given no example is asked there. A date or a price lies far from a standard normal, and what
float32 loses of it shows on its own scale only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.trees import ensemble_of
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import Array, Feeds

FAR = 256.0
"""A feature whose mean is this many times its deviation loses too much where float32 subtracts the mean."""

_POINTS = ("cluster_centers_", "centroids_", "support_vectors_", "_fit_X", "X_fit_", "X_train_", "quantiles_")
"""Attributes with rows of the training data, or with points among them."""


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each feature, NaN where nothing is known.

    Attributes:
        center: float64[feature].
        spread: float64[feature].
    """

    center: Array
    spread: Array

    @classmethod
    def unknown(cls, width: int) -> Scale:
        """Nothing is known of any feature."""
        return cls(np.full(width, np.nan), np.full(width, np.nan))

    @property
    def is_known(self) -> bool:
        """Whether anything is known of where a feature lies."""
        return bool(np.isfinite(self.center).any())

    @property
    def is_far(self) -> bool:
        """Whether a feature lies so far from zero that float32 keeps too little of its spread."""
        with np.errstate(invalid="ignore"):
            return bool(np.any((self.spread > 0) & (np.abs(self.center) >= FAR * self.spread)))

    def filled(self, other: Scale) -> Scale:
        """What is not known here, taken from another."""
        return Scale(
            np.where(np.isfinite(self.center), self.center, other.center),
            np.where(np.isfinite(self.spread), self.spread, other.spread),
        )

    def rows(self, count: int) -> Array:
        """float64[count, feature] whose mean and deviation are these exactly; a standard normal's if not known."""
        normal = np.random.default_rng(0).standard_normal((count, self.center.size))
        normal = (normal - normal.mean(axis=0)) / normal.std(axis=0)
        center = np.where(np.isfinite(self.center), self.center, 0.0)
        # Of a feature whose place alone is known, a quarter of the way to zero is a guess that leaves it there.
        guess = np.where(center == 0.0, 1.0, np.abs(center) / 4)
        result: Array = center + np.where(np.isfinite(self.spread), self.spread, guess) * normal
        return result


def fitted_scale(estimator: Any, width: int) -> Scale:
    """What an estimator, or whoever inside it reads the features as they are given, knows of them.

    Args:
        estimator: A fitted estimator.
        width: How many features it takes.
    """
    scale = _own(estimator, width)
    for reader, places in _readers(estimator, width):
        inner = fitted_scale(reader, places.size)
        if inner.is_known or np.isfinite(inner.spread).any():
            center, spread = np.full(width, np.nan), np.full(width, np.nan)
            center[places], spread[places] = inner.center, inner.spread
            scale = scale.filled(Scale(center, spread))
    return scale


def scales_by_input(estimator: Any, inputs: Sequence[SourceInput]) -> dict[str, Scale]:
    """What is known of the columns of each input that holds numbers; nothing for other forms than matrices."""
    if any(len(spec.shape) != 2 or not isinstance(spec.shape[1], int) for spec in inputs):
        return {}
    width = sum(int(spec.shape[1] or 0) for spec in inputs)
    scale = fitted_scale(estimator, width)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    found: dict[str, Scale] = {}
    start = 0
    for spec in inputs:
        size = int(spec.shape[1] or 0)
        first = names.index(spec.name) if len(inputs) > 1 and spec.name in names else start
        if spec.dtype.is_floating or spec.dtype.is_integer:
            found[spec.name] = Scale(scale.center[first : first + size], scale.spread[first : first + size])
        start += size
    return found


def is_far(estimator: Any, scales: Mapping[str, Scale], example: Feeds) -> bool:
    """Whether float32 keeps too little of what an estimator was fitted on, or of the user's example.

    Trees are written without any sum of features, so that nothing is lost in them.
    """
    if ensemble_of(estimator) is not None:
        return False
    shown = [_among(array.astype(np.float64)) for array in example.values() if array.dtype.kind == "f"]
    return any(scale.is_far for scale in (*scales.values(), *shown))


# --- who reads what -----------------------------------------------------------------------------------------


def _readers(estimator: Any, width: int) -> Iterator[tuple[Any, Array]]:
    """Those inside an estimator that are given its features as they are, and the places of those features."""
    places = np.arange(width)
    if getattr(estimator, "steps", None):
        yield from _steps(estimator.steps, places)
        return
    for _, transformer, columns in getattr(estimator, "transformers_", ()):
        if not isinstance(transformer, str):
            yield transformer, column_places(estimator, columns, width)
    for _, transformer in getattr(estimator, "transformer_list", ()):
        if not isinstance(transformer, str):
            yield transformer, places
    yield from _members(estimator, places)


def _steps(steps: Any, places: Array) -> Iterator[tuple[Any, Array]]:
    """The steps of a pipeline up to the first that makes something else of its features."""
    for _, step in steps:
        if step is None or isinstance(step, str):
            continue
        yield step, places
        kept = _handed_on(step, places.size)
        if kept is None:
            return
        places = places[kept]


def _handed_on(step: Any, width: int) -> Array | None:
    """Places of the features that a step hands on as they are; None if it hands on something else."""
    if hasattr(step, "statistics_"):
        statistics = np.asarray(step.statistics_, dtype=object)
        whole = not step.add_indicator and all(value == value for value in statistics.tolist())
        return np.arange(width) if whole else None
    if hasattr(step, "get_support"):
        return np.flatnonzero(step.get_support())
    only_moves = hasattr(step, "with_mean") and not getattr(step, "with_std", True)
    does_nothing = hasattr(step, "inverse_func") and step.func is None
    return np.arange(width) if only_moves or does_nothing else None


def _members(estimator: Any, places: Array) -> Iterator[tuple[Any, Array]]:
    for entry in getattr(estimator, "calibrated_classifiers_", ()):
        yield entry.estimator, places
    for name in ("best_estimator_", "estimator_", "regressor_", "classifier_"):
        inner = getattr(estimator, name, None)
        # A recursive elimination fits its estimator on what is left.
        if hasattr(inner, "fit") and getattr(inner, "n_features_in_", places.size) == places.size:
            yield inner, places
    chosen = getattr(estimator, "estimators_features_", None)
    for index, member in enumerate(_flat(getattr(estimator, "estimators_", ()))):
        of_member = places if chosen is None else np.asarray(chosen[index], np.int64)
        if hasattr(member, "fit") and getattr(member, "n_features_in_", of_member.size) == of_member.size:
            yield member, of_member


def _flat(members: Any) -> list[Any]:
    """Members of an ensemble; numpy would take a pipeline, or a forest among them, for a sequence."""
    return list(members.ravel().tolist()) if isinstance(members, np.ndarray) else list(members)


def column_places(estimator: Any, columns: Any, width: int) -> Array:
    """Places of the columns that an entry of a column transformer picks: by names, places, a slice or a mask."""
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if isinstance(columns, slice):
        first, last = (
            names.index(end) if isinstance(end, str) else end for end in (columns.start, columns.stop)
        )
        if isinstance(columns.stop, str):
            last += 1  # a slice of names holds its end
        return np.arange(*slice(first, last, columns.step).indices(width))
    chosen = np.atleast_1d(np.asarray(columns))
    if chosen.dtype == np.bool_:
        return np.flatnonzero(chosen)
    if any(isinstance(value, str) and value not in names for value in chosen.tolist()):
        return np.zeros(0, np.int64)
    places = [
        names.index(value) if isinstance(value, str) else int(value) % width for value in chosen.tolist()
    ]
    return np.array(places, np.int64)


# --- what one estimator knows -------------------------------------------------------------------------------


def _own(estimator: Any, width: int) -> Scale:
    """What an estimator itself keeps of its training data."""
    known = Scale.unknown(width)
    for look in (_of_attributes, _of_points, _of_bins, _of_mixture, _of_components, _of_power, _of_trees):
        found = look(estimator, width)
        if found is not None and found.center.shape == found.spread.shape == (width,):
            known = known.filled(found)
    return known


_PAIRS: tuple[tuple[str, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    ("data_min_", lambda e: (e.data_min_ + e.data_max_) / 2, lambda e: (e.data_max_ - e.data_min_) / 4),
    ("max_abs_", lambda e: np.zeros_like(e.max_abs_), lambda e: e.max_abs_ / 2),
    ("center_", lambda e: e.center_, lambda e: e.scale_),
    ("_x_mean", lambda e: e._x_mean, lambda e: e._x_std),
    ("statistics_", lambda e: e.statistics_, lambda e: None),
    ("variances_", lambda e: None, lambda e: np.sqrt(e.variances_)),
    ("location_", lambda e: e.location_, lambda e: np.sqrt(np.diag(e.covariance_))),
)
"""By an attribute that tells the kind: where its features lie, and how far they spread."""


def _of_attributes(estimator: Any, width: int) -> Scale | None:
    for name, center, spread in _PAIRS:
        if getattr(estimator, name, None) is not None:
            return Scale(_numbers(center(estimator), width), _numbers(spread(estimator), width))
    if hasattr(estimator, "mean_") and hasattr(estimator, "var_"):
        variance = None if estimator.var_ is None else np.sqrt(np.maximum(estimator.var_, 0))
        return Scale(_numbers(estimator.mean_, width), _numbers(variance, width))
    if hasattr(estimator, "mean_") and not hasattr(estimator, "components_"):
        return Scale(_numbers(estimator.mean_, width), np.full(width, np.nan))
    return None


def _numbers(values: Any, width: int) -> Array:
    """float64[width]; NaN where there is nothing, or no number."""
    if values is None:
        return np.full(width, np.nan)
    flat = np.asarray(values, dtype=object).ravel().tolist()
    return np.array([v if isinstance(v, int | float | np.number) else np.nan for v in flat], np.float64)


def _of_points(estimator: Any, width: int) -> Scale | None:
    for name in _POINTS:
        points = getattr(estimator, name, None)
        if points is None or hasattr(points, "toarray"):  # sparse ones lie around zero
            continue
        matrix = np.asarray(points)
        if matrix.dtype.kind in "fiu" and matrix.ndim == 2 and matrix.shape[1] == width and len(matrix):
            within = 0.0
            if name == "cluster_centers_" and np.size(getattr(estimator, "labels_", ())):
                within = max(0.0, float(getattr(estimator, "inertia_", 0.0))) / estimator.labels_.size / width
            return _among(matrix.astype(np.float64), within)
    return None


def _among(points: Array, within: float | Array = 0.0) -> Scale:
    """The scale of what lies around points, with this variance around each."""
    finite = np.where(np.isfinite(points), points, np.nan)
    some = ~np.isnan(finite).all(axis=0)
    center, spread = np.full(points.shape[1], np.nan), np.full(points.shape[1], np.nan)
    center[some] = np.nanmean(finite[:, some], axis=0)
    spread[some] = np.sqrt(np.nanvar(finite[:, some], axis=0) + np.broadcast_to(within, some.shape)[some])
    return Scale(center, spread)


def _of_bins(estimator: Any, width: int) -> Scale | None:
    edges = getattr(estimator, "bin_edges_", None)
    if edges is None or len(edges) != width:
        return None
    with np.errstate(invalid="ignore"):  # a feature that never varied has one bin without ends
        center, spread = ([measure(values) for values in edges] for measure in (np.mean, np.std))
    return Scale(np.array(center, np.float64), np.array(spread, np.float64))


def _of_mixture(estimator: Any, width: int) -> Scale | None:
    """Classes or components with a mean and, where it is kept, a variance of their own."""
    if hasattr(estimator, "theta_") and hasattr(estimator, "var_"):
        return _among(estimator.theta_, np.mean(estimator.var_, axis=0))
    means = getattr(estimator, "means_", None)
    if means is None or np.shape(means)[1:] != (width,):
        return None
    within: Any = 0.0
    if hasattr(estimator, "covariances_"):
        within = _variances(estimator.covariances_, estimator.covariance_type)
    elif hasattr(estimator, "rotations_"):
        pairs = zip(estimator.rotations_, estimator.scalings_, strict=True)
        within = np.mean([(turn**2) @ size for turn, size in pairs], axis=0)
    return _among(np.asarray(means, np.float64), within)


def _variances(covariances: Array, kind: str) -> Any:
    if kind == "full":
        return np.mean(np.diagonal(covariances, axis1=1, axis2=2), axis=0)
    return np.diag(covariances) if kind == "tied" else np.mean(covariances, axis=0)


def _of_components(estimator: Any, width: int) -> Scale | None:
    """Principal components: their variances, turned back to the features."""
    mean, components = getattr(estimator, "mean_", None), getattr(estimator, "components_", None)
    if mean is None or components is None:
        return None
    variances = getattr(estimator, "explained_variance_", None)
    if variances is None:
        return Scale(_numbers(mean, width), np.full(width, np.nan))
    rest = float(np.nan_to_num(getattr(estimator, "noise_variance_", 0.0)))
    return Scale(_numbers(mean, width), np.sqrt((components**2).T @ variances + rest))


def _of_power(estimator: Any, width: int) -> Scale | None:
    """A power that makes normals is undone to see where they came from."""
    if not hasattr(estimator, "lambdas_") or not estimator.standardize:
        return None
    normal: Array = np.broadcast_to(np.array([[-1.0], [0.0], [1.0]]), (3, width))
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it was fitted on a frame, and this is a matrix
            return _among(np.asarray(estimator.inverse_transform(normal), np.float64))
    except ValueError:  # scikit-learn's word for a power that leads beyond all numbers
        return None


def _decisions(estimator: Any, width: int) -> list[tuple[Array, Array]]:
    """Features and thresholds of the trees that an estimator is made of."""
    members = getattr(estimator, "_predictors", None)
    if members is not None:
        ensemble = ensemble_of(estimator)
        trees = ensemble.sums.trees if ensemble is not None and isinstance(ensemble.sums, Forest) else ()
        return [(tree.feature[tree.is_split], tree.threshold[tree.is_split]) for tree in trees]
    chosen = getattr(estimator, "estimators_features_", None)
    found = []
    for index, member in enumerate([estimator, *_flat(getattr(estimator, "estimators_", ()))]):
        tree = getattr(member, "tree_", None)
        if tree is not None:
            split = tree.children_left != -1
            places = np.arange(width) if chosen is None or index == 0 else np.asarray(chosen[index - 1])
            found.append((places[tree.feature[split]], tree.threshold[split]))
    return found


def _of_trees(estimator: Any, width: int) -> Scale | None:
    pairs = _decisions(estimator, width)
    if not pairs:
        return None
    features, values = (np.concatenate(part) for part in zip(*pairs, strict=True))
    center, spread = np.full(width, np.nan), np.full(width, np.nan)
    for feature in np.unique(features).tolist():
        cuts = values[(features == feature) & np.isfinite(values)]
        if cuts.size > 1:
            center[feature], spread[feature] = np.mean(cuts), np.std(cuts)
    return Scale(center, spread)
