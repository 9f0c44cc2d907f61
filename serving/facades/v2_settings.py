"""The calls about trace and log settings over HTTP; everybody may read them, and changes are for operators.

Source: triton-inference-server/server, docs/protocol/extension_trace.md and extension_logging.md.
"""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades import v2_json
from paritygate.serving.facades.bodies import Body, Budget


def add_settings(api: FastAPI, dataplane: DataPlane, *, admin: bool) -> None:
    """Add them; on the admin port changes are always open."""
    budget = Budget(dataplane.settings.max_inflight_bytes)

    async def changes_in(request: Request) -> dict[str, Any]:
        with Body(budget, dataplane.settings) as body:
            text = await body.read(dict(request.headers.raw), request.receive)
            document = v2_json.parse_json(text) if text.strip() else {}
        if not isinstance(document, dict):
            raise InvalidArgument("the request is not a JSON object of settings.")
        return document

    @api.get("/v2/trace/setting", tags=["settings"])
    @api.get("/v2/models/{model}/trace/setting", tags=["settings"])
    async def trace_settings(model: str = "") -> Response:
        """What is traced of a model, or of all that have no settings of their own."""
        return _json(dataplane.trace_settings(model))

    @api.post("/v2/trace/setting", tags=["settings"])
    @api.post("/v2/models/{model}/trace/setting", tags=["settings"])
    async def change_trace_settings(request: Request, model: str = "") -> Response:
        """Change some of them; `null` takes a change back."""
        return _json(dataplane.change_trace_settings(await changes_in(request), model, admin=admin))

    @api.get("/v2/logging", tags=["settings"])
    async def log_settings() -> Response:
        """What is logged."""
        return _json(dataplane.log_settings.settings())

    @api.post("/v2/logging", tags=["settings"])
    async def change_log_settings(request: Request) -> Response:
        """Change some of them."""
        return _json(dataplane.change_log_settings(await changes_in(request), admin=admin))


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), 200, None, "application/json")
