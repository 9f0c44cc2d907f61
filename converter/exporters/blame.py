"""Which open size a framework's exporter cannot leave open, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def to_blame(dims: Sequence[str], works: Callable[[Iterable[str]], bool]) -> str:
    """A size that has to be fixed for a conversion to work, which works with all of them fixed.

    One that suffices alone is taken. Where several have to be fixed together, all are fixed first and opened again
    one by one: what cannot be opened again is to blame, and the first of those is given.

    Args:
        dims: The open sizes, the most suspicious first.
        works: Whether the conversion works with these of them open.
    """
    for dim in dims:
        if works([other for other in dims if other != dim]):
            return dim
    opened: list[str] = []
    for dim in reversed(dims):
        if works([*opened, dim]):
            opened.append(dim)
    # A conversion that fails for lack of memory, say, may work the next time.
    return next((dim for dim in dims if dim not in opened), dims[0])
