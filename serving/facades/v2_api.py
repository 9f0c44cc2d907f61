"""Everything of the v2 HTTP protocol but inference, as a FastAPI app that documents itself under `/docs`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument, NotFound, ServingError
from paritygate.serving.facades import http_errors, v2_docs, v2_json
from paritygate.serving.facades.bodies import Body, Budget, ClientGone
from paritygate.serving.facades.v2_generate import add_generate
from paritygate.serving.facades.v2_settings import add_settings
from paritygate.serving.facades.v2_shared_memory import add_shared_memory
from paritygate.serving.overrides import LoadParameters, read_load_parameters
from paritygate.serving.triton_view import message_to_json, statistics_to_json
from paritygate.serving.types import TensorMetadata

_DESCRIPTION = (
    "The v2 inference protocol (KServe / Triton). Every answer to an inference names the version that gave it in "
    "`x-pg-model-version`, why in `x-pg-rule`, and whether it is proven in `x-pg-proof`."
)


class ErrorBody(BaseModel):
    """Every error, whatever its status."""

    error: str


class FrontBody(BaseModel):
    """What answers on this port, and where to read on."""

    name: str
    version: str
    docs: str
    api: str


class ServerMetadataBody(BaseModel):
    """What the server is and which extensions it has."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadataBody(BaseModel):
    """One input or output; -1 is a size that may vary."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadataBody(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadataBody]
    outputs: list[TensorMetadataBody]


class IndexEntryBody(BaseModel):
    """One line of the repository index."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


class InferTensorBody(BaseModel):
    """One tensor: `data`, or bytes after the JSON whose number `parameters.binary_data_size` says."""

    model_config = ConfigDict(extra="allow")
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)


class InferRequestBody(BaseModel):
    """An inference request."""

    id: str | None = None
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)
    inputs: list[InferTensorBody]
    outputs: list[dict[str, Any]] | None = None


class InferResponseBody(BaseModel):
    """An inference answer."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[InferTensorBody]


def build_api(dataplane: DataPlane) -> FastAPI:
    """The documented API in front of a data plane."""
    api = new_api("paritygate", dataplane, starts_at="/v2")
    _add_health(api, dataplane)
    _add_models(api, dataplane)
    add_repository(api, dataplane, admin=False)
    add_shared_memory(api, dataplane)
    add_settings(api, dataplane, admin=False)
    add_generate(api, dataplane)
    _document_inference(api)
    add_docs(api, dataplane, admin=False)
    return api


def new_api(title: str, dataplane: DataPlane, *, starts_at: str) -> FastAPI:
    """An API whose errors all have the protocol's form, and that has nothing but its front page yet.

    Args:
        title: What it is called.
        dataplane: What is behind it.
        starts_at: The path under which its calls are.
    """
    api = FastAPI(
        title=title,
        version=dataplane.server_metadata().version,
        description=_DESCRIPTION,
        redirect_slashes=False,
        # FastAPI's own pages take their scripts from another server, and its document knows no model.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    async def on_http_error(_: Request, error: HTTPException) -> Response:
        return Response(
            http_errors.error_body(str(error.detail)), error.status_code, error.headers, "application/json"
        )

    async def on_serving_error(_: Request, error: ServingError) -> Response:
        return Response(
            http_errors.error_body(str(error)),
            http_errors.STATUS[error.kind],
            dict(http_errors.error_headers(error)),
            "application/json",
        )

    async def on_client_gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=400)

    async def on_error(_: Request, __: Exception) -> Response:
        return Response(
            http_errors.error_body(http_errors.log_internal_error()), 500, None, "application/json"
        )

    handlers: dict[type[Exception], Callable[..., Awaitable[Response]]] = {
        HTTPException: on_http_error,
        ServingError: on_serving_error,
        ClientGone: on_client_gone,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)
    api.middleware("http")(_catch_all(on_error))

    @api.get("/", tags=["server"], responses=_documented({}, FrontBody))
    async def front() -> Response:
        """What answers here; for whoever opens the address in a browser."""
        return _json({"name": api.title, "version": api.version, "docs": "/docs", "api": starts_at})

    return api


def _catch_all(on_error: Callable[[Request, Exception], Awaitable[Response]]) -> Any:
    async def middleware(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            return await call_next(request)
        except Exception as error:  # noqa: BLE001 - logged there with its traceback
            return await on_error(request, error)

    return middleware


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, None, "application/json")


def _documented(
    errors: Mapping[int, str], body: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: what a good answer looks like, and which errors there are."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": text} for status, text in errors.items()
    }
    if body is not None:
        responses[200] = {"model": body}
    return responses


_UNKNOWN: Mapping[int, str] = {404: "No such model or version.", 503: "It is there, but does not answer now."}


def _add_health(api: FastAPI, dataplane: DataPlane) -> None:
    kserve = dataplane.settings.error_style == "kserve"

    def not_ready() -> int:
        return 503 if dataplane.exiting or kserve else 400

    def health(name: str, *, good: bool) -> Response:
        return _json({name: good}, 200 if good else not_ready())

    @api.get("/v2", tags=["server"], responses=_documented({}, ServerMetadataBody))
    async def server_metadata() -> Response:
        """Name, version and extensions of this server."""
        metadata = dataplane.server_metadata()
        return _json({"name": metadata.name, "version": metadata.version, "extensions": metadata.extensions})

    @api.get("/v2/health/live", tags=["health"], responses=_documented({503: "It was told to stop."}))
    async def live() -> Response:
        """Whether the process answers."""
        return health("live", good=dataplane.live())

    @api.get("/v2/health/ready", tags=["health"], responses=_documented({400: "A model does not answer."}))
    async def ready() -> Response:
        """Whether every model answers."""
        return health("ready", good=dataplane.ready())

    @api.get("/v2/models/{model}/ready", tags=["health"], responses=_documented({400: "It does not answer."}))
    @api.get("/v2/models/{model}/versions/{version}/ready", tags=["health"], responses=_documented({}))
    async def model_ready(model: str, version: str = "") -> Response:
        """Whether a model, or one version of it, answers."""
        if dataplane.model_ready(model, version):
            return _json({"name": model, "ready": True})
        if kserve and not dataplane.exiting:
            dataplane.model_metadata(model, version)  # an unknown one is not found
        return _json({"error": "Model version not ready"}, not_ready())


def _add_models(api: FastAPI, dataplane: DataPlane) -> None:
    def tensors(specs: tuple[TensorMetadata, ...]) -> list[dict[str, Any]]:
        return [{"name": s.name, "datatype": s.datatype, "shape": s.shape} for s in specs]

    @api.get("/v2/models", tags=["models"])
    async def models() -> Response:
        """The names of all models."""
        return _json({"models": [model.name for model in dataplane.models.all()]})

    @api.get("/v2/models/stats", tags=["models"])
    @api.get("/v2/models/{model}/stats", tags=["models"], responses=_documented(_UNKNOWN))
    @api.get("/v2/models/{model}/versions/{version}/stats", tags=["models"], responses=_documented(_UNKNOWN))
    async def statistics(model: str = "", version: str = "") -> Response:
        """Counters of one version, of a model, or of all."""
        counted = dataplane.statistics(model, version)
        return _json({"model_stats": [statistics_to_json(m, v) for m, v in counted]})

    @api.get("/v2/models/{model}/config", tags=["models"], responses=_documented(_UNKNOWN))
    @api.get("/v2/models/{model}/versions/{version}/config", tags=["models"], responses=_documented(_UNKNOWN))
    async def config(model: str, version: str = "") -> Response:
        """The model's config.pbtxt as JSON, with the defaults filled in as Triton fills them."""
        return _json(message_to_json(dataplane.model_config(model, version)))

    described = _documented(_UNKNOWN, ModelMetadataBody)

    @api.get("/v2/models/{model}", tags=["models"], responses=described)
    @api.get("/v2/models/{model}/versions/{version}", tags=["models"], responses=described)
    async def model_metadata(model: str, version: str = "") -> Response:
        """What a model takes and gives."""
        metadata = dataplane.model_metadata(model, version)
        return _json(
            {
                "name": metadata.name,
                "versions": [str(number) for number in metadata.versions],
                "platform": metadata.platform,
                "inputs": tensors(metadata.inputs),
                "outputs": tensors(metadata.outputs),
            }
        )


def add_repository(api: FastAPI, dataplane: DataPlane, *, admin: bool) -> None:
    """The calls about the model repository; on the admin port load and unload are always open."""
    budget = Budget(dataplane.settings.max_inflight_bytes)

    async def json_body(request: Request) -> dict[str, Any]:
        with Body(budget, dataplane.settings) as body:
            text = await body.read(dict(request.headers.raw), request.receive)
            document = v2_json.parse_json(text) if text.strip() else {}
        if not isinstance(document, dict):
            raise InvalidArgument("the request is not a JSON object.")
        return document

    @api.post(
        "/v2/repository/index",
        tags=["repository"],
        responses=_documented({400: "The body is no such object."}),
    )
    async def index(request: Request) -> Response:
        """Every known model and version, its state, and why. The body may hold `{"ready": true}`."""
        ready = (await json_body(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidArgument(f"'ready' is {str(ready)[:40]!r}; expected true or false.")
        entries = await dataplane.repository_index(ready_only=ready)
        return _json([entry_to_json(entry) for entry in entries])

    refused = {
        400: "It cannot be loaded; what was live stays live.",
        503: "The mode forbids it on this port.",
    }

    @api.post("/v2/repository/models/{model}/load", tags=["repository"], responses=_documented(refused))
    async def load(model: str, request: Request) -> Response:
        """Load a model as the repository has it now, or as a config and files in `parameters` say."""
        parameters = load_parameters((await json_body(request)).get("parameters"))
        await dataplane.load(model, parameters, admin=admin)
        return Response(status_code=200)

    @api.post("/v2/repository/models/{model}/unload", tags=["repository"], responses=_documented(refused))
    async def unload(model: str, request: Request) -> Response:
        """Take a model out of service; requests in flight finish."""
        await json_body(request)
        await dataplane.unload(model, admin=admin)
        return Response(status_code=200)


def load_parameters(parameters: Any) -> LoadParameters:
    """What came with a load call; files are base64 here.

    Raises:
        InvalidArgument: If a parameter is not known or is none of its kind.
    """
    given: dict[str, object] = {}
    for key, value in v2_json.decode_parameters(parameters, "the load request").items():
        given[key] = _from_base64(key, value) if key.startswith("file:") else value
    return read_load_parameters(given)


def _from_base64(key: str, value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except ValueError:
        raise InvalidArgument(
            f"load parameter '{key[:80]}' is not base64; send the content of the file so encoded."
        ) from None


def entry_to_json(entry: Any) -> dict[str, str]:
    """One line of the index; a model that nothing was loaded of has a name and no more."""
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {key: value for key, value in fields.items() if value or (entry.state and key == "reason")}


def _document_inference(api: FastAPI) -> None:
    """Have the OpenAPI document name the inference paths, which are answered before this app is asked."""
    text = "Answer one request; tensors as JSON or, with Inference-Header-Content-Length, as bytes after it."

    async def infer(model: str, body: InferRequestBody) -> Response:
        raise NotFound("inference is answered elsewhere")  # pragma: no cover - the dispatcher is in front

    async def infer_version(model: str, version: str, body: InferRequestBody) -> Response:
        raise NotFound("inference is answered elsewhere")  # pragma: no cover - the dispatcher is in front

    errors = {400: "The request does not fit the model.", 413: "The body is too large.", **_UNKNOWN}
    for path, never in ((v2_docs.INFER_PATH, infer), (v2_docs.VERSION_INFER_PATH, infer_version)):
        api.post(
            path,
            tags=["inference"],
            responses=_documented(errors, InferResponseBody),
            description=text,
            openapi_extra=dict(v2_docs.INFER_EXTRAS),
        )(never)


def add_docs(api: FastAPI, dataplane: DataPlane, *, admin: bool) -> None:
    """Add the documentation of all that `api` has by now; on the admin port there are no models in it."""
    calls = _Calls(api)

    @api.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        live = [] if admin or _silent(dataplane) else v2_docs.collect(dataplane)
        # Health and every other client would wait meanwhile.
        text = await asyncio.to_thread(calls.with_examples, live)
        return Response(text, 200, None, "application/json")

    async def page(request: Request, model: str | None) -> Response:
        silent = _silent(dataplane)
        models = [] if admin or silent else v2_docs.collect(dataplane, model)
        facts = partial(
            v2_docs.Page,
            title=api.title,
            version=api.version,
            authority=v2_docs.authority_of(request.headers.get("host"), request.scope["server"]),
            max_body_bytes=dataplane.settings.max_body_bytes,
            note=silent or ("" if admin or dataplane.ready() else _NOT_READY),
            models=models,
            one_model=model is not None,
        )
        text = await asyncio.to_thread(lambda: v2_docs.render(facts(calls=calls.document())))
        return Response(text.encode(), 503 if silent else 200, v2_docs.HEADERS, "text/html; charset=utf-8")

    @api.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return await page(request, None)

    if not admin:

        @api.get("/docs/{model}", include_in_schema=False)
        async def model_docs(model: str, request: Request) -> Response:
            return await page(request, model)


_NOT_READY = "The gateway is not ready: some requests that name no version are refused now."


def _silent(dataplane: DataPlane) -> str:
    """Why no model is told of now; empty if that can be done."""
    if dataplane.exiting:
        return "The gateway is shutting down; ask another one."
    return "" if dataplane.models.started else "The gateway is still starting; try again."


class _Calls:
    """The OpenAPI document of an app, made when it is first asked for: it takes longer than most requests."""

    def __init__(self, api: FastAPI) -> None:
        self._api = api

    def document(self) -> dict[str, Any]:
        """Every call, in a copy of the caller's own."""
        return v2_docs.without_validation_errors(self._api.openapi())

    def with_examples(self, models: list[v2_docs.ModelFacts]) -> bytes:
        """The document as JSON text, with sample requests of these models."""
        document = self.document()
        v2_docs.add_examples(document, models)
        return json.dumps(document).encode()  # in ASCII: a folder's name need not be UTF-8
