"""Where in the user's code an operator is called that has no ONNX form."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paddle


@dataclass(frozen=True)
class Place:
    """Where an operator is called.

    Attributes:
        layer: The attribute path of the layer; empty for the outermost one.
        line: `file.py:12`, the innermost line that is not paddle's own.
    """

    layer: str
    line: str

    @property
    def words(self) -> str:
        """Layer and line, to stand in brackets."""
        return ", ".join(filter(None, [f"layer {self.layer}" if self.layer else "", f"at {self.line}"]))


def locate(layer: paddle.nn.Layer, operator: str, run: Callable[[], Any]) -> Place | None:
    """Run a layer once and watch for the operator; None if it is not called under its own name."""
    from paddle import _C_ops

    original = getattr(_C_ops, operator, None)
    if original is None:
        return None
    open_layers: list[str] = []
    found: list[Place] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        if not found:
            found.append(Place(open_layers[-1] if open_layers else "", _users_line()))
        return original(*arguments, **options)

    handles = _track(layer, open_layers)
    setattr(_C_ops, operator, watched)
    try:
        run()
    except Exception:  # noqa: BLE001 - where it was called is known even if the run fails later
        return found[0] if found else None
    finally:
        setattr(_C_ops, operator, original)
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _track(layer: paddle.nn.Layer, open_layers: list[str]) -> list[Any]:
    """Keep the path of the layer at work at the end of a list."""
    handles = []
    for path, inner in layer.named_sublayers():
        handles.append(inner.register_forward_pre_hook(lambda *_a, path=path: open_layers.append(path)))
        handles.append(inner.register_forward_post_hook(lambda *_a: _leave(open_layers)))
    return handles


def _leave(open_layers: list[str]) -> None:
    open_layers.pop()


def _users_line() -> str:
    import paddle

    own = (str(Path(paddle.__file__).parent), str(Path(__file__).parents[2]))
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(own)]
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
