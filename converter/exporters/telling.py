"""Sizes of open dims at which a source's own Python code decides something: asked beside the usual sweep.

A framework that traces a model runs its Python once, at sizes that are open or at those of the example: an `if` on
a size may then be decided once and for all, and the other branch be in no graph. Where the framework keeps a log
of such decisions its exporter tells them (`SourceModel.telling_sizes`). Elsewhere the numbers beside comparisons
are read off the bytecode of the user's code, which is never run for it. That finds no number that is computed.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from paritygate.converter.exporters.binding import Binding
from paritygate.converter.exporters.owncode import Piece, is_truly, own_code, stored

if TYPE_CHECKING:
    from paritygate.converter.exporters.base import SourceModel

MOST_ELEMENTS = 2**22
"""Elements of all inputs together up to which a telling size is asked."""

_MOST_SIZES = 12
"""Sizes that are read off code; more of them are other numbers than sizes, most likely."""

_HUGE = 2**31
_WINDOW = 10
"""Values that are looked at before a comparison: what it compares was put on the stack by the last ones."""


@dataclass(frozen=True)
class TellingSizes:
    """What is asked of one dim, and what is not.

    Attributes:
        asked: Sizes to ask.
        untold: What the manifest says of those that are too large, or too many; empty where there are none.
    """

    asked: list[int]
    untold: list[str]


def telling_sizes(model: SourceModel, binding: Binding) -> dict[str, TellingSizes]:
    """The telling sizes of each open dim; known once the model was converted."""
    known = {dim: list(sizes) for dim, sizes in model.telling_sizes().items() if dim in binding.trace_dims}
    pieces, whole = own_code(model.own_code())
    unread = (
        []
        if whole
        else ["Not all objects of the source were looked through for sizes that its code asks for."]
    )
    read = list(dict.fromkeys(number for piece in pieces for number in numbers_in(piece)))
    found = {}
    for dim in binding.trace_dims:
        certain = known.get(dim, [])
        maybe = [size for size in read[:_MOST_SIZES] if size not in certain]
        small = [s for s in (*certain, *maybe) if _elements(binding, dim, s) <= MOST_ELEMENTS]
        untold = [
            *unread,
            *_said(dim, [s for s in certain if s not in small], "compares the size {dim!r} with {sizes}"),
        ]
        unread = []  # said once
        rest = [s for s in maybe if s not in small] + read[_MOST_SIZES:]
        untold += _said(dim, rest, "compares with {sizes}, which may be sizes of {dim!r}")
        if small or untold:
            found[dim] = TellingSizes(small, untold)
    return found


def _said(dim: str, sizes: Sequence[int], words: str) -> list[str]:
    if not sizes:
        return []
    listed = ", ".join(map(str, sizes[:_MOST_SIZES])) + (", ..." if len(sizes) > _MOST_SIZES else "")
    return [f"The source's own code {words.format(dim=dim, sizes=listed)}; they were not asked."]


def _elements(binding: Binding, dim: str, size: int) -> int:
    sizes = {**binding.trace_dims, dim: size}
    return sum(
        math.prod(sizes[d] if isinstance(d, str) else d for d in spec.shape) for spec in binding.inputs
    )


# --- the bytecode -------------------------------------------------------------------------------------------


def numbers_in(piece: Piece) -> Iterator[int]:
    """Whole numbers that may be sizes: beside a comparison, `in`, `%`, `min`, `max` and `range`, or as keys."""
    yield from _Reader(piece).numbers(piece.code)


@dataclass
class _Reader:
    """Follows the values that code loads, as far as they are constants or stored somewhere under a name."""

    piece: Piece
    locals: dict[str, Any] = field(default_factory=dict)

    def numbers(self, code: CodeType) -> Iterator[int]:
        self.locals = {**self.locals, **self.piece.held, **self.piece.defaults}
        if self.piece.owner is not None and code.co_argcount:
            self.locals.setdefault(code.co_varnames[0], self.piece.owner)
        loaded: list[Any] = []
        for instruction in dis.get_instructions(code):
            name = instruction.opname
            if isinstance(instruction.argval, tuple) and "FAST" in name:  # two in one, since Python 3.13
                self._two_locals(name, instruction.argval, loaded)
            elif name.startswith("LOAD_") or name == "IMPORT_NAME":
                if instruction.argval in _LOOKUPS or name == "LOAD_SUBSCR":
                    yield from _places(loaded)
                self._load(instruction, loaded)
            elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and instruction.argrepr == "[]"):
                yield from _places(loaded)
            elif name == "STORE_FAST":
                self.locals[instruction.argval] = loaded[-1] if loaded else None
                loaded.clear()
            elif name in ("COMPARE_OP", "CONTAINS_OP"):
                exact = name == "CONTAINS_OP" or instruction.argrepr.strip("bol()") in ("==", "!=")
                yield from _sizes(loaded, exact=exact)
                loaded.clear()
            elif name.startswith(("STORE_", "POP_", "RETURN", "JUMP")):
                loaded.clear()
            elif name in ("BUILD_MAP", "BUILD_CONST_KEY_MAP") or _is_remainder(instruction):
                yield from _sizes(loaded, exact=True)
            elif name.startswith("CALL") and any(
                value is builtin for value in loaded for builtin in _BUILTINS
            ):
                yield from _sizes(loaded, exact=False)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                yield from _Reader(self.piece, dict(self.locals)).numbers(const)

    def _two_locals(self, name: str, names: tuple[str, ...], loaded: list[Any]) -> None:
        """`LOAD_FAST_LOAD_FAST`, `STORE_FAST_LOAD_FAST` and `STORE_FAST_STORE_FAST`, in their order."""
        for kind, local in zip(name.replace("_BORROW", "").split("_FAST")[:2], names, strict=True):
            if kind.endswith("STORE"):
                self.locals[local] = loaded.pop() if loaded else None
            else:
                loaded.append(self.locals.get(local))

    def _load(self, instruction: dis.Instruction, loaded: list[Any]) -> None:
        name, value = instruction.opname, instruction.argval
        if name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            loaded.append(value)
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = loaded.pop() if loaded else None
            loaded.append(None if owner is None else stored(owner, value))
        elif name in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.append(_BUILTINS_BY_NAME.get(value, self.piece.globals.get(value)))
        else:
            loaded.append(self.locals.get(value) if isinstance(value, str) else None)


_LOOKUPS = ("get", "__getitem__", "setdefault")
_BUILTINS = (min, max, range)
_BUILTINS_BY_NAME: Mapping[str, Any] = {builtin.__name__: builtin for builtin in _BUILTINS}


def _is_remainder(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_OP" and instruction.argrepr in ("%", "//")


def _places(loaded: Sequence[Any]) -> Iterator[int]:
    """Keys of the dicts, and places in the lists of numbers, that something is looked up in."""
    for value in loaded[-_WINDOW:]:
        if is_truly(value, dict):
            yield from _sizes([value], exact=True)
        elif is_truly(value, (list, tuple)) and value and all(is_truly(v, (int, float)) for v in value):
            yield from range(1, min(len(value), _MOST_SIZES + 1))


def _sizes(loaded: Sequence[Any], *, exact: bool) -> Iterator[int]:
    """Sizes around the numbers that were loaded last; the number itself is enough where only it is special."""
    for value in loaded[-_WINDOW:]:
        members = value if is_truly(value, (tuple, list, set, frozenset, dict)) else (value,)
        for number in list(members)[:_MOST_SIZES]:
            if isinstance(number, int) and not isinstance(number, bool):
                near = (number,) if exact else (number, number + 1, number - 1)
                yield from (size for size in near if 0 < size < _HUGE)
