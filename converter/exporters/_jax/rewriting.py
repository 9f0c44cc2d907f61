"""A program in a form that can become ONNX, and the same program in other floating-point types.

The rewriter walks a traced program and says every step again through JAX itself, so that what it writes is again
a program that JAX can run:

- calls (`jit`, `remat`, custom derivatives) are replaced by what they do;
- what has no ONNX operator, or another one than its name says, takes a form that has (`forms.py`);
- a choice among many branches becomes choices between two, a scan from the end one over reversed rows;
- what hangs on no input and is small or random is computed here, once;
- floats change their type where that is asked for: bfloat16 and float16 are computed in float32, for which every
  runtime has kernels, and the double-precision twin of a program is the program with all floats float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core, source_info_util
from jax.extend import core as jax_core

from paritygate.converter.exporters._jax.forms import ONNX_RULES, Rule

DTypes = Mapping[np.dtype[Any], np.dtype[Any]]

_FOLDED_BYTES = 1 << 16
"""What hangs on no input is computed here up to this size; a larger one is mostly a broadcast number."""

_RANDOM = frozenset(
    {"random_seed", "random_wrap", "random_unwrap", "random_bits", "random_split", "random_fold_in",
     "threefry2x32"}
)  # fmt: skip
"""Parts of JAX's random generators, which have no ONNX form; they are always computed here."""


class Rewriter:
    """Says programs again, with rules of its own for some primitives.

    Args:
        dtypes: Floating-point types to replace.
        for_onnx: Whether to bring the program into the form for ONNX, too (`forms.py`).
    """

    def __init__(self, dtypes: DTypes, *, for_onnx: bool) -> None:
        self._dtypes = dict(dtypes)
        self.for_onnx = for_onnx

    def rewrite(
        self, program: jax_core.ClosedJaxpr, avals: Sequence[jax.ShapeDtypeStruct]
    ) -> jax_core.ClosedJaxpr:
        """The program again, for inputs whose types are already the replacing ones."""
        return jax.make_jaxpr(lambda *args: self.run(program, args))(*avals)

    def run(self, program: jax_core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """What a program gives for some inputs."""
        return self._run(program.jaxpr, [self._constant(value) for value in program.consts], args)

    def dtype(self, dtype: Any) -> Any:
        """The type that replaces another one; the same where there is none."""
        try:
            return self._dtypes.get(np.dtype(dtype), dtype)
        except TypeError:  # random keys have types that numpy does not know
            return dtype

    def aval(self, aval: Any) -> jax.ShapeDtypeStruct:
        """A shape with its type replaced."""
        return jax.ShapeDtypeStruct(aval.shape, self.dtype(aval.dtype))

    def _constant(self, value: Any) -> Any:
        if not hasattr(value, "dtype"):
            return value
        wanted = self.dtype(value.dtype)
        return value if wanted == value.dtype else np.asarray(value).astype(wanted)

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return self._literal(atom) if isinstance(atom, jax_core.Literal) else values[atom]

        last = _last_uses(jaxpr)
        for index, equation in enumerate(jaxpr.eqns):
            with _at(equation):
                given = [read(atom) for atom in equation.invars]
                answers = self._step(equation, given)
            values.update(zip(equation.outvars, answers, strict=True))
            for dead in last.get(index, ()):
                values.pop(dead, None)
        return [read(atom) for atom in jaxpr.outvars]

    def _literal(self, atom: Any) -> Any:
        wanted = self.dtype(atom.aval.dtype)
        return np.asarray(atom.val, dtype=wanted)

    def _step(self, equation: Any, given: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if self._is_known(equation, given):
            with jax.ensure_compile_time_eval():
                return self._say(name, equation, given)
        return self._say(name, equation, given)

    def _is_known(self, equation: Any, given: Sequence[Any]) -> bool:
        """Whether a step hangs on no input, and is worth computing here."""
        if equation.primitive.name == "dim_as_value":  # an open size as a number
            return False
        if not self.for_onnx or any(isinstance(value, core.Tracer) for value in given):
            return False
        if equation.primitive.name in _RANDOM or any(_is_key(value) for value in given):
            return True
        try:
            size = sum(math.prod(v.aval.shape) * np.dtype(v.aval.dtype).itemsize for v in equation.outvars)
            return bool(size <= _FOLDED_BYTES)
        except (TypeError, core.InconclusiveDimensionOperation):  # a type that has no size, or an open one
            return False

    def _say(self, name: str, equation: Any, given: list[Any]) -> list[Any]:
        params = equation.params
        inner = _inlined(name, params)
        if inner is not None:
            return self._run(inner.jaxpr, [self._constant(value) for value in inner.consts], given)
        rule = _RULES.get(name) or (ONNX_RULES.get(name) if self.for_onnx else None)
        if rule is not None:
            return rule(self, equation, given)
        return self.bind(equation, given)

    def bind(self, equation: Any, given: Sequence[Any]) -> list[Any]:
        """The same step, its types and the programs in it replaced."""
        replaced = {key: self._param(value) for key, value in equation.params.items()}
        params = equation.primitive.get_bind_params(replaced)
        answer = equation.primitive.bind(*given, **params)
        return list(answer) if equation.primitive.multiple_results else [answer]

    def _param(self, value: Any) -> Any:
        """A parameter with the type replaced that it is; a program in it is said again, too."""
        if isinstance(value, jax_core.ClosedJaxpr):
            return self.rewrite(value, [self.aval(v.aval) for v in value.jaxpr.invars])
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
            return self.dtype(value)
        return value

    def function(self, program: jax_core.ClosedJaxpr) -> Callable[..., list[Any]]:
        """A program as a function."""
        return lambda *args: self.run(program, args)


def _at(equation: Any) -> Any:
    """The context in which a step that is said again has the place in the user's code that it had.

    The steps inside a function of JAX's own, which is traced once for all users, have none; theirs is the call's.
    """
    source = equation.source_info
    traceback = source.traceback
    if traceback is None or source_info_util.user_frame(traceback) is None:
        traceback = source_info_util.current().traceback
    return source_info_util.user_context(traceback, name_stack=source.name_stack)


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Which values are dead after which step; large weights are not to be held twice."""
    kept = {atom for atom in jaxpr.outvars if not isinstance(atom, jax_core.Literal)}
    last: dict[Any, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for atom in equation.invars:
            if not isinstance(atom, jax_core.Literal) and atom not in kept:
                last[atom] = index
    by_step: dict[int, list[Any]] = {}
    for atom, index in last.items():
        by_step.setdefault(index, []).append(atom)
    return by_step


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _inlined(name: str, params: Mapping[str, Any]) -> jax_core.ClosedJaxpr | None:
    """The program inside a call, or None for what is no plain call."""
    if name not in _CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = params.get(key)
        if isinstance(inner, jax_core.ClosedJaxpr):
            return inner
        if isinstance(inner, jax_core.Jaxpr):
            return jax_core.ClosedJaxpr(inner, [])
    return None


_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
     "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"}
)  # fmt: skip


# --- control flow: the same, around programs that are said again --------------------------------------------


def _scan(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    params = equation.params
    if not isinstance(params["length"], int):  # an open size, which lax.scan itself does not take
        return rewriter.bind(equation, given)
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    consts = given[:num_consts]
    carry, xs = given[num_consts : num_consts + num_carry], given[num_consts + num_carry :]
    step = rewriter.function(params["jaxpr"])

    def body(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        answers = step(*consts, *state, *row)
        return answers[:num_carry], answers[num_carry:]

    turned = params["reverse"] and rewriter.for_onnx
    if turned:
        xs = [lax.rev(row, (0,)) for row in xs]
    state, ys = lax.scan(
        body, _as_arrays(carry), _as_arrays(xs), length=params["length"],
        reverse=params["reverse"] and not turned, unroll=params["unroll"],
    )  # fmt: skip
    return [*state, *(lax.rev(row, (0,)) if turned else row for row in ys)]


def _while(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    params = equation.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, state = given[:first], given[first : first + second], given[first + second :]
    goes_on, step = rewriter.function(params["cond_jaxpr"]), rewriter.function(params["body_jaxpr"])
    return list(
        lax.while_loop(
            lambda values: goes_on(*cond_consts, *values)[0],
            lambda values: step(*body_consts, *values),
            _as_arrays(state),
        )
    )


def _cond(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    index, *operands = given
    branches = [rewriter.function(branch) for branch in equation.params["branches"]]
    if not isinstance(index, core.Tracer):
        return branches[int(np.clip(index, 0, len(branches) - 1))](*operands)
    return _choose(index, branches, _as_arrays(operands))


def _choose(index: Any, branches: Sequence[Callable[..., list[Any]]], operands: list[Any]) -> list[Any]:
    """A choice by number as choices between two, which is all that ONNX's If can say."""
    if len(branches) == 1:
        return branches[0](*operands)
    first = index if index.dtype == np.bool_ else index > 0
    rest = branches[1:]
    return list(
        lax.cond(first, lambda *args: _choose(index - 1, rest, list(args)), branches[0], *operands)
        if len(rest) > 1
        else lax.cond(first, rest[0], branches[0], *operands)
    )


def _as_arrays(values: Sequence[Any]) -> list[Any]:
    """Values of which none is weakly typed, so that a loop's state keeps its types."""
    return [v if isinstance(v, core.Tracer) else jnp.asarray(v, dtype=v.dtype) for v in values]


_RULES: dict[str, Rule] = {"scan": _scan, "while": _while, "cond": _cond}
