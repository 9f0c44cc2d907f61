"""How far an exported model may lie from its source: one table by precision, and the floor that noise sets.

Two keys must both turn (docs/parity.md). The *table key* bounds every single element,

    |candidate - source| <= atol * scale + rtol * |source| + max(8 * noise, 4 * peak) * scale

with the scale of its channel (`metrics.channel_scale`) and the largest move by rounding in it. The *noise key*
bounds the root mean square,

    rmse((candidate - float64 source) / scale) <= noise_factor * noise + noise_floor

where the noise is measured and not assumed: how far the source's own arithmetic lies from its float64 form, and
how far the candidate moves when its inputs move by one unit in the last place. Rounding moves all elements a
little and passes both; one changed weight moves some elements by more than rounding can, and fails at least one.
A sound model has noise near 1e-7 in float32: the noise key then asks for 1e-6 where the table allows 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from paritygate.converter.types import DType

NOISE_PER_ELEMENT = 8.0
"""How many times the noise a single element may lie off. Source and candidate both carry it, so their difference
has sqrt(2) times it as standard deviation; 8 is 5.6 sigma, which a million elements of rounding do not reach."""

PEAKS_PER_ELEMENT = 4.0
"""How many times the largest move seen in its channel a single element may lie off. A peak of a few draws is two
to three sigma, so this is the same for channels whose rounding is not that of the whole output."""


@dataclass(frozen=True)
class Tolerance:
    """What one precision allows.

    Attributes:
        rtol: Relative to the source's element.
        atol: Relative to the scale of the element's channel.
        budget: Share of an output's elements that may exceed the bound, by at most ten times.
        noise_factor: How many times the measured noise the root mean square may be.
        noise_floor: What is allowed beside the noise, relative to scale; a few rounding errors. Where the source
            computes in float64, and so shows nothing of the rounding, `atol` stands in its place.
        noise_cap: Noise above this is not believed, so that a wrong float64 reference cannot excuse everything.
    """

    rtol: float
    atol: float
    budget: float
    noise_factor: float
    noise_floor: float
    noise_cap: float

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"tolerance {entry.name} must be a finite number of at least 0, got {value!r}"
                )

    def to_json(self) -> dict[str, float]:
        """This tolerance as plain JSON values."""
        return {name: float(value) for name, value in asdict(self).items()}


TABLE: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float64": Tolerance(1e-7, 1e-9, 0.0, 4.0, 1e-10, 1e-8),
        "float32": Tolerance(1e-4, 1e-5, 0.0, 4.0, 5e-7, 1e-4),
        "float32-optimized": Tolerance(1e-3, 1e-4, 0.0, 4.0, 5e-7, 1e-4),
        "float16": Tolerance(1e-2, 2e-3, 1e-3, 4.0, 2e-4, 1e-2),
        "bfloat16": Tolerance(3e-2, 1.6e-2, 1e-3, 4.0, 1.6e-3, 5e-2),
    }
)
"""By rung. The rows are fitted to the defaults of torch.testing.assert_close, to ATOL_FOR_VALIDATION in
optimum's exporters (optimum/exporters/onnx/model_configs.py) and to onnxscript's tests of operators. The floor is
its atol/10, and tighter for optimised float32, where nothing but the order of sums changes."""

EXACT = "exact"
"""The rung of whole numbers, bools and strings: equal or not."""

_PRECISION = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
"""From coarse to fine."""


@dataclass(frozen=True)
class ToleranceConfig:
    """The tolerances in force.

    Attributes:
        table: By rung; the default is `TABLE`.
    """

    table: Mapping[str, Tolerance] = field(default_factory=lambda: TABLE)

    def __post_init__(self) -> None:
        if self.table.keys() != TABLE.keys():
            raise ValueError(f"the tolerance table needs exactly the rungs {', '.join(TABLE)}")

    def changed(self, rung: str, **values: float) -> ToleranceConfig:
        """The same configuration with some numbers of one rung changed; a certificate records that they were.

        Raises:
            ValueError: If the rung or a field is unknown, or a number is not finite or below 0.
        """
        if rung not in self.table:
            raise ValueError(f"unknown rung {rung!r}; known are {', '.join(self.table)}")
        unknown = values.keys() - {entry.name for entry in fields(Tolerance)}
        if unknown:
            raise ValueError(f"a tolerance has no {', '.join(sorted(unknown))}")
        return ToleranceConfig(dict(self.table) | {rung: replace(self.table[rung], **values)})

    @property
    def is_default(self) -> bool:
        """Whether nothing was changed."""
        return dict(self.table) == dict(TABLE)

    @property
    def loosened(self) -> tuple[str, ...]:
        """What allows more than `TABLE` does, one phrase each; empty for the default and anything tighter."""
        return tuple(
            f"{rung} {entry.name} {getattr(self.table[rung], entry.name):g}, ours is {getattr(ours, entry.name):g}"
            for rung, ours in TABLE.items()
            for entry in fields(Tolerance)
            if getattr(self.table[rung], entry.name) > getattr(ours, entry.name)
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ToleranceConfig:
        """Build a configuration from what `to_json` gave, without loss; its `default` is not believed.

        Raises:
            ValueError: If a rung or a number is missing, unknown or not allowed.
        """
        names = {entry.name for entry in fields(Tolerance)}
        for rung, numbers in value["rungs"].items():
            if numbers.keys() != names:
                raise ValueError(f"tolerance {rung!r} needs exactly the numbers {', '.join(sorted(names))}")
        return cls({rung: Tolerance(**numbers) for rung, numbers in value["rungs"].items()})

    def to_json(self) -> dict[str, Any]:
        """All rungs as plain JSON values."""
        return {
            "default": self.is_default,
            "rungs": {rung: tolerance.to_json() for rung, tolerance in self.table.items()},
        }


def rung_of(output: DType, weights: DType | None, *, optimized: bool) -> str:
    """Which row of the table judges an output.

    Args:
        output: The output's dtype.
        weights: The precision in which the model mostly keeps its weights and takes its inputs, or None if it has
            neither in floats. A float32 output of float16 weights is no more exact than float16.
        optimized: Whether the session rewrote the graph.
    """
    if not output.is_floating:
        return EXACT
    precision = min((dtype for dtype in (output, weights) if dtype is not None), key=_PRECISION.index)
    return "float32-optimized" if precision is DType.FLOAT32 and optimized else precision.value
