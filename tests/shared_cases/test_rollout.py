"""The handed cases about rollouts: faults that people met elsewhere, and a realistic file."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paritygate.mesh.dialects import get_dialect
from paritygate.mesh.dialects.istio_interpreter import AnswerKind, IstioMesh, MeshRequest, read_istio
from paritygate.mesh.errors import CannotRead
from paritygate.mesh.types import BUCKETS
from paritygate.mesh.yaml_text import dump_documents, load_document, load_documents
from support.rollouts import rollout
from support.shared import shared_dir

CASE_51 = "rollout/case_51_weights_not_hundred"
CASE_53 = "rollout/case_53_header_rule_beside_weights"
CHECKS_51 = [
    "three_to_one.yaml",
    "too_much.yaml",
    "nothing.yaml",
    "negative.yaml",
    "fraction.yaml",
    "large.yaml",
]
CHECKS_53 = ["virtual-service.yaml", "all_to_canary.yaml"]


def check_of(folder: Path, file: str) -> dict[str, Any]:
    case: Any = load_document((folder / "case.yaml").read_text(), source="case.yaml")
    return next(check for check in case["checks"] if check["read"] == file)


def read(folder: Path, file: str) -> IstioMesh:
    return read_istio(
        f"{(folder / file).read_text()}\n---\n{(folder / 'destination-rule.yaml').read_text()}", source=file
    )


def shares_of(mesh: IstioMesh, headers: dict[str, str], count: int) -> dict[str, float]:
    chance = random.Random(3)
    answers = [mesh.choose(MeshRequest(headers), chance.randrange(BUCKETS)) for _ in range(count)]
    counts = Counter(answer.destination.subset for answer in answers if answer.destination)
    return {str(subset): number / count for subset, number in counts.items()}


def assert_warned(mesh: IstioMesh, words: list[object]) -> None:
    assert any(str(word) in str(warning) for warning in mesh.warnings for word in words), mesh.warnings


def test_every_check_of_the_cases_is_run() -> None:
    for folder, files in ((CASE_51, CHECKS_51), (CASE_53, CHECKS_53)):
        case: Any = load_document(
            (shared_dir("cases") / folder / "case.yaml").read_text(), source="case.yaml"
        )
        assert [check["read"] for check in case["checks"]] == files


@pytest.mark.parametrize("file", CHECKS_51)
def test_case_51(file: str) -> None:
    folder = shared_dir("cases", CASE_51)
    check = check_of(folder, file)
    if check.get("outcome") == "reject":
        with pytest.raises(CannotRead) as caught:
            read(folder, file)
        assert any(str(word) in str(caught.value) for word in check.get("error_names_any", [""]))
        assert all(str(word) in str(caught.value) for word in check.get("error_names_all", []))
        return
    mesh = read(folder, file)
    found = shares_of(mesh, {}, 4000)
    assert found == {name: pytest.approx(float(share), abs=0.02) for name, share in check["shares"].items()}
    if "warning_any" in check:
        assert_warned(mesh, check["warning_any"])


@pytest.mark.parametrize("weights", ["{1: 33.34, 2: 33.33, 3: 33.33}", "{1: 66.67, 2: 33.33}"])
def test_case_51_what_is_rendered_sums_to_100_for_a_third(weights: str) -> None:
    documents = get_dialect("istio").render(rollout(weights, topology="gateway-header"))
    sums = [sum(item["weight"] for item in rule["route"]) for rule in documents[0]["spec"]["http"]]
    assert set(sums) == {100}


@pytest.mark.parametrize("file", CHECKS_53)
def test_case_53(file: str) -> None:
    folder = shared_dir("cases", CASE_53)
    check = check_of(folder, file)
    mesh = read(folder, file)
    for request in check["requests"]:
        found = shares_of(mesh, request["headers"], request["count"])
        expected = {name: pytest.approx(float(share), abs=0.04) for name, share in request["shares"].items()}
        assert found == expected, request
    if "warning_any" in check:
        assert_warned(mesh, check["warning_any"])


def test_the_user_header_file_is_read_and_means_what_it_says() -> None:
    mesh = read_istio((shared_dir("cases", "configs") / "istio_user_header.yaml").read_text())
    ines = mesh.choose(MeshRequest({"end-user": "ines"}), 9999)
    assert (ines.destination and ines.destination.subset, ines.fault["delay"]["fixedDelay"]) == (
        "v2",
        "300ms",
    )
    debug = MeshRequest(path="/v2/models/m/infer?debug=1")
    assert mesh.choose(debug, 0).status == 403
    assert mesh.choose(MeshRequest({"X-Internal": "1"}, path=debug.path), 0).kind is AnswerKind.ROUTED
    assert mesh.choose(MeshRequest(method="GET", path=debug.path), 0).kind is AnswerKind.ROUTED
    assert shares_of(mesh, {}, 4000) == {
        "v1": pytest.approx(0.8, abs=0.02),
        "v2": pytest.approx(0.2, abs=0.02),
    }


def test_the_user_header_file_written_again_means_the_same() -> None:
    text = (shared_dir("cases", "configs") / "istio_user_header.yaml").read_text()
    documents = load_documents(text, source="file")
    document: Any = documents[0]
    document["spec"]["http"][0]["fault"]["delay"]["percentage"]["value"] = (
        10.0  # YAML writers take no Decimal
    )
    again = load_documents(dump_documents(documents), source="again")
    assert again == load_documents(text, source="file")


def test_the_user_header_file_is_not_taken_for_a_rollout_and_the_fields_are_named() -> None:
    text = (shared_dir("cases", "configs") / "istio_user_header.yaml").read_text()
    with pytest.raises(CannotRead) as caught:
        get_dialect("istio").read_back(load_documents(text, source="file"))
    for field in ("fault", "directResponse", "queryParams", "method", "withoutHeaders"):
        assert f"a rollout cannot say '{field}'" in str(caught.value)
