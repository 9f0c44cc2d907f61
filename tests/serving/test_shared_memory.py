"""Tensors in system shared memory, by Triton's own clients; and what clients may not reach by it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient import grpc as grpcclient
from tritonclient import http as httpclient
from tritonclient.utils import InferenceServerException

from paritygate.serving.errors import InvalidArgument, NotFound, PayloadTooLarge, Unsupported
from paritygate.serving.shared_memory import Regions
from support.gateway import Gateway, running_gateway
from support.onnx_models import add_model, identity_model, slow_model, write_model

PREFIX = "pgtest-"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("shm")
    write_model(root / "models", "add", add_model(1.0))
    write_model(root / "models", "text", identity_model("BYTES"))
    write_model(root / "models", "slow", slow_model(2_000))
    options = ("--allow-unproven", "--shared-memory", PREFIX)
    with running_gateway(root / "models", root / "gw", *options) as running:
        yield running


@contextmanager
def an_object(octets: bytes) -> Iterator[str]:
    """A shared memory object of its own; gives its key."""
    key = f"/{PREFIX}{uuid.uuid4().hex}"
    path = Path(f"/dev/shm{key}")
    path.write_bytes(octets)
    try:
        yield key
    finally:
        path.unlink(missing_ok=True)


CLIENTS = [(httpclient, "http"), (grpcclient, "grpc")]


@pytest.fixture(params=CLIENTS, ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Any]:
    module, port = request.param
    with module.InferenceServerClient(getattr(gateway, port)) as made:
        made.module = module
        yield made
        made.unregister_system_shared_memory()


def test_it_is_announced_only_where_it_is_allowed(gateway: Gateway, repository: Path, tmp_path: Path) -> None:
    assert "system_shared_memory" in gateway.ask("GET", "/v2").json["extensions"]
    write_model(repository, "add", add_model(1.0))
    with (
        running_gateway(repository, tmp_path / "gw", "--allow-unproven") as without,
        an_object(bytes(8)) as key,
    ):
        assert "system_shared_memory" not in without.ask("GET", "/v2").json["extensions"]
        assert without.ask("GET", "/v2/systemsharedmemory/status").json == []
        path = "/v2/systemsharedmemory/region/r/register"
        refused = without.ask("POST", path, {"key": key, "byte_size": 8})
        assert refused.status == 501
        assert "--shared-memory" in refused.error


def test_tensors_go_both_ways_through_shared_memory(client: Any) -> None:
    module = client.module
    x = np.arange(6, dtype=np.float32)
    given = shm.create_shared_memory_region("given", f"{PREFIX}{uuid.uuid4().hex}", 2 * x.nbytes)
    taken = shm.create_shared_memory_region("taken", f"{PREFIX}{uuid.uuid4().hex}", 64)
    try:
        shm.set_shared_memory_region(given, [x], offset=x.nbytes)
        client.register_system_shared_memory("given", given._shm_key, 2 * x.nbytes)
        client.register_system_shared_memory("taken", taken._shm_key, 64)
        tensor = module.InferInput("x", [6], "FP32")
        tensor.set_shared_memory("given", x.nbytes, offset=x.nbytes)
        output = module.InferRequestedOutput("y")
        output.set_shared_memory("taken", 40, offset=8)
        for n in range(3):
            shm.set_shared_memory_region(given, [x + n], offset=x.nbytes)
            result = client.infer("add", [tensor], outputs=[output])
            assert "shared_memory_region" in str(result.get_output("y"))
            answered = shm.get_contents_as_numpy(taken, np.float32, [6], offset=8)
            np.testing.assert_array_equal(answered, x + n + 1)
            plain = client.infer("add", [tensor])
            np.testing.assert_array_equal(plain.as_numpy("y"), x + n + 1)
    finally:
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(taken)


def test_text_goes_through_shared_memory(client: Any) -> None:
    module = client.module
    words = [b"one", b"", "zwölf".encode()]
    octets = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    with an_object(octets) as key, an_object(bytes(100)) as out:
        client.register_system_shared_memory("words", key, len(octets))
        client.register_system_shared_memory("out", out, 100)
        tensor = module.InferInput("x", [3], "BYTES")
        tensor.set_shared_memory("words", len(octets))
        output = module.InferRequestedOutput("y")
        output.set_shared_memory("out", 100)
        client.infer("text", [tensor], outputs=[output])
        assert Path(f"/dev/shm{out}").read_bytes()[: len(octets)] == octets


def test_status_tells_what_is_registered(gateway: Gateway, client: Any) -> None:
    with an_object(bytes(32)) as key:
        client.register_system_shared_memory("r", key, 16, offset=8)
        known = {"name": "r", "key": key, "offset": 8, "byte_size": 16}
        assert gateway.ask("GET", "/v2/systemsharedmemory/status").json == [known]
        assert gateway.ask("GET", "/v2/systemsharedmemory/region/r/status").json == [known]
        status = client.get_system_shared_memory_status("r")
        assert "r" in str(status)
        client.unregister_system_shared_memory("r")
        assert gateway.ask("GET", "/v2/systemsharedmemory/status").json == []
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
            client.get_system_shared_memory_status("r")


def infer_document(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": parameters}]}


@pytest.mark.parametrize(
    ("parameters", "status", "says"),
    [
        ({"shared_memory_region": "r", "shared_memory_byte_size": 4}, 400, "FP32 of shape \\[2\\] takes 8"),
        ({"shared_memory_region": "r"}, 400, "'shared_memory_byte_size' of input 'x' is None"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": "8"}, 400, "expected the number"),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 9},
            400,
            "'r' has 16 bytes, asked for 8 from 9",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": -1},
            400,
            "Invalid offset",
        ),
        ({"shared_memory_region": "r", "shared_memory_byte_size": 2**40}, 413, "at most"),
        ({"shared_memory_region": "nobody", "shared_memory_byte_size": 8}, 404, "Unable to find"),
        ({"shared_memory_region": 7, "shared_memory_byte_size": 8}, 400, "expected a region's name"),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 8, "binary_data_size": 8},
            400,
            "exactly one of them",
        ),
    ],
)
def test_what_does_not_fit_a_region_is_refused(
    gateway: Gateway, parameters: dict[str, Any], status: int, says: str
) -> None:
    with an_object(bytes(16)) as key:
        gateway.ask("POST", "/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 16})
        answer = gateway.infer("add", infer_document(**parameters))
        gateway.ask("POST", "/v2/systemsharedmemory/unregister")
        assert answer.status == status
        assert __import__("re").search(says, answer.error), answer.error


def test_an_output_that_does_not_fit_or_contradicts_itself_is_refused(client: Any) -> None:
    module = client.module
    tensor = module.InferInput("x", [2], "FP32")
    tensor.set_data_from_numpy(np.ones(2, np.float32))
    with an_object(bytes(8)) as key:
        client.register_system_shared_memory("small", key, 8)
        output = module.InferRequestedOutput("y")
        output.set_shared_memory("small", 4)
        with pytest.raises(InferenceServerException, match="should be at least 8 bytes to hold the results"):
            client.infer("add", [tensor], outputs=[output])
        assert Path(f"/dev/shm{key}").read_bytes() == bytes(8)
        contradicting = module.InferRequestedOutput("y", class_count=1)
        contradicting._parameters = getattr(contradicting, "_parameters", {})
        if module is httpclient:
            contradicting._parameters |= {"shared_memory_region": "small", "shared_memory_byte_size": 8}
            with pytest.raises(InferenceServerException, match="ask for one of them"):
                client.infer("add", [tensor], outputs=[contradicting])


def test_an_object_that_was_made_smaller_is_a_bad_request_and_not_the_end(gateway: Gateway) -> None:
    with an_object(bytes(8192)) as key:
        gateway.ask("POST", "/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 8192})
        os.truncate(f"/dev/shm{key}", 4)
        document = infer_document(shared_memory_region="r", shared_memory_byte_size=8)
        answer = gateway.infer("add", document)
        assert answer.status == 400
        assert "smaller than when it was registered" in answer.error
        outputs = [{"name": "y", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]
        document = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}],
            "outputs": outputs,
        }
        answer = gateway.infer("add", document)
        assert answer.status == 400
        assert os.path.getsize(f"/dev/shm{key}") == 4
        gateway.ask("POST", "/v2/systemsharedmemory/unregister")
    assert gateway.ask("GET", "/v2/health/ready").status == 200


def test_a_region_that_is_unregistered_while_it_is_used_gets_its_answer(gateway: Gateway) -> None:
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    with (
        an_object(x.tobytes()) as key,
        an_object(bytes(x.nbytes)) as out,
        httpclient.InferenceServerClient(gateway.http, concurrency=2) as client,
    ):
        client.register_system_shared_memory("in", key, x.nbytes)
        client.register_system_shared_memory("out", out, x.nbytes)
        tensor = httpclient.InferInput("x", [256, 256], "FP32")
        tensor.set_shared_memory("in", x.nbytes)
        output = httpclient.InferRequestedOutput("y")
        output.set_shared_memory("out", x.nbytes)
        asked = client.async_infer("slow", [tensor], outputs=[output])
        gateway.wait(lambda: b'version="1"} 1.0' in _pending(gateway))
        client.unregister_system_shared_memory()
        asked.get_result()
        assert Path(f"/dev/shm{out}").read_bytes() == x.tobytes()


def _pending(gateway: Gateway) -> bytes:
    lines = gateway.ask("GET", "/metrics", port="metrics").body.splitlines()
    return b"\n".join(line for line in lines if b"pending_request" in line and b'"slow"' in line)


# --- what may not be named ---


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "other",
        "../etc/passwd",
        f"{PREFIX}/../../etc/passwd",
        f"/{PREFIX}a/b",
        f"{PREFIX}\0",
        PREFIX + "x" * 300,
    ],
)
def test_keys_that_are_paths_or_not_allowed_are_refused(key: str) -> None:
    regions = Regions([f"/{PREFIX}"])
    with pytest.raises(InvalidArgument, match=r"which clients may not name here|Unable to open"):
        regions.register("r", key, 0, 1)


def test_links_folders_and_pipes_are_no_objects(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    regions = Regions([PREFIX])
    for make in (
        lambda path: path.symlink_to(tmp_path / "secret"),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
    ):
        path = Path("/dev/shm") / f"{PREFIX}{uuid.uuid4().hex}"
        make(path)
        try:
            with pytest.raises(InvalidArgument):
                regions.register("r", path.name, 0, 1)
        finally:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_regions_are_checked_and_bounded() -> None:
    regions = Regions([PREFIX], max_part_bytes=8)
    with an_object(bytes(16)) as key:
        for name, offset, size, says in (
            ("", 0, 1, "1 to 256 characters"),
            ("r", -1, 1, "expected 0 or more"),
            ("r", 0, 0, "1 or more"),
            ("r", 9, 8, "has 16 bytes, asked for 8 from 9"),
        ):
            with pytest.raises(InvalidArgument, match=says):
                regions.register(name, key, offset, size)
        regions.register("r", key, 0, 16)
        with pytest.raises(InvalidArgument, match="already in manager"):
            regions.register("r", key, 0, 16)
        with pytest.raises(PayloadTooLarge, match="at most 8"):
            regions.part("input 'x'", "r", 0, 9)
        with pytest.raises(NotFound):
            regions.part("input 'x'", "s", 0, 8)
        for n in range(1023):
            regions.register(f"r{n}", key, 0, 16)
        with pytest.raises(InvalidArgument, match="1024 regions"):
            regions.register("one more", key, 0, 16)
        regions.unregister()
        assert regions.status() == []
    with pytest.raises(Unsupported):
        Regions().part("input 'x'", "r", 0, 8)


def test_no_file_stays_open_of_what_is_not_registered_any_more() -> None:
    regions = Regions([PREFIX])
    before = len(os.listdir("/proc/self/fd"))
    with an_object(bytes(16)) as key:
        for n in range(20):
            regions.register(f"r{n}", key, 0, 16)
        part = regions.part("input 'x'", "r7", 0, 16)
        regions.unregister()
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert part.read() == bytes(16)
        del part
    assert len(os.listdir("/proc/self/fd")) == before


def test_register_documents_that_do_not_fit_are_refused(gateway: Gateway) -> None:
    path = "/v2/systemsharedmemory/region/r/register"
    for document, says in (
        ({}, "'key' of region 'r' is None"),
        ({"key": PREFIX, "byte_size": "8"}, "'byte_size' of region 'r' is '8'"),
        ({"key": PREFIX, "byte_size": 8, "offset": 1.5}, "'offset' of region 'r' is 1.5"),
        ({"key": "other", "byte_size": 8}, "may not name"),
    ):
        answer = gateway.ask("POST", path, json.dumps(document).encode())
        assert answer.status == 400
        assert says in answer.error
