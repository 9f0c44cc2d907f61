"""Read a pickle as data: nothing that it names is imported, built or called.

A pickle is a program for a small stack machine. Here every instruction is carried out on plain values alone. What
a pickle asks to import becomes a `Global`, which is two texts; what it asks to call or to build becomes a `Stub`,
which remembers what was asked for. A reader may know better forms of some globals (`Rebuild`), which are its own
functions. So the callbacks, arguments and paths that training frameworks leave in a checkpoint cost nothing.

Bounded in memory and time: no more bytes than are there are ever asked for, the number of instructions is limited
(one makes at most one small object), and keys are texts and numbers only, since hashing a nested tuple that refers
to itself in halves takes for ever.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

MAX_STEPS = 8_000_000
"""Instructions of one pickle. A checkpoint of ten thousand tensors has about half a million."""

MAX_BYTES = 2**29
"""Bytes of one pickle, the tensors' own values not counted: they lie outside of it."""

_LARGE_INTEGER = 2**60


class BadPickle(ValueError):
    """The bytes are no pickle, are cut off, or ask for more than a checkpoint needs."""


@dataclass(frozen=True)
class Global:
    """The name of a class or function; what it names is not looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        text = f"{self.module[:100]}.{self.name[:100]}"  # it may hold anything, and goes into one line
        return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(eq=False)
class Stub:
    """What a pickle wanted to have built, as far as it says so itself.

    Attributes:
        of: What should have been called.
        arguments: With what.
        state: What the object should have been given afterwards.
        entries: Entries of a foreign kind of dict.
        items: Members of a foreign kind of list or set.
    """

    of: Any
    arguments: Any = ()
    state: Any = None
    entries: dict[Any, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return str(self.of) if isinstance(self.of, Global) else "a nested object"


Rebuild = Mapping[tuple[str, str], Callable[..., Any]]
"""(module, name) -> our own function that takes the arguments of the call and gives a plain value."""


class _Window:
    """A file of which no more bytes can be asked for than are left of a limit."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def read(self, size: int) -> bytes:
        if size < 0 or size > self._left:
            raise BadPickle(f"it asks for {size} bytes where {self._left} may be left")
        data = self._file.read(size)
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        line = self._file.readline(min(self._left, 1 << 20))
        self._left -= len(line)
        return line


def read_pickle(
    file: BinaryIO,
    *,
    size: int,
    rebuild: Rebuild,
    persistent: Callable[[Any], Any] | None = None,
) -> tuple[Any, set[Global]]:
    """The content of a pickle, and the globals that became stubs.

    Args:
        file: Read from where it stands to the end of the pickle, and not further.
        size: Bytes that are there.
        rebuild: Calls that have a form of ours.
        persistent: What a persistent id stands for; None refuses them.

    Raises:
        BadPickle: If it cannot be read.
    """
    machine = _Machine(rebuild, persistent)
    try:
        return machine.run(_Window(file, min(size, MAX_BYTES)))
    except BadPickle:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BadPickle(f"{type(error).__name__}: {str(error)[:150]!a}") from error


_MARK = object()


class _Machine:
    def __init__(self, rebuild: Rebuild, persistent: Callable[[Any], Any] | None) -> None:
        self._rebuild = rebuild
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.foreign: set[Global] = set()

    def run(self, window: _Window) -> tuple[Any, set[Global]]:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(cast(BinaryIO, window))):
            if step > MAX_STEPS:
                raise BadPickle(f"it has more than {MAX_STEPS} instructions")
            name = opcode.name
            if name == "STOP":
                return self._pop(), self.foreign
            if name in _PLAIN:
                self._push(argument)
            elif name in _CONSTANTS:
                self._push(_CONSTANTS[name]())
            elif name not in ("PROTO", "FRAME"):
                self._step(name, argument)
        raise BadPickle("it ends before it says so")

    def _step(self, name: str, argument: Any) -> None:
        method = getattr(self, f"_do_{name.lower()}", None)
        if method is None:
            raise BadPickle(f"the instruction {name} has no place in a checkpoint")
        if name in _WITH_ARGUMENT:
            method(argument)
        else:
            method()

    # --- the stack ---

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise BadPickle("a value is missing")
        return value

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise BadPickle("a value is missing")
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _do_mark(self) -> None:
        self._push(_MARK)

    def _do_pop(self) -> None:
        self._stack.pop()

    def _do_pop_mark(self) -> None:
        self._since_mark()

    def _do_dup(self) -> None:
        self._push(self._top())

    # --- the memo ---

    def _do_memoize(self) -> None:
        self._memo[len(self._memo)] = self._top()

    def _do_put(self, index: int) -> None:
        self._memo[index] = self._top()

    _do_binput = _do_long_binput = _do_put

    def _do_get(self, index: int) -> None:
        self._push(self._memo[index])

    _do_binget = _do_long_binget = _do_get

    # --- containers ---

    def _do_tuple(self) -> None:
        self._push(tuple(self._since_mark()))

    def _do_tuple1(self) -> None:
        self._push((self._pop(),))

    def _do_tuple2(self) -> None:
        second, first = self._pop(), self._pop()
        self._push((first, second))

    def _do_tuple3(self) -> None:
        third, second, first = self._pop(), self._pop(), self._pop()
        self._push((first, second, third))

    def _do_list(self) -> None:
        self._push(self._since_mark())

    _do_frozenset = _do_list  # members of a set may not be hashable here

    def _do_dict(self) -> None:
        values = self._since_mark()
        entries: dict[Any, Any] = {}
        _set_items(entries, values)
        self._push(entries)

    def _do_append(self) -> None:
        value = self._pop()
        _members(self._top()).append(value)

    def _do_appends(self) -> None:
        values = self._since_mark()
        _members(self._top()).extend(values)

    _do_additems = _do_appends

    def _do_setitem(self) -> None:
        value, key = self._pop(), self._pop()
        _set_items(_entries(self._top()), [key, value])

    def _do_setitems(self) -> None:
        values = self._since_mark()
        _set_items(_entries(self._top()), values)

    # --- what would import, call and build ---

    def _do_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push(Global(module, name))

    def _do_stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise BadPickle("a global is not named by texts")
        self._push(Global(module, name))

    def _do_reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        self._push(self._called(function, arguments))

    _do_newobj = _do_reduce

    def _do_newobj_ex(self) -> None:
        keywords, arguments, function = self._pop(), self._pop(), self._pop()
        self._push(self._stub(function, (arguments, keywords)))

    def _do_obj(self) -> None:
        values = self._since_mark()
        self._push(self._called(values[0], tuple(values[1:])))

    def _do_inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push(self._called(Global(module, name), tuple(self._since_mark())))

    def _do_build(self) -> None:
        state, target = self._pop(), self._top()
        if isinstance(target, Stub):
            target.state = state

    def _do_binpersid(self) -> None:
        self._push(self._resolve(self._pop()))

    def _do_persid(self, argument: str) -> None:
        self._push(self._resolve(argument))

    def _resolve(self, persistent_id: Any) -> Any:
        if self._persistent is None:
            raise BadPickle("it refers to something outside of it")
        return self._persistent(persistent_id)

    def _called(self, function: Any, arguments: Any) -> Any:
        if isinstance(function, Global):
            form = self._rebuild.get((function.module, function.name))
            if form is not None:
                return form(*arguments)
        return self._stub(function, arguments)

    def _stub(self, function: Any, arguments: Any) -> Stub:
        if isinstance(function, Global):
            self.foreign.add(function)
        return Stub(function, arguments)


_PLAIN = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
        "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    }
)  # fmt: skip

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}

_WITH_ARGUMENT = frozenset(
    {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "INST", "PERSID"}
)


def _members(target: Any) -> list[Any]:
    if isinstance(target, list):
        return target
    if isinstance(target, Stub):
        return target.items
    raise BadPickle(f"members are added to a {type(target).__name__}")


def _entries(target: Any) -> dict[Any, Any]:
    if isinstance(target, dict):
        return target
    if isinstance(target, Stub):
        return target.entries
    raise BadPickle(f"entries are set in a {type(target).__name__}")


def _set_items(entries: dict[Any, Any], values: list[Any]) -> None:
    for key, value in zip(values[::2], values[1::2], strict=True):
        entries[_as_key(key)] = value


def _as_key(key: Any) -> Any:
    """A key that hashes at once; any other one stands for itself alone."""
    if isinstance(key, str | bytes | bool | float | Global) or key is None:
        return key
    if isinstance(key, int) and -_LARGE_INTEGER < key < _LARGE_INTEGER:
        return key
    return Stub(Global("builtins", type(key).__name__), key)
