"""Find the Python code that a model is made of, without running any of it.

Whatever hangs on a model is looked at where it is stored (instance dictionaries, closures, globals that its code
names); no attribute is asked for that a class could compute. Code of frameworks and of Python itself is passed by.
"""

from __future__ import annotations

import functools
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

MOST_OBJECTS = 100_000
"""Objects that are looked at; those nearest to the model come first."""

_MOST_MEMBERS = 10_000
"""Members of one list or dict that are looked at."""

_FRAMEWORKS = frozenset((
    "absl", "chex", "einops", "equinox", "flax", "google", "h5py", "haiku", "jax", "jax2onnx", "jaxlib", "keras",
    "mindspore", "ml_dtypes", "mpmath", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "opt_einsum",
    "optax", "optree", "orbax", "paddle", "paddle2onnx", "scipy", "six", "sympy", "tensorflow", "tf2onnx",
    "tf_keras", "torch", "torchaudio", "torchvision", "wrapt",
))  # fmt: skip
"""Packages whose code is no user's: what it compares is about its own arguments."""

_NOT_ASKED = frozenset((
    "__init__", "__new__", "__post_init__", "__repr__", "__setattr__", "build", "compute_output_shape", "fit",
    "from_config", "get_config", "test_step", "train_step",
))  # fmt: skip
"""Methods that build, train or describe a model; none of them answers."""

_PLAIN = (int, float, complex, str, bytes, type(None))
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_OURS = Path(__file__).parents[2]


@dataclass(frozen=True, eq=False)
class Piece:
    """Code that somebody wrote for a model, with what its names stand for.

    Attributes:
        code: The code of a function or method; functions inside it are among its constants.
        globals: Of its module.
        held: What its closure holds, by name.
        defaults: Default values of its parameters, by name.
        owner: The object whose method it is; None where there is none or it is not known.
    """

    code: CodeType
    globals: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    owner: Any = None


def own_code(roots: Sequence[Any]) -> tuple[list[Piece], bool]:
    """The code that models are made of, and whether all that hangs on them was looked at.

    Of lists and dicts with very many members only the first are looked at, which counts as not all.

    Args:
        roots: Models, layers, modules, functions.
    """
    walk = _Walk()
    walk.found(roots)
    while walk.waiting and len(walk.seen) < MOST_OBJECTS:
        walk.visit(walk.waiting.popleft())
    return list(walk.pieces.values()), not (walk.waiting or walk.cut)


def stored(owner: Any, name: str) -> Any:
    """What an object or its class stores under a name; None where that is nothing, or computed."""
    if isinstance(owner, ModuleType):
        return vars(owner).get(name)
    own = _instance_dict(owner)
    if name in own:
        return own[name]
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)


def is_truly(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value is of a type and not a proxy that says so (TensorFlow wraps lists and dicts in such)."""
    return issubclass(type(value), kind)


class _Walk:
    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.seen: dict[int, Any] = {}  # holds each, so that no other object gets its id
        self.pieces: dict[tuple[int, int], Piece] = {}
        self.cut = False

    def found(self, values: Any) -> None:
        for value in values:
            if not is_truly(value, _PLAIN) and id(value) not in self.seen:
                self.seen[id(value)] = value
                self.waiting.append(value)

    def visit(self, value: Any) -> None:
        if is_truly(value, FunctionType):
            self._function(value, None)
        elif is_truly(value, MethodType):
            self.found([value.__self__])
            self._function(value.__func__, value.__self__)
        elif is_truly(value, functools.partial):
            self.found([value.func, *value.args, *value.keywords.values()])
        elif is_truly(value, type):
            self._methods(value, None)
        elif not is_truly(value, ModuleType):
            self.cut |= _is_cut(value)
            self.found(_members(value))
            self._methods(type(value), value)

    def _methods(self, kind: type, owner: Any) -> None:
        for function in _methods_of(kind):
            self._function(function, owner)

    def _function(self, function: Any, owner: Any) -> None:
        if not is_truly(function, FunctionType):
            self.found([function])
            return
        self.found(vars(function).values())
        held = _held(function)
        self.found(held.values())
        if is_users(function.__code__) and (id(function.__code__), id(owner)) not in self.pieces:
            self.pieces[id(function.__code__), id(owner)] = Piece(
                function.__code__, function.__globals__, held, _defaults(function), owner
            )
            self.found(_named(function))


def _is_cut(value: Any) -> bool:
    """Whether a container has more members than are looked at; numbers and texts among them are nobody's code."""
    for container in (dict, list, tuple, set, frozenset, deque):
        if is_truly(value, container) and container.__len__(value) > _MOST_MEMBERS:
            members: Any = dict.values(value) if container is dict else container.__iter__(value)
            return any(not is_truly(member, _PLAIN) for member in islice(members, _MOST_MEMBERS, None))
    return False


def _members(value: Any) -> Iterator[Any]:
    if is_truly(value, dict):
        yield from islice(dict.values(value), _MOST_MEMBERS)
    container: Any  # the container's own iteration, not one that a subclass computes
    for container in (list, tuple, set, frozenset, deque):
        if is_truly(value, container):
            yield from islice(container.__iter__(value), _MOST_MEMBERS)
    yield from _instance_dict(value).values()
    for kind in type(value).__mro__:
        for name, part in vars(kind).items():
            slot = isinstance(part, MemberDescriptorType) and is_written_in_python(kind)
            if slot or (isinstance(part, GetSetDescriptorType) and name == "__wrapped__"):  # an object proxy
                try:
                    yield part.__get__(value)
                except (AttributeError, ValueError):
                    continue


def is_written_in_python(kind: type) -> bool:
    """Whether the slots of a class are its author's and not those of a type written in C."""
    return "__slots__" in vars(kind)


def _instance_dict(value: Any) -> Mapping[str, Any]:
    kinds = type(value).__mro__
    access = next((vars(kind)["__dict__"] for kind in kinds if "__dict__" in vars(kind)), None)
    if not isinstance(access, GetSetDescriptorType):
        return {}
    found = access.__get__(value)
    return found if isinstance(found, dict | MappingProxyType) else {}


@functools.lru_cache(maxsize=4096)
def _methods_of(kind: type) -> tuple[FunctionType, ...]:
    """Functions of a class and of its bases that somebody wrote for models, however they are wrapped."""
    found: list[FunctionType] = []
    for each in kind.__mro__:
        for name, value in vars(each).items():
            if name not in _NOT_ASKED:
                found += [function for function in _unwrapped(value) if is_users(function.__code__)]
    return tuple(found)


def _unwrapped(value: Any, depth: int = 4) -> Iterator[FunctionType]:
    """The functions inside of decorators, `tf.function`, `jax.jit`, properties and the like."""
    if is_truly(value, FunctionType):
        yield value
    if depth == 0 or is_truly(value, (*_PLAIN, type, ModuleType, list, tuple, dict)):
        return
    inner = [stored_part(value, name) for name in ("__func__", "fget", "__wrapped__")]
    inner += [part for part in _instance_dict(value).values() if callable(part)]
    for part in inner:
        if part is not None and part is not value:
            yield from _unwrapped(part, depth - 1)


def stored_part(value: Any, name: str) -> Any:
    """What a type written in C stores under a name, such as the function of a static method."""
    part = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
    if isinstance(part, MemberDescriptorType | GetSetDescriptorType):
        try:
            return part.__get__(value)
        except (AttributeError, ValueError):
            return None
    return None


def _held(function: FunctionType) -> dict[str, Any]:
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # empty
            continue
    return held


def _defaults(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function's code names: globals, and of modules that are somebody's own what it takes from them."""
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield value
        elif is_users_file(getattr(value, "__file__", None) or "<frozen>"):
            yield from (part for key, part in list(vars(value).items()) if key in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def is_users(code: CodeType) -> bool:
    """Whether code is neither a framework's, nor Python's, nor ours."""
    return is_users_file(code.co_filename)


@functools.lru_cache(maxsize=4096)
def is_users_file(name: str) -> bool:
    """See `is_users`; a name such as `<stdin>` is a person's."""
    path = Path(name)
    if name.startswith("<frozen") or path.is_relative_to(_OURS):
        return False
    for packages in ("site-packages", "dist-packages"):
        if packages in path.parts[:-1]:
            return path.parts[path.parts.index(packages) + 1].removesuffix(".py") not in _FRAMEWORKS
    return not path.is_relative_to(_STANDARD_LIBRARY)
