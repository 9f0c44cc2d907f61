"""One linear model or one set of trees, and what happens to its scores: what PMML is written of."""

from __future__ import annotations

from dataclasses import dataclass, field

from paritygate.converter.types import Array


@dataclass(frozen=True)
class Columns:
    """Columns that are input fields, each moved and scaled: (field - offset) * scale.

    Attributes:
        fields: Which field each column is.
        single: Whether their values are rounded to single precision.
        steps: How many nodes moved or scaled them.
        scaler: Whether the only one of them is a Scaler, which computes in single precision.
    """

    fields: tuple[str, ...]
    offset: Array
    scale: Array
    single: bool
    steps: int = 0
    scaler: bool = False

    @property
    def raw(self) -> bool:
        """Whether nothing has happened to the fields."""
        return self.steps == 0


@dataclass(frozen=True)
class Trees:
    """Nodes by tree and number, as the ensemble has them."""

    nodes: dict[int, dict[int, TreeNode]]
    columns: Columns


@dataclass(frozen=True)
class TreeNode:
    """A branch, or a leaf with its weight for each target."""

    mode: str
    feature: int = 0
    bound: float = 0.0
    yes: int = 0
    no: int = 0
    missing_is_yes: bool = False
    weights: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Scores before and after their link.

    Attributes:
        source: Trees, or the coefficients [targets, fields] of a linear model.
        columns: What it looks at.
        factor: What the sums are multiplied with.
        constant: What is added to them then.
        link: `none`, `logit` (each by itself), `exp` or `softmax`.
        shares: Whether they are divided by their sum afterwards.
        positive: Whether the one score is that of the second of two classes.
    """

    source: Trees | Array
    columns: Columns
    factor: float
    constant: Array
    link: str = "none"
    shares: bool = False
    positive: bool = False


@dataclass(frozen=True)
class Labels:
    """The class with the highest score."""

    scores: Scores
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Rest:
    """What a probability leaves of 1."""

    scores: Scores


@dataclass(frozen=True)
class Tabular:
    """A whole graph.

    Attributes:
        fields: Every input field in order, with its type.
        scores: Its scores.
        classes: Its classes in order; empty for a regression. Without an output for the class they are 0, 1, ...
        label: Name of the output with the class; empty where the model gives probabilities only.
        probabilities: Name of the output with their probabilities.
        prediction: Name of the output of a regression.
        whole_labels: Whether the classes are whole numbers; texts otherwise.
    """

    fields: dict[str, str]
    scores: Scores
    classes: tuple[str, ...] = ()
    label: str = ""
    probabilities: str = ""
    prediction: str = ""
    whole_labels: bool = True
