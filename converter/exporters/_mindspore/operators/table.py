"""How a family of primitives is written down."""

from __future__ import annotations

from collections.abc import Callable

from paritygate.converter.exporters._mindspore.emitter import Call
from paritygate.converter.exporters._mindspore.values import Value

Handler = Callable[[Call], Value]
"""Writes the ONNX nodes of one primitive and gives its value."""


class Table(dict[str, Handler]):
    """The primitives of one family."""

    def of(self, *names: str) -> Callable[[Handler], Handler]:
        """Enter a handler under one or more names of primitives."""

        def enter(handler: Handler) -> Handler:
            for name in names:
                assert name not in self, f"{name} stands in the table twice"
                self[name] = handler
            return handler

        return enter
