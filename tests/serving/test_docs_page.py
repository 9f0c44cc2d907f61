"""The documentation page: every sample is answered, every curl line runs, and hostile names stay text."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateway import Gateway, running_gateway
from support.onnx_models import ELEMENT_TYPES, identity_model, two_input_model, write_model

HOSTILE = "<script>alert(1)</script>'\"$(touch x)`&"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repository")
    for datatype in ELEMENT_TYPES:
        write_model(repository, datatype.lower(), identity_model(datatype))
    write_model(repository, "two", two_input_model())
    write_model(repository, "batched", identity_model("FP32", ("n", 4)), max_batch_size=8)
    write_model(repository, "image", identity_model("FP32", ("n", 3, 64, 64)))
    hostile = identity_model("FP32")
    hostile.graph.node[0].input[0] = hostile.graph.input[0].name = HOSTILE
    write_model(repository, "hostile", hostile)
    config = repository / "hostile" / "config.pbtxt"
    escaped = HOSTILE.replace('"', '\\"')
    config.write_text(
        re.sub(
            r'input \[ \{ name: ".*?" data',
            lambda _: f'input [ {{ name: "{escaped}" data',
            config.read_text(),
        )
    )
    with running_gateway(repository, tmp_path_factory.mktemp("gw"), "--allow-unproven") as made:
        yield made


def page(gateway: Gateway, path: str = "/docs") -> str:
    answer = gateway.ask("GET", path)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    return answer.body.decode()


def curl_lines(text: str) -> list[str]:
    return [html.unescape(line) for line in re.findall(r'<pre class="curl">(.*?)</pre>', text, re.DOTALL)]


def test_every_curl_line_is_answered_by_the_real_curl(gateway: Gateway, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = curl_lines(page(gateway))
    assert len(lines) == len(ELEMENT_TYPES) + 4
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, cwd=tmp_path, timeout=30, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        assert b'"error"' not in done.stdout, (line, done.stdout)
        assert b'"outputs"' in done.stdout, (line, done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_every_json_example_of_the_openapi_document_is_answered(gateway: Gateway) -> None:
    document = gateway.ask("GET", "/openapi.json").json
    content = document["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]
    examples = content["application/json"]["examples"]
    assert len(examples) == len(ELEMENT_TYPES) + 3
    for name, example in examples.items():
        answer = gateway.ask("POST", f"/v2/models/{name}/infer", example["value"])
        assert answer.status == 200, (name, answer.body)


def test_signature_and_state_are_told(gateway: Gateway) -> None:
    text = page(gateway, "/docs/two")
    for expected in ("FP32", "[-1 (n), 3]", "unproven", "difference", "answers"):
        assert expected in text
    assert gateway.ask("GET", "/docs/none").status == 404


def test_hostile_names_are_text(gateway: Gateway) -> None:
    text = page(gateway)
    assert "<script" not in text
    assert html.escape(HOSTILE) in text


def test_nothing_is_fetched_from_elsewhere(gateway: Gateway) -> None:
    text = page(gateway)
    assert not re.search(r'(?:src|href)\s*=\s*"(?:https?:)?//', text)
    assert "url(" not in text


def test_host_of_the_request_is_used_only_if_it_is_one(gateway: Gateway) -> None:
    for host, used in (("models.example:80", True), ("a;touch x", False), ("ftp.example", False)):
        answer = gateway.ask("GET", "/docs/fp32", headers={"host": host})
        (line,) = curl_lines(answer.body.decode())
        assert (host in line) is used, line


def test_front_page_and_admin_port_have_their_own(gateway: Gateway) -> None:
    assert gateway.ask("GET", "/").json["docs"] == "/docs"
    admin = gateway.ask("GET", "/docs", port="admin")
    assert admin.status == 200
    assert "/v2/repository/models/{model}/load" in admin.body.decode()
    json.loads(gateway.ask("GET", "/openapi.json", port="admin").body)
