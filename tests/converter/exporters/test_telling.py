"""Sizes that the user's own code compares with are read off it; what cannot be a size of an input is left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from paritygate.converter.exporters.owncode import own_code
from paritygate.converter.exporters.telling import numbers_in

LIMIT = 51


class Config:
    longest = 61


class Model:
    """Stands for a layer: what `forward` compares is found through it, what `__init__` does is not asked."""

    width = 71
    special: ClassVar = {73: 2.0}
    factors = (1.0, 2.0, 3.0)

    def __init__(self) -> None:
        self.limit = 41 if np.ones(3).size == 3 else 99
        self.config = Config()

    def equal(self, x: Any) -> Any:
        return x * 2 if x.shape[0] == 37 else x

    def above(self, x: Any) -> Any:
        return x * 2 if x.shape[0] > 100 else x

    def in_a_name(self, x: Any) -> Any:
        n, most = x.shape[0], 45
        return x * 2 if n == most else x

    def of_its_own(self, x: Any) -> Any:
        return x if x.shape[0] >= self.limit else 2 * x

    def of_its_class(self, x: Any) -> Any:
        return x if x.shape[0] == self.width else 2 * x

    def of_a_part(self, x: Any) -> Any:
        return x if x.shape[0] == self.config.longest else 2 * x

    def of_the_module(self, x: Any) -> Any:
        return x if len(x) == LIMIT else 2 * x

    def one_of(self, x: Any) -> Any:
        return x if len(x) in (31, 33) else 2 * x

    def key(self, x: Any) -> Any:
        return x * {37: 2.0}.get(x.shape[0], 1.0)

    def looked_up(self, x: Any) -> Any:
        return x * self.special.get(x.shape[0], 1.0)

    def by_key(self, x: Any) -> Any:
        return x * self.special[x.shape[0]]

    def by_place(self, x: Any) -> Any:
        return x * self.factors[x.shape[0]]

    def multiple(self, x: Any) -> Any:
        return x if x.shape[0] % 38 else 2 * x

    def least(self, x: Any) -> Any:
        return x * min(len(x), 44)

    def inner(self, x: Any) -> Any:
        def doubled(y: Any) -> Any:
            return y * 2 if len(y) == 39 else y

        return doubled(x)

    @functools.lru_cache  # noqa: B019 - how a framework wraps a method
    def wrapped(self, x: Any) -> Any:
        return x if x.shape[0] == 35 else 2 * x

    def plain(self, x: Any) -> Any:
        return x.reshape(-1, 640) * 3


@pytest.fixture(scope="module")
def found() -> dict[str, list[int]]:
    """The sizes in each method, all of them found from an instance alone."""
    pieces, whole = own_code([Model()])
    assert whole
    by_name: dict[str, list[int]] = {}
    for piece in pieces:
        by_name.setdefault(piece.code.co_name, []).extend(numbers_in(piece))
    return by_name


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        ("equal", {37}), ("above", {99, 100, 101}), ("in_a_name", {45}), ("of_its_own", {40, 41, 42}),
        ("of_its_class", {71}), ("of_a_part", {61}), ("of_the_module", {LIMIT}), ("one_of", {31, 33}),
        ("key", {37}), ("looked_up", {73}), ("by_key", {73}), ("by_place", {2}),
        ("multiple", {38}), ("least", {43, 44, 45}), ("inner", {39}), ("wrapped", {35}),
        ("plain", set()),
    ],
)  # fmt: skip
def test_sizes_beside_comparisons_are_found(
    found: dict[str, list[int]], method: str, sizes: set[int]
) -> None:
    # 1 comes from the axis in `shape[0] > ...`; every sweep asks it anyhow.
    assert set(found[method]) - {1} == sizes


def test_code_that_builds_or_trains_is_not_read(found: dict[str, list[int]]) -> None:
    assert "__init__" not in found


def test_closures_defaults_and_partials_are_followed() -> None:
    def made(limit: int) -> Callable[..., Any]:
        def answer(x: Any, *, other: int = 83) -> Any:
            return x if len(x) == limit or len(x) == other else 2 * x

        return answer

    pieces, _ = own_code([functools.partial(made(82), other=3)])
    assert {n for piece in pieces for n in numbers_in(piece)} >= {82, 83}


def test_nothing_of_a_model_is_run() -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def forward(self) -> Any:
            raise AssertionError("a property was asked for")

        def call(self, x: Any) -> Any:
            return x if len(x) == 37 else 2 * x

    pieces, _ = own_code([Trap()])
    assert 37 in {n for piece in pieces for n in numbers_in(piece)}


def test_an_object_that_computes_its_class_is_not_asked_for_it() -> None:
    class Lazy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("evaluated")

    class Model:
        def __init__(self) -> None:
            self.setting = Lazy()
            self.many = [Lazy()] * 100_000

        def __call__(self, x: int) -> int:
            return x

    pieces, _ = own_code([Model()])
    assert pieces
