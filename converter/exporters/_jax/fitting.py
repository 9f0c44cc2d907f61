"""The weights of a checkpoint in the model that a factory built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from paritygate.converter.checkpoints import flax as files
from paritygate.converter.checkpoints.factories import Built
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._jax.calls import plan_calls
from paritygate.converter.exporters._jax.sources import is_linen, is_nnx
from paritygate.converter.exporters.base import Weights


def fit(
    built: Built, checkpoint: files.Checkpoint, config: ExportConfig
) -> tuple[Any, Any, Weights, list[str]]:
    """A source with the checkpoint's weights, its inputs, which weights they are, and sentences for the manifest.

    Raises:
        SourceError: If the weights do not fit.
        ExportError: If the factory gives nothing that weights fit into.
    """
    model, example = built.model, built.example
    inputs = config.inputs if config.inputs is not None else example
    if is_nnx(model):
        from flax import nnx

        state = nnx.state(model, nnx.Not(nnx.RngState))
        tree, selection, notes = _filled(nnx.to_pure_dict(state), checkpoint, config)
        nnx.replace_by_pure_dict(state, tree)
        nnx.update(model, state)
        return model, inputs, Weights(selection, checkpoint.sha256), notes
    if is_linen(model) and isinstance(example, Mapping) and "params" in example:
        model, inputs = (model, example), config.inputs
    elif is_linen(model):
        model = (model, _initial(model, inputs))
    if not (isinstance(model, tuple) and len(model) == 2):
        raise ExportError(
            f"factory {config.factory} gives a {type(model).__name__} without weights to compare with the "
            f"checkpoint; expected an nnx module, (linen module, example), or ((function, params), example)."
        )
    tree, selection, notes = _filled(model[1], checkpoint, config)
    return (model[0], tree), inputs, Weights(selection, checkpoint.sha256), notes


def _initial(module: Any, inputs: Any) -> Any:
    """The shapes of a linen module's variables at its example; nothing is computed."""
    if inputs is None:
        raise ExportError(
            "the shapes of a linen module's weights hang on its inputs; let the factory return (module, example), "
            "or give --samples x.npz (inputs=)."
        )
    plan = plan_calls(module.__call__, inputs)[0]

    def init(leaves: Any) -> Any:
        return plan.call(lambda *args, **kwargs: module.init(jax.random.key(0), *args, **kwargs), leaves)

    try:
        variables = jax.eval_shape(init, plan.arrays)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExportError(
            f"{type(module).__name__} cannot be built at its example inputs: {said[:200]}"
        ) from error
    return {name: part for name, part in variables.items() if name in ("params", "batch_stats") or part}


def _filled(tree: Any, checkpoint: files.Checkpoint, config: ExportConfig) -> tuple[Any, str, list[str]]:
    leaves, form = jax.tree_util.tree_flatten_with_path(tree)
    names = [tuple(_bare(step) for step in path) for path, _ in leaves]
    if not names or not all(names):
        raise SourceError(
            f"the model of {config.factory} has no named weights for those of {checkpoint.path}."
        )
    wanted = {name: (tuple(leaf.shape), leaf.dtype) for name, (_, leaf) in zip(names, leaves, strict=True)}
    values, selection, notes = files.take(checkpoint, wanted, config.weights, str(config.factory))
    return (
        jax.tree_util.tree_unflatten(form, [jax.numpy.asarray(values[name]) for name in names]),
        selection,
        notes,
    )


def _bare(step: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)
