"""The story that `paritygate quickstart` tells, act by act; each act is one function with real parts only."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from paritygate.quickstart.narrator import Narrator
from paritygate.quickstart.traffic import NUM_USERS, Tally, Users

if TYPE_CHECKING:
    from paritygate.converter.bundle import Bundle
    from paritygate.mesh.actions import Outcome

MODEL = "digits"
_MARKER = ".paritygate-quickstart"
_CANARY_PERCENT = 10
_REQUESTS_PER_USER = 6
_BESIDE_EACH_CHANGE_S = 0.8


class StoryFailed(RuntimeError):
    """The story did not go as it should; the text says which act and why."""


@dataclass
class Stage:
    """What the acts share: where things are written, and what was seen so far."""

    folder: Path
    say: Narrator
    result: dict[str, Any] = field(default_factory=lambda: {"ok": False, "published": []})

    @property
    def repository(self) -> Path:
        """The Triton model repository."""
        return self.folder / "model_repo"

    @property
    def rollouts(self) -> Path:
        """The state directory of the rollouts."""
        return self.folder / "rollouts"

    def rollout_file(self, percent: int) -> Path:
        """The rollout file that gives version 2 this share."""
        return self.folder / f"rollout-{percent}.yaml"


def run_story(folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Run every act in order.

    Args:
        folder: Where everything is written; made, or emptied if an earlier quickstart made it.
        quiet: Print nothing.

    Returns:
        The figures of the story, JSON-ready; `ok` is true only when every act went as it should.

    Raises:
        StoryFailed: If the folder holds something else, or an act did not go as it should.
    """
    started = time.monotonic()
    _require_parts()
    folder = folder.resolve()
    _prepare(folder)
    stage = Stage(folder, Narrator(quiet=quiet))
    stage.say.title("paritygate quickstart: handwritten digits, from training to a promoted canary")
    _train_and_publish(stage, 1, width=4)
    _train_and_publish(stage, 2, width=12)
    _refuse_a_broken_model(stage, width=12)
    _serve_and_split(stage)
    _render_for_istio(stage)
    stage.result["repository"] = str(stage.repository)
    stage.result["seconds"] = round(time.monotonic() - started, 1)
    stage.result["ok"] = True
    _say_what_next(stage)
    return stage.result


def _require_parts() -> None:
    """Say at once, and all together, what is not installed."""
    parts = (
        "torch",
        "onnxscript",
        "sklearn",
        "onnxruntime",
        "fastapi",
        "grpc",
        "geventhttpclient",
        "tritonclient",
    )
    missing = [part for part in parts if importlib.util.find_spec(part) is None]
    if missing:
        raise StoryFailed(
            f"the quickstart needs {', '.join(missing)}, which {sys.executable} does not have. Install the extra "
            "that brings all of it: pip install 'paritygate[quickstart]'."
        )


def _prepare(folder: Path) -> None:
    marker = folder / _MARKER
    if marker.exists():
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise StoryFailed(
            f"{folder} holds other files; give a new or empty directory: paritygate quickstart --output DIR."
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()


def _train_and_publish(stage: Stage, version: int, *, width: int) -> None:
    """Acts 1 and 2: a two-process DDP job whose hook exports, proves and publishes."""
    from paritygate.train_hooks.config import load_job
    from paritygate.train_hooks.launch.launcher import plan, run

    stage.say.step(f"Train a CNN of width {width} on 2 processes (DDP); its hook proves and publishes it")
    job_file = _write_job(stage, version, width)
    stage.say.fact(f"$ paritygate launch {job_file.name}")
    job = run(plan(load_job(job_file)), on_line=stage.say.log)
    if job.exit_code != 0 or not job.result:
        raise StoryFailed(f"the training job of version {version} failed: {job.reason or 'no result'}")
    published = job.result
    if published["version"] != version:
        raise StoryFailed(f"expected version {version} to be published, got version {published['version']}")
    stage.result["published"].append(
        {key: published[key] for key in ("version", "framework", "verdict", "max_abs_diff")}
    )
    stage.say.good(
        f"version {version} published: {published['verdict']}, "
        f"largest difference to PyTorch {published['max_abs_diff']:.1e}"
    )


def _write_job(stage: Stage, version: int, width: int) -> Path:
    """The job.yaml of one training run."""
    arguments = ["--width", str(width), "--weights", str(stage.folder / f"weights-v{version}.pt")]
    arguments += ["--repository", str(stage.repository), "--bundle", str(stage.folder / f"bundle-v{version}")]
    job = {
        "schema": "paritygate.job/v1",
        "name": f"digits-v{version}",
        "framework": "pytorch",
        "module": "paritygate.quickstart.train",
        "args": arguments,
        "processes_per_node": 2,
        "workdir": str(stage.folder),
        "timeout_s": 300,
    }
    path = stage.folder / f"job-v{version}.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    return path


def _refuse_a_broken_model(stage: Stage, *, width: int) -> None:
    """Act 3: one weight is changed between conversion and sealing, so that only the numbers can tell."""
    from paritygate.converter.parity import validate_bundle, write_evidence
    from paritygate.serving.publish import publish_bundle
    from paritygate.serving.publish.errors import NotProven

    stage.say.step("Break a third model on purpose: one weight changed in the ONNX file, every digest valid")
    bundle = _export_broken(stage, width)
    certificate = validate_bundle(bundle)
    write_evidence(bundle, certificate)
    worst = max(certificate.figures, key=lambda figure: figure.max_abs_diff)
    try:
        publish_bundle(bundle.path, stage.repository, model_name=MODEL)
    except NotProven:
        stage.say.refused(
            f"output {worst.output!r} is off by {worst.max_abs_diff:.2g}; nothing was published"
        )
        stage.say.fact(certificate.reason)
    else:
        raise StoryFailed("a model with a changed weight was published")
    stage.result["refused"] = {
        "output": worst.output,
        "max_abs_diff": worst.max_abs_diff,
        "reason": certificate.reason,
    }


def _export_broken(stage: Stage, width: int) -> Bundle:
    import torch

    from paritygate.converter.exporters import export_model
    from paritygate.quickstart.digits import load_splits
    from paritygate.quickstart.train import DigitsNet

    model = DigitsNet(width)
    model.load_state_dict(torch.load(stage.folder / "weights-v2.pt", weights_only=True))
    return export_model(
        model,
        stage.folder / "bundle-broken",
        name=MODEL,
        inputs={"image": load_splits()[0].images[:8]},
        output_names=["probabilities"],
        dynamic={"image": {0: "batch"}},
        after_conversion=_change_one_weight,
    )


def _change_one_weight(path: Path) -> None:
    """Add 0.1 to the first element of the largest initializer of an ONNX file."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += 0.1
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, path)


def _serve_and_split(stage: Stage) -> None:
    """Acts 4 to 7: the gateway, a canary, half, promotion and rollback, all under real traffic."""
    from paritygate.quickstart.digits import load_splits
    from paritygate.quickstart.gateway import running_gateway

    stage.say.step(f"Start the gateway; a canary gives version 2 {_CANARY_PERCENT} % of the users")
    with running_gateway(stage.repository, stage.rollouts, stage.folder) as ports:
        stage.say.fact(f"$ paritygate serve   HTTP {ports.http}   gRPC {ports.grpc}")
        users = Users(MODEL, ports.http, ports.grpc, load_splits()[1])
        _apply_weights(stage, _CANARY_PERCENT)
        _observe_canary(stage, users)
        _promote_under_traffic(stage, users)
        _roll_back_under_traffic(stage, users)


def _apply_weights(stage: Stage, percent: int) -> None:
    """Write rollout.yaml with this share for version 2, and apply it."""
    from paritygate.mesh.actions import apply_rollout
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.state import FileStateStore
    from paritygate.serving.publish import ModelRepository

    rollout = {
        "schema": "paritygate.rollout/v1",
        "model": MODEL,
        "stable": 1,
        "topology": "gateway-header",
        "sticky": {"header": "x-user"},
        "routes": [{"weights": {1: 100 - percent, 2: percent}}],
    }
    path = stage.rollout_file(percent)
    path.write_text(yaml.safe_dump(rollout, sort_keys=False), encoding="utf-8")
    repository = ModelRepository(stage.repository)
    signatures = {v: repository.signature(MODEL, v) for v in repository.versions(MODEL)}
    applied = apply_rollout(
        FileStateStore(stage.rollouts),
        load_rollout(path),
        signatures=signatures,
        actor="quickstart",
        wait_s=10.0,
    )
    _require_followed("rollout", applied)
    stage.say.good(f"{path.name} applied: version 1 {100 - percent} %, version 2 {percent} %")


def _observe_canary(stage: Stage, users: Users) -> None:
    stage.say.step(
        f"{NUM_USERS} sticky users send the real test images with stock tritonclient, HTTP and gRPC"
    )
    tally = users.send(_REQUESTS_PER_USER)
    figures = tally.by_version()
    stage.say.table(
        ("version", "requests", "share", "accuracy", "p50", "p99"),
        [_row(version, seen, tally) for version, seen in figures.items()],
    )
    _require_none_failed("the canary", tally)
    torn = tally.users_on_two_versions()
    if torn or set(figures) != {"1", "2"}:
        raise StoryFailed(
            f"{torn} users saw two versions; versions seen: {sorted(figures)}, expected 1 and 2"
        )
    stage.say.good(f"{tally.requests} requests, 0 failed, no user saw two versions")
    stage.result["canary"] = {
        "weight_percent": _CANARY_PERCENT,
        "requests": tally.requests,
        "failed": tally.failed,
        "share_percent": tally.share_percent("2"),
        "users_on_two_versions": torn,
        "by_version": figures,
    }


def _row(version: str, seen: dict[str, float], tally: Tally) -> tuple[str, ...]:
    return (
        version,
        str(seen["requests"]),
        f"{tally.share_percent(version):.1f} %",
        f"{100 * seen['accuracy']:.1f} %",
        f"{seen['p50_ms']:.1f} ms",
        f"{seen['p99_ms']:.1f} ms",
    )


def _promote_under_traffic(stage: Stage, users: Users) -> None:
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    stage.say.step("Half of the users, then promote version 2, while requests keep coming")

    def change() -> None:
        _apply_weights(stage, 50)
        time.sleep(_BESIDE_EACH_CHANGE_S)
        result = actions.promote(FileStateStore(stage.rollouts), MODEL, actor="quickstart", wait_s=10.0)
        _require_followed("promotion", result)

    stage.result["promote"] = _under_traffic(stage, users, "promote", change, now_served_by="2")


def _roll_back_under_traffic(stage: Stage, users: Users) -> None:
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    stage.say.step("Roll back to version 1 the same way")

    def change() -> None:
        result = actions.rollback(FileStateStore(stage.rollouts), MODEL, actor="quickstart", wait_s=10.0)
        _require_followed("rollback", result)

    stage.result["rollback"] = _under_traffic(stage, users, "rollback", change, now_served_by="1")


def _under_traffic(
    stage: Stage, users: Users, verb: str, change: Callable[[], None], *, now_served_by: str
) -> dict[str, int]:
    """Run a change while users send, then see that every user is answered by the one version."""
    with users.in_background() as background:
        time.sleep(_BESIDE_EACH_CHANGE_S)
        change()
        time.sleep(_BESIDE_EACH_CHANGE_S)
    tally = background.tally
    _require_none_failed(verb, tally)
    after = users.send(1)
    _require_none_failed(f"after the {verb}", after)
    if set(after.by_version()) != {now_served_by}:
        raise StoryFailed(f"after the {verb} versions {sorted(after.by_version())} still answer")
    stage.say.good(f"{tally.requests} requests meanwhile, 0 failed; all users on version {now_served_by}")
    return {"requests": tally.requests, "failed": tally.failed}


def _require_none_failed(what: str, tally: Tally) -> None:
    if tally.failed or not tally.requests:
        raise StoryFailed(f"{what}: {tally.failed} of {tally.requests} requests failed ({tally.first_error})")


def _require_followed(what: str, outcome: Outcome) -> None:
    if not outcome.acknowledgement.ok or not outcome.acknowledgement.live:
        raise StoryFailed(f"the gateway did not follow the {what}: {outcome.acknowledgement}")


def _render_for_istio(stage: Stage) -> None:
    """Act 8: the same rollout as Istio manifests."""
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.dialects import render_text

    stage.say.step("The canary's rollout for Istio")
    text = render_text(load_rollout(stage.rollout_file(_CANARY_PERCENT)), "istio")
    path = stage.folder / "istio.yaml"
    path.write_text(text, encoding="utf-8")
    stage.say.text(text)
    stage.say.good(f"written to {path}")


def _say_what_next(stage: Stage) -> None:
    say, program = stage.say, _program()
    say.title(f"\nAll of it worked, in {stage.result['seconds']} s. Everything is in {stage.folder}. Next:")
    say.fact(f"{program} serve --repo {stage.repository} --rollouts {stage.rollouts}")
    say.fact(f"{program} rollout status {MODEL} --rollouts {stage.rollouts}")
    say.fact(f"{program} validate {stage.folder / 'bundle-v2'}")
    say.fact(f"{program} export --help        your own checkpoint")


def _program() -> str:
    """How this command is typed here: by its name where that is on the path, else by where it lies."""
    beside = Path(sys.executable).with_name("paritygate")
    found = shutil.which("paritygate")
    if found and Path(found).resolve() == beside.resolve():
        return "paritygate"
    return _short(beside) if beside.exists() else f"{_short(Path(sys.executable))} -m paritygate"


def _short(path: Path) -> str:
    """A path as one would type it from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
