"""A rewritten program as ONNX, through jax2onnx's lowerings of JAX's own primitives and a few of ours.

jax2onnx is made to be given a function, which it traces with flax and jax.numpy replaced by look-alikes. Those are
not used here: one pools with other strides than flax by default, several refuse arguments by position, and none
of them is what the user's model calls. It gets the program that JAX itself traced, and lowers that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx_ir as ir
from jax.extend import core as jax_core

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._jax import confined
from paritygate.converter.exporters._jax.tracing import first_line, place_of_equation


class _NoForm(Exception):
    """A step that no ONNX operator of the opset computes; `lower` makes it an `UnsupportedOperator`."""


class _Rem:
    """`lax.rem`: the remainder with the sign of the dividend, which is C's fmod for floats and integers."""

    def lower(self, ctx: Any, eqn: Any) -> None:
        x, y = (ctx.get_value_for_var(var) for var in eqn.invars)
        answer = ctx.builder.Mod(x, y, fmod=1, _outputs=[ctx.fresh_name("rem")])
        _bind(ctx, eqn.outvars[0], answer, x.type)


class _MaxWindow:
    """`reduce_window_max` behind two plain axes, as the rewriter leaves it: MaxPool itself."""

    def lower(self, ctx: Any, eqn: Any) -> None:
        (x,) = (ctx.get_value_for_var(var) for var in eqn.invars)
        params = eqn.params
        if any(step != 1 for step in params["base_dilation"]):
            raise _NoForm("windows over a dilated base")
        if np.dtype(eqn.invars[0].aval.dtype).kind != "f":
            raise _NoForm(f"windows over {eqn.invars[0].aval.dtype}")
        pads = params["padding"][2:]
        answer = ctx.builder.MaxPool(
            x,
            kernel_shape=tuple(params["window_dimensions"][2:]),
            strides=tuple(params["window_strides"][2:]),
            pads=(*(low for low, _ in pads), *(high for _, high in pads)),
            dilations=tuple(params["window_dilation"][2:]),
            _outputs=[ctx.fresh_name("max_pool")],
        )
        _bind(ctx, eqn.outvars[0], answer, x.type)


def _bind(ctx: Any, var: Any, value: Any, kind: Any) -> None:
    from jax2onnx.plugins._ir_shapes import _ensure_value_metadata, _stamp_type_and_shape

    value.type = kind
    _stamp_type_and_shape(value, tuple(var.aval.shape))
    _ensure_value_metadata(ctx, value)
    ctx.bind_value_for_var(var, value)


_REFUSED = frozenset({"fft", "cumprod", "cumlogsumexp", "shift_left", "shift_right_arithmetic"})
"""Primitives that jax2onnx writes in operators of newer opsets or other types, which nothing reads at ours."""

_OWN = {"rem": _Rem(), "reduce_window_max": _MaxWindow()}


def lower(program: jax_core.ClosedJaxpr, opset: int) -> ir.Model:
    """Write a program as ONNX.

    Args:
        program: The rewritten program.
        opset: Version of the default operator set.

    Raises:
        UnsupportedOperator: Naming the primitive and the line of the user's code.
        ExportError: If jax2onnx fails otherwise.
    """
    with confined.contained_noise(), confined.plugins(_OWN) as registry:
        _refuse_unknown(program.jaxpr, registry)
        from jax2onnx.converter import conversion_api, lowering_dispatch
        from jax2onnx.converter.ir_postprocess import postprocess_ir_model

        inner, outputs = program.jaxpr, program.jaxpr.outvars
        double = any(str(getattr(v.aval, "dtype", "")) == "float64" for v in (*inner.invars, *outputs))
        context = conversion_api._create_ir_context(
            opset=opset,
            enable_double_precision=double,
            input_specs=[jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in inner.invars],
            frozen_params={},
            record_primitive_calls_file=None,
        )
        at: list[Any] = []
        try:
            conversion_api._bind_closed_jaxpr_constants(
                context, inner, program.consts, enable_double_precision=double,
                default_float=np.dtype(np.float64 if double else np.float32),
            )  # fmt: skip
            conversion_api._bind_jaxpr_inputs(context, inner, inputs_as_nchw=())
            for equation in inner.eqns:
                at[:] = [equation]
                part = _OneStep([equation])
                written = len(context.builder.nodes)
                lowering_dispatch.lower_jaxpr_with_plugins(
                    ctx=context, jaxpr=part, registry=registry, source="converter"
                )
                for node in list(context.builder.nodes)[written:]:
                    _refuse_unknown_form(node, opset)
            conversion_api._bind_jaxpr_outputs(
                context, inner, outputs_as_nchw=(), enable_double_precision=double
            )
            at.clear()
            model: ir.Model = conversion_api._build_and_finalize_ir_model(
                context, model_name="model", protective_clone=False, strict_optimizer_failures=True
            )
            postprocess_ir_model(model, promote_to_double=double)
        except ExportError:
            raise
        except Exception as error:
            raise _failed(error, at[0] if at else None) from error
    return model


class _OneStep:
    def __init__(self, eqns: list[Any]) -> None:
        self.eqns = eqns


def _refuse_unknown_form(node: ir.Node, opset: int) -> None:
    """Refuse what a lowering wrote in operators of newer opsets, or for types that the operator does not take.

    Raises:
        _NoForm: Naming the ONNX operator; `lower` tells it with the primitive and the line.
    """
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            for inner in graph:
                _refuse_unknown_form(inner, opset)
    if node.domain not in ("", "ai.onnx"):
        return
    if not onnx.defs.has(node.op_type, max_inclusive_version=opset):
        raise _NoForm(f"it needs {node.op_type}, which opset {opset} does not have")
    formal = onnx.defs.get_schema(node.op_type, opset).inputs
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None or not formal:
            continue
        types = formal[min(index, len(formal) - 1)].types
        if f"tensor({value.dtype.name.lower()})" not in types:
            raise _NoForm(f"{node.op_type} takes no {value.dtype.name.lower()} in opset {opset}")


def _graphs(attribute: Any) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.value]
    return list(attribute.value) if attribute.type == ir.AttributeType.GRAPHS else []


def _failed(error: Exception, equation: Any) -> Exception:
    if equation is None:
        return ExportError(f"jax2onnx cannot write the model: {first_line(error)}.")
    missing = re.search(r"No plugins registered for primitive '([^']+)'", str(error))
    operator = missing[1] if missing else equation.primitive.name
    said = str(error) if isinstance(error, _NoForm) else first_line(error)
    return _unsupported(operator, place_of_equation(equation), "" if missing else said)


def _unsupported(operator: str, place: str | None, said: str) -> UnsupportedOperator:
    where = f", used at {place}," if place else ""
    reason = f" ({said})" if said else ""
    return UnsupportedOperator(
        f"the operator {operator}{where} has no ONNX form in this exporter{reason}. Replace it, or compute it "
        f"outside the model.",
        operator=operator,
        module=place,
    )


def _refuse_unknown(jaxpr: Any, registry: Any) -> None:
    for equation in jaxpr.eqns:
        if equation.primitive.name not in registry or equation.primitive.name in _REFUSED:
            raise _unsupported(equation.primitive.name, place_of_equation(equation), "")
        if any("complex" in str(getattr(out.aval, "dtype", "")) for out in equation.outvars):
            raise _unsupported(equation.primitive.name, place_of_equation(equation), "complex numbers")
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, jax_core.ClosedJaxpr):
                    _refuse_unknown(part.jaxpr, registry)
