"""What the name of an entry of a checkpoint says of it: whole words, since a `semantic_head` holds no average."""

from __future__ import annotations

import re

_AVERAGED = {"ema", "swa", "avg", "average", "averaged", "averages"}
_OF_TRAINING = {
    "optim", "optimizer", "optimizers", "opt", "scheduler", "schedulers", "lr", "scaler", "grad", "amp", "loss",
    "state", "states", "dict",
}  # fmt: skip
_TELLING = {"optim", "optimizer", "optimizers", "opt", "scheduler", "schedulers", "scaler"}


def words(name: str) -> list[str]:
    """The words of a name in lower case: parts by anything but letters, and where capitals begin one."""
    apart = re.sub(r"([a-z0-9])([A-Z])|(?<=[A-Z])([A-Z][a-z])", r"\1 \2\3", name)
    return [word for word in re.split(r"[^A-Za-z]+", apart.lower()) if word]


def is_averaged(name: str) -> bool:
    """Whether weights under a name are averages over the training, such as `ema_model` or `modelEMA`."""
    return not _AVERAGED.isdisjoint(words(name))


def is_of_training(name: str) -> bool:
    """Whether an entry is the state of an optimizer, scheduler or scaler; every word has to say so."""
    said = set(words(name))
    return bool(said & _TELLING) and said <= _OF_TRAINING
