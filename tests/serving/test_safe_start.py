"""No wrong version answers while a gateway starts, cannot read its state, loses a task or stops."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from paritygate.mesh.actions import apply_rollout
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.state import FileStateStore
from paritygate.serving.app import Gateway
from paritygate.serving.background import Background
from paritygate.serving.config import Settings
from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument, LoadFailed, NotFound, Unavailable
from paritygate.serving.facades import v2_infer, v2_json
from paritygate.serving.facades.bodies import decompress
from paritygate.serving.facades.v2_grpc import InferenceService
from paritygate.serving.loading import LoadedVersion, LoadRequest, load_version
from paritygate.serving.models import Load, Models
from paritygate.serving.placement import Runner
from paritygate.serving.repository_view import RepositoryView
from paritygate.serving.rollouts import Rollouts
from paritygate.serving.types import InferRequest, InferTensor
from support.onnx_models import add_model, write_config, write_model, write_version

PROMOTED = """
schema: paritygate.rollout/v1
model: add
stable: 2
routes: [{weights: {2: 100}}]
"""
FIRST = PROMOTED.replace("2", "1")


class Plane:
    """The gateway without its ports, on real models and a real store."""

    def __init__(self, root: Path, load: Load = load_version, **settings: Any) -> None:
        self.repository = root / "repository"
        self.store = FileStateStore(root / "state")
        self.settings = Settings(
            self.repository, rollouts_dir=root / "state", allow_unproven=True, **settings
        )
        self.runner = Runner(threads=1, max_queue=5)
        self.models = Models(self.settings, RepositoryView(self.repository), self.runner, load=load)
        self.rollouts = Rollouts(self.store, self.models, self.settings)
        self.models.keep_what_rollouts_name(self.rollouts.named)
        self.background = Background()
        self.plane = DataPlane(
            self.settings,
            self.models,
            self.rollouts,
            self.runner,
            up_to_date=lambda: self.background.healthy,
        )

    def apply(self, text: str) -> None:
        apply_rollout(self.store, parse_rollout(text), signatures=None, actor="test", wait_s=0)

    async def start(self) -> None:
        await self.rollouts.look()
        await self.models.start()
        await self.rollouts.look()

    async def version(self, named: str = "", **parameters: Any) -> int:
        x = InferTensor("x", "FP32", np.ones(3, np.float32))
        request = InferRequest("add", named, [x], parameters=parameters)
        return (await self.plane.infer(request)).model_version

    async def close(self) -> None:
        await self.background.stop()
        await self.models.close()
        self.runner.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two versions of a model `add`."""
    model = add_model(1.0)
    (tmp_path / "repository").mkdir()
    write_model(tmp_path / "repository", "add", model)
    write_version(tmp_path / "repository", "add", 2, add_model(2.0))
    write_config(tmp_path / "repository", "add", model, [1, 2])
    return tmp_path


def waiting_at(version: int, gate: threading.Event) -> Load:
    """Loads all as ever, but a version only once the gate is open."""

    def load(request: LoadRequest) -> LoadedVersion:
        if request.version == version:
            gate.wait(10)
        return load_version(request)

    return load


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def test_default_version_does_not_answer_while_the_promoted_one_still_loads(root: Path) -> None:
    gate = threading.Event()
    gateway = Plane(root, waiting_at(2, gate))
    gateway.apply(PROMOTED)
    process = Gateway(gateway.settings, print)
    starting = asyncio.ensure_future(process._load(gateway.plane))
    await until(lambda: bool((model := gateway.models.find("add")) and model.live))
    assert gateway.rollouts.named("add") == {2}, "the table is in force before models load"
    for named in ("", "1"):
        with pytest.raises(Unavailable, match="still starting"):
            await gateway.version(named)
    assert not gateway.plane.ready()
    assert not gateway.plane.model_ready("add", "1")
    gate.set()
    await starting
    assert await gateway.version() == 2
    assert gateway.plane.ready()
    assert gateway.rollouts.generation == 1
    await until(lambda: gateway.store.acknowledgement(1).live == (gateway.rollouts.worker,))
    await process._background.stop()
    await gateway.close()


async def test_missing_version_of_a_rollout_is_unavailable_to_a_client_that_named_none(root: Path) -> None:
    gateway = Plane(root)
    gateway.apply(PROMOTED.replace("2", "7"))
    await gateway.start()
    with pytest.raises(Unavailable, match="version 7 is not found; rule"):
        await gateway.version()
    with pytest.raises(NotFound, match="version 7 is not found"):
        await gateway.version("7")
    await gateway.close()


async def test_state_that_was_never_read_well_refuses_what_names_no_version(root: Path) -> None:
    gateway = Plane(root)
    gateway.apply(PROMOTED)
    log = root / "state" / "log.jsonl"
    good = log.read_bytes()
    log.write_bytes(b"not a line of ours\n" + good)
    await gateway.start()
    with pytest.raises(Unavailable, match="rollout state could not be read yet"):
        await gateway.version()
    with pytest.raises(Unavailable, match="rollout state could not be read yet"):
        gateway.plane.model_metadata("add")
    assert await gateway.version("1") == 1
    assert not gateway.plane.ready()
    assert not gateway.plane.model_ready("add")
    await gateway.rollouts.follow()
    assert gateway.store.acknowledgement(1).live == (), "nobody follows what nobody could read"
    log.write_bytes(good)
    await gateway.rollouts.follow()
    assert await gateway.version() == 2
    assert gateway.plane.ready()
    log.write_bytes(good + b"not a line of ours\n")
    await gateway.rollouts.follow()
    assert await gateway.version() == 2, "what is in force stays after one good read"
    await gateway.close()


def test_worker_must_look_more_often_than_its_lease_runs_out() -> None:
    with pytest.raises(
        ValueError, match=r"rollout_poll_interval_s is 4\.0; give at most 3\.33333, a third of"
    ):
        Settings(Path(), rollout_poll_interval_s=4.0, rollout_lease_s=10.0)
    Settings(Path(), rollout_poll_interval_s=1.0, rollout_lease_s=3.0)


async def test_failing_step_is_repeated_and_unready_until_it_succeeds(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Plane(root)
    await gateway.start()
    assert gateway.plane.ready()
    broken, tries = True, 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        if broken:
            raise RuntimeError("boom")

    gateway.background.repeat("the step", step, 0.005)
    await until(lambda: tries >= 3)
    assert not gateway.plane.ready()
    assert "the step failed, tried again in" in caplog.text
    broken = False
    await until(gateway.plane.ready)
    await gateway.close()


async def test_repetition_pauses_longer_after_each_failure() -> None:
    background, tries = Background(), 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError

    background.repeat("the step", step, 0.02)
    await asyncio.sleep(0.3)
    await background.stop()
    assert 2 <= tries <= 5, "0.02, 0.04, 0.08 ... and not 15 times 0.02"


@pytest.mark.parametrize(
    "error", [RuntimeError("odd file"), MemoryError("no room")], ids=lambda e: type(e).__name__
)
async def test_unforeseen_load_error_is_a_failure_of_its_version_alone(root: Path, error: Exception) -> None:
    write_model(root / "repository", "zzz", add_model(3.0))

    def load(request: LoadRequest) -> LoadedVersion:
        if request.model == "add" and request.version == 2:
            raise error
        return load_version(request)

    gateway = Plane(root, load)
    await gateway.start()
    states = {(e.name, e.version): (e.state, e.reason) for e in gateway.models.index()}
    assert states["add", "1"][0] == states["zzz", "1"][0] == "READY"
    assert states["add", "2"] == (
        "UNAVAILABLE",
        f"failed to load 'add' version 2: {type(error).__name__}: {error}",
    )
    with pytest.raises(LoadFailed, match=str(error)):
        await gateway.models.load("add")
    await gateway.close()


async def test_pass_that_fails_leaves_the_other_models_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Plane(root)
    await gateway.start()
    write_model(root / "repository", "zzz", add_model(3.0))
    one_pass = Models._pass

    async def fail_for_add(self: Models, model: Any, *, retry: bool) -> None:
        if model.name == "add":
            raise KeyError("odd")
        await one_pass(self, model, retry=retry)

    monkeypatch.setattr(Models, "_pass", fail_for_add)
    await gateway.models.poll()
    assert gateway.plane.model_ready("zzz")
    assert gateway.plane.model_ready("add"), "what is live stays live"
    reasons = {entry.reason for entry in gateway.models.index() if entry.name == "add"}
    assert "a pass over model 'add' failed: KeyError: 'odd'" in reasons
    await gateway.close()


async def test_older_look_that_ends_last_puts_no_older_table_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Plane(root)
    gateway.apply(FIRST)
    await gateway.start()
    gateway.apply(PROMOTED)
    read, first_done, calls = Rollouts._read, threading.Event(), []

    def slow_first(self: Rollouts, store: Any) -> Any:
        calls.append(1)
        found = read(self, store)
        if len(calls) == 1:
            first_done.wait(0.3)
        return found

    monkeypatch.setattr(Rollouts, "_read", slow_first)
    slow = asyncio.ensure_future(gateway.rollouts.look())
    await until(lambda: bool(calls))
    gateway.apply(FIRST)
    await gateway.rollouts.look()
    await slow
    assert gateway.rollouts.generation == 3
    assert await gateway.version() == 1
    await gateway.close()


async def test_store_that_goes_back_changes_nothing_and_is_not_acknowledged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Plane(root)
    gateway.apply(FIRST)
    gateway.apply(PROMOTED)
    await gateway.start()
    await gateway.rollouts.follow()
    assert gateway.store.acknowledgement(2).ok
    log = root / "state" / "log.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    with caplog.at_level(logging.WARNING):
        await gateway.rollouts.follow()
    assert "went back from generation 2 to 1" in caplog.text
    assert await gateway.version() == 2
    assert gateway.store.acknowledgement(1).missing == (gateway.rollouts.worker,)
    await gateway.close()


async def test_model_forgotten_while_a_call_waits_for_it_is_not_loaded_into_nowhere(root: Path) -> None:
    gateway = Plane(root)
    await gateway.start()
    models, old = gateway.models, gateway.models.find("add")
    assert old is not None
    async with old.lock:
        loading = asyncio.ensure_future(models.load("add"))
        await asyncio.sleep(0.02)
        del models._models["add"]
    await loading
    known = models.find("add")
    assert known is not None
    assert known is not old
    assert sorted(known.live) == [1, 2]
    await gateway.close()


async def test_sequence_in_use_is_not_the_one_that_is_forgotten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paritygate.serving.dataplane._MAX_PINNED_SEQUENCES", 2)
    gateway = Plane(root)
    await gateway.start()
    for sequence in (1, 2, 1, 3):
        await gateway.version(sequence_id=sequence)
    assert [key for _, key in gateway.plane._sequences] == [1, 3]
    await gateway.close()


@pytest.mark.parametrize("named", ["", "1", "9"])
async def test_end_of_a_sequence_is_always_its_end(root: Path, named: str) -> None:
    gateway = Plane(root)
    await gateway.start()
    await gateway.version(sequence_id=5, sequence_start=True)
    assert len(gateway.plane._sequences) == 1
    try:
        await gateway.version(named, sequence_id=5, sequence_end=True)
    except NotFound:
        assert named == "9"
    assert not gateway.plane._sequences
    await gateway.close()


async def test_acknowledgement_under_way_is_over_before_the_worker_withdraws(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Plane(root)
    gateway.apply(FIRST)
    await gateway.start()
    acknowledge, began = gateway.store.acknowledge, threading.Event()

    def slow(*given: Any) -> None:
        began.set()
        time.sleep(0.1)
        acknowledge(*given)

    monkeypatch.setattr(gateway.store, "acknowledge", slow)
    gateway.background.repeat("following", gateway.rollouts.follow, 0.2)
    await until(began.is_set)
    await gateway.background.stop()
    await gateway.rollouts.withdraw()
    await asyncio.sleep(0.2)
    assert gateway.store.acknowledgement(1).live == ()
    await gateway.close()


# --- bodies ---

EMPTY_MEMBER = gzip.compress(b"")


def seconds_for(size: int) -> float:
    body = EMPTY_MEMBER * (size // len(EMPTY_MEMBER))
    took = []
    for _ in range(3):
        began = time.perf_counter()
        with pytest.raises(InvalidArgument, match="more than 4096 gzip members"):
            decompress(body, "gzip", 1 << 20)
        took.append(time.perf_counter() - began)
    return min(took)


def test_time_for_empty_members_does_not_grow_with_their_square() -> None:
    assert seconds_for(1 << 20) < 4 * seconds_for(1 << 18)


def test_members_and_slices_are_put_together() -> None:
    parts = [np.random.default_rng(n).bytes(50_000) for n in range(3)]
    body = b"".join(gzip.compress(part) for part in parts)
    assert decompress(body, "gzip", 150_000) == b"".join(parts)
    with pytest.raises(InvalidArgument, match="gzip that breaks off"):
        decompress(body[:-1], "gzip", 150_000)


@pytest.mark.parametrize(("size", "on_loop"), [(1_000, True), (200_000, False)])
async def test_large_json_is_read_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, size: int, on_loop: bool
) -> None:
    threads = []
    monkeypatch.setattr(v2_json, "decode_request", lambda *_: threads.append(threading.get_ident()))
    endpoint = object.__new__(v2_infer.InferEndpoint)
    endpoint._dataplane = SimpleNamespace(regions=None)  # type: ignore[assignment]
    await endpoint._decode(b" " * size, {}, "add", "")
    assert (threads == [threading.get_ident()]) is on_loop


# --- gRPC ---


class BrokenPlane:
    """A data plane whose every part is broken."""

    class settings:
        reserved_headers = "refuse"
        server_timing = False
        error_style = "triton"

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken; secret")


class Context:
    """Takes what a method says of its end."""

    def __init__(self) -> None:
        self.ended: tuple[grpc.StatusCode, str] | None = None

    async def abort(self, code: grpc.StatusCode, text: str, _: Any = ()) -> None:
        self.ended = (code, text)

    def done(self) -> bool:
        return False

    def invocation_metadata(self) -> None:
        return None


UNARY = [
    method.name
    for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    if not method.client_streaming and method.name in vars(InferenceService)
]


def test_every_unary_method_is_known() -> None:
    assert len(UNARY) == 16


@pytest.mark.parametrize("name", UNARY)
async def test_unforeseen_error_of_any_unary_method_is_internal_and_tells_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = Context()
    request = service_pb2.DESCRIPTOR.message_types_by_name[f"{name}Request"]
    message = getattr(service_pb2, request.name)()
    if name == "ModelInfer":
        message = message.SerializeToString()
    await getattr(InferenceService(BrokenPlane()), name)(message, context)  # type: ignore[arg-type]
    assert context.ended is not None
    code, text = context.ended
    assert code is grpc.StatusCode.INTERNAL
    assert "request id" in text
    assert "secret" not in text
    assert "is broken; secret" in caplog.text


async def test_empty_repository_is_not_ready_while_the_state_is_unknown(root: Path) -> None:
    gateway = Plane(root)
    gateway.apply(FIRST)
    (root / "repository" / "add").rename(root / "elsewhere")
    (root / "state" / "log.jsonl").write_bytes(b"not a line of ours\nnor this\n")
    await gateway.start()
    assert gateway.models.all() == []
    assert not gateway.plane.ready()
    await gateway.close()
