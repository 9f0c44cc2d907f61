"""docs/rollouts.md says what the code does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from paritygate.mesh.config import parse_rollout
from paritygate.mesh.dialects import get_dialect, render_text
from paritygate.mesh.errors import CannotExpress, RolloutInvalid
from paritygate.mesh.explain import explain, parse_request
from paritygate.mesh.transitions import Phase
from paritygate.mesh.types import MatchKind, Topology, Weight
from support.shared import ROOT

TEXT = (ROOT / "docs" / "rollouts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.DOTALL)
ROLLOUT = BLOCKS[0][1]


def block(start: str) -> str:
    return next(text for _, text in BLOCKS if text.startswith(start))


def test_the_rollout_of_the_docs_is_read() -> None:
    found = parse_rollout(ROLLOUT)
    assert (found.versions, found.topology) == ((1, 2), Topology.GATEWAY_HEADER)


def test_the_fault_line_of_the_docs_is_what_is_said() -> None:
    text = ROLLOUT.replace("stable:", "stabel:").replace("{2: 100}", "{2: 95}")
    with pytest.raises(RolloutInvalid) as caught:
        parse_rollout(text, source="rollout.yaml")
    assert str(caught.value) == block("rollout.yaml: unknown").strip()


def test_the_explanation_of_the_docs_is_what_is_said() -> None:
    command, *steps = block("$ paritygate route").strip().splitlines()
    assert command.endswith("rollout.yaml --request request.yaml")
    assert list(explain(parse_rollout(ROLLOUT), parse_request(block("headers:"))).steps) == steps


def test_the_rule_of_the_docs_is_what_is_rendered() -> None:
    (service, _) = yaml.safe_load_all(render_text(parse_rollout(ROLLOUT), "istio"))
    (rule,) = yaml.safe_load(block("- name: default/2"))
    assert rule in service["spec"]["http"]


def test_the_refusal_of_the_docs_is_what_is_said() -> None:
    found = parse_rollout(ROLLOUT)
    last = replace(found.routes[-1], weights=(Weight(2, 1250), Weight(1, 8750)))
    plain = replace(found, sticky=None, topology=Topology.DEPLOYMENT_PER_VERSION, routes=(last,))
    with pytest.raises(CannotExpress) as caught:
        get_dialect("istio").render(plain)
    assert str(caught.value).startswith(block("rollout of 'digits' to istio").strip())


def test_the_python_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rollout.yaml").write_text(ROLLOUT, encoding="utf-8")
    exec(compile(block("from pathlib"), "docs/rollouts.md", "exec"), {})
    assert capsys.readouterr().out == "Phase.ROLLED_BACK\n"


@pytest.mark.parametrize(
    "word",
    [
        *("schema", "model", "stable", "sticky", "topology", "routes", "routes[].name", "routes[].match"),
        *("routes[].match.headers", "routes[].weights"),
        *(phase.value for phase in Phase),
    ],
)
def test_each_key_and_phase_has_a_row(word: str) -> None:
    assert f"| `{word}` |" in TEXT


@pytest.mark.parametrize("kind", list(MatchKind), ids=lambda k: k.value)
def test_each_kind_of_match_is_named(kind: MatchKind) -> None:
    assert f"`{kind.value}`" in TEXT or f"`{kind.value}: true`" in TEXT
