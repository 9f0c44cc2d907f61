"""The calls about system shared memory over HTTP.

Source: triton-inference-server/server, docs/protocol/extension_shared_memory.md.
"""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades import v2_json
from paritygate.serving.facades.bodies import Body, Budget

_PATH = "/v2/systemsharedmemory"


def add_shared_memory(api: FastAPI, dataplane: DataPlane) -> None:
    """Add them; where shared memory is off, nothing can be registered and nothing is."""
    regions = dataplane.regions
    budget = Budget(dataplane.settings.max_inflight_bytes)

    async def json_body(request: Request) -> dict[str, Any]:
        with Body(budget, dataplane.settings) as body:
            text = await body.read(dict(request.headers.raw), request.receive)
            document = v2_json.parse_json(text) if text.strip() else {}
        if not isinstance(document, dict):
            raise InvalidArgument("the request is not a JSON object.")
        return document

    @api.get(f"{_PATH}/status", tags=["shared memory"])
    @api.get(f"{_PATH}/region/{{region}}/status", tags=["shared memory"])
    async def status(region: str = "") -> Response:
        """One registered region, or all."""
        known = [
            {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
            for r in regions.status(region)
        ]
        return Response(orjson.dumps(known), 200, None, "application/json")

    @api.post(f"{_PATH}/region/{{region}}/register", tags=["shared memory"])
    async def register(region: str, request: Request) -> Response:
        """Register a part of an object: `key`, `byte_size` and, 0 if it is left out, `offset`."""
        document = await json_body(request)
        key = document.get("key")
        if not isinstance(key, str):
            raise InvalidArgument(f"'key' of region '{region[:60]}' is {key!r}; expected an object's name.")
        offset, byte_size = document.get("offset", 0), document.get("byte_size")
        for name, value in (("offset", offset), ("byte_size", byte_size)):
            if type(value) is not int:
                raise InvalidArgument(
                    f"'{name}' of region '{region[:60]}' is {value!r}; expected a whole number."
                )
        regions.register(region, key, int(offset), int(byte_size or 0))
        return Response(status_code=200)

    @api.post(f"{_PATH}/unregister", tags=["shared memory"])
    @api.post(f"{_PATH}/region/{{region}}/unregister", tags=["shared memory"])
    async def unregister(region: str = "") -> Response:
        """Forget one region, or all; requests that use it go on with it."""
        regions.unregister(region)
        return Response(status_code=200)
