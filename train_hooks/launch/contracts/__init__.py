"""How each framework's processes find one another; a new framework is one file and one line here."""

from __future__ import annotations

from pkgutil import resolve_name

from paritygate.train_hooks.errors import UnknownName
from paritygate.train_hooks.launch.contracts.base import Contract

CONTRACTS = {
    "jax": "paritygate.train_hooks.launch.contracts.jax:JaxContract",
    "pytorch": "paritygate.train_hooks.launch.contracts.pytorch:TorchrunContract",
    "tensorflow": "paritygate.train_hooks.launch.contracts.tensorflow:TensorFlowContract",
}


def get_contract(framework: str) -> Contract:
    """The launch contract of a framework.

    Raises:
        UnknownName: If there is none.
    """
    if framework not in CONTRACTS:
        raise UnknownName("framework", framework, CONTRACTS)
    contract: Contract = resolve_name(CONTRACTS[framework])()
    return contract
