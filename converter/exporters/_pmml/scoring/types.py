"""Which field has which type, resolved once when a model is read; and what a field that nobody declares gets."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from paritygate.converter.exporters._pmml.elements import Element, malformed


class Types:
    """Data types by field name, a model's own before those around it."""

    def __init__(self, own: dict[str, str], around: Types | None = None) -> None:
        self._own = own
        self._around = around

    def add(self, name: str, data_type: str) -> None:
        """Declare one more field here."""
        self._own[name] = data_type

    def of(self, name: str, element: Element) -> str:
        """The data type of a field.

        Raises:
            SourceError: If nothing declares it; the text names the nearest.
        """
        scope: Types | None = self
        while scope is not None:
            if name in scope._own:
                return scope._own[name]
            scope = scope._around
        near = difflib.get_close_matches(name, list(self.all()), n=1)
        hint = f" (nearest: {near[0]!r})" if near else ""
        raise malformed(element, f"nothing declares the field {name!r}{hint}")

    def all(self) -> Mapping[str, str]:
        """Everything that is declared."""
        return {**(self._around.all() if self._around else {}), **self._own}
