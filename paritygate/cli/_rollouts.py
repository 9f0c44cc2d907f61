"""Commands on rollouts: apply, status, promote, rollback, history; route and render."""

from __future__ import annotations

import dataclasses
import getpass
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paritygate.cli._examples import BadArgument
from paritygate.cli._output import out, print_json

if TYPE_CHECKING:
    from paritygate.mesh.actions import Outcome
    from paritygate.mesh.state import Acknowledgement, FileStateStore, RolloutState, Transition

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]
StateDir = Annotated[Path, typer.Option("--rollouts", help="The state directory that `serve` was given.")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for every gateway to follow.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Steer which version gets which requests.", no_args_is_help=True)
    for verb in (apply, status, promote, rollback, history):
        group.command(verb.__name__)(verb)
    app.add_typer(group, name="rollout")
    app.command("route")(route)
    app.command("render")(render)


def apply(
    rollout_file: Annotated[Path, typer.Argument(metavar="ROLLOUT", help="A rollout.yaml.")],
    rollouts: StateDir,
    repo: Annotated[
        Path, typer.Option(help="The model repository, to check that the versions fit each other.")
    ],
    wait: Wait = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Make a rollout the one in force, and return when every gateway follows it.

    Example: paritygate rollout apply rollout.yaml --rollouts state --repo model_repo
    """
    from paritygate.mesh.actions import apply_rollout
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.state import FileStateStore
    from paritygate.serving.publish import ModelRepository

    rollout = load_rollout(rollout_file)
    repository = ModelRepository(repo)
    signatures = {v: repository.signature(rollout.model, v) for v in repository.versions(rollout.model)}
    outcome = apply_rollout(
        FileStateStore(rollouts), rollout, signatures=signatures, actor=_actor(), wait_s=wait
    )
    _say_outcome(outcome, as_json)


def status(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    as_json: JsonFlag = False,
) -> None:
    """Show the rollout in force for a model.   Example: paritygate rollout status digits --rollouts state"""
    from paritygate.mesh import actions

    seen = actions.status(_open_store(rollouts), model)
    if as_json:
        print_json(_state_json(seen.state, seen.acknowledgement) | {"last": _transition_json(seen.last)})
        return
    _print_state(seen.state, seen.acknowledgement)
    out().print(f"since       {_when(seen.last.at)}, {seen.last.action} by {seen.last.actor}", markup=False)


def promote(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    version: Annotated[int | None, typer.Option(help="Which candidate, where there are several.")] = None,
    wait: Wait = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Give the candidate all traffic.   Example: paritygate rollout promote digits --rollouts state"""
    from paritygate.mesh import actions

    store, actor = _open_store(rollouts), _actor()
    _say_outcome(actions.promote(store, model, version=version, actor=actor, wait_s=wait), as_json)


def rollback(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    wait: Wait = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Give the stable version all traffic again, or the one before once promoted.

    Example: paritygate rollout rollback digits --rollouts state
    """
    from paritygate.mesh import actions

    store, actor = _open_store(rollouts), _actor()
    _say_outcome(actions.rollback(store, model, actor=actor, wait_s=wait), as_json)


def history(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    as_json: JsonFlag = False,
) -> None:
    """List what was done to a model's rollout, oldest first.

    Example: paritygate rollout history digits --rollouts state
    """
    from paritygate.mesh import actions

    transitions = actions.history(_open_store(rollouts), model)
    if as_json:
        print_json({"history": [_transition_json(transition) for transition in transitions]})
        return
    for transition in transitions:
        line = f"{_when(transition.at)}  {transition.after.generation:>4}  {transition.action:<9}"
        out().print(f"{line} {_weights(transition.after)}  ({transition.actor})", markup=False)


def route(
    rollout_file: Annotated[Path, typer.Argument(metavar="ROLLOUT", help="A rollout.yaml.")],
    request: Annotated[
        Path, typer.Option(help='YAML or JSON: {"headers": {...}, "parameters": {...}, "draw": 0..9999}.')
    ],
    as_json: JsonFlag = False,
) -> None:
    """Explain which rule, weight and bucket act on one request, and why.

    Example: paritygate route rollout.yaml --request request.json
    """
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.explain import explain, load_request

    explanation = explain(load_rollout(rollout_file), load_request(request))
    if as_json:
        print_json(explanation.to_json())
        return
    for step in explanation.steps:
        out().print(step, markup=False)


def render(
    rollout_file: Annotated[Path, typer.Argument(metavar="ROLLOUT", help="A rollout.yaml.")],
    to: Annotated[str, typer.Option("--to", help="The target: istio.")],
    name: Annotated[str | None, typer.Option(help="Name of the objects; default: the model's.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the objects.")] = None,
    host: Annotated[str | None, typer.Option(help="Host of the service that has the versions.")] = None,
    gateway: Annotated[list[str] | None, typer.Option(help="An ingress gateway the routes bind to.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the service.")] = None,
) -> None:
    """Write the rollout as manifests of a mesh, or say which field it cannot express.

    Example: paritygate render rollout.yaml --to istio
    """
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.dialects import get_dialect, render_text

    rollout = load_rollout(rollout_file)
    places: dict[str, Any] = {"name": name, "namespace": namespace, "host": host, "port": port}
    places["gateways"] = tuple(gateway) if gateway else None
    target = _placed(get_dialect(to).default_target(rollout), places, to)
    typer.echo(render_text(rollout, to, target), nl=False)


def _placed(target: Any, places: dict[str, Any], dialect: str) -> Any:
    """A dialect's target with the places that were given; one that it does not have is refused."""
    chosen = {key: value for key, value in places.items() if value is not None}
    strange = sorted(chosen.keys() - {field.name for field in dataclasses.fields(target)})
    if strange:
        raise BadArgument(f"--to {dialect} takes no {', '.join(strange)}; leave it out.")
    return dataclasses.replace(target, **chosen)


def _actor() -> str:
    """Who types; a container's user id often has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _open_store(directory: Path) -> FileStateStore:
    from paritygate.mesh.state import FileStateStore

    if not directory.is_dir():
        raise BadArgument(
            f"--rollouts {directory}: there is no such directory. Give the one that `paritygate serve` was given."
        )
    return FileStateStore(directory)


def _say_outcome(outcome: Outcome, as_json: bool) -> None:
    """Print what is in force; exit code 1 when a live gateway does not follow it yet."""
    if as_json:
        print_json(_state_json(outcome.state, outcome.acknowledgement) | {"changed": outcome.changed})
    else:
        _print_state(outcome.state, outcome.acknowledgement)
        if not outcome.changed:
            out().print("unchanged   it was in force already")
    if not outcome.acknowledgement.ok:
        missing = ", ".join(outcome.acknowledgement.missing)
        typer.echo(
            f"error: in force, but not followed yet by {missing}; look again with rollout status", err=True
        )
        raise typer.Exit(1)


def _print_state(state: RolloutState, acknowledgement: Acknowledgement) -> None:
    console, live = out(), len(acknowledgement.live)
    console.print(f"model       {state.rollout.model}", markup=False)
    console.print(f"phase       {state.phase.value}, generation {state.generation}", markup=False)
    console.print(f"weights     {_weights(state)}", markup=False)
    followed = live - len(acknowledgement.missing)
    console.print(f"followed by {followed} of {live} live gateway worker(s)", markup=False)


def _weights(state: RolloutState) -> str:
    parts = []
    for rule in state.rollout.routes:
        shares = ", ".join(f"version {weight.version} {weight.percent} %" for weight in rule.weights)
        parts.append(shares if len(state.rollout.routes) == 1 else f"{rule.name}: {shares}")
    return "; ".join(parts)


def _state_json(state: RolloutState, acknowledgement: Acknowledgement) -> dict[str, Any]:
    from paritygate.mesh.config import rollout_to_value

    return {
        "ok": acknowledgement.ok,
        "model": state.rollout.model,
        "generation": state.generation,
        "phase": state.phase.value,
        "previous": state.previous,
        "rollout": rollout_to_value(state.rollout),
        "live": list(acknowledgement.live),
        "missing": list(acknowledgement.missing),
    }


def _transition_json(transition: Transition) -> dict[str, Any]:
    from paritygate.mesh.config import rollout_to_value

    before = transition.before
    return {
        "action": transition.action,
        "actor": transition.actor,
        "at": transition.at,
        "generation": transition.after.generation,
        "phase": transition.after.phase.value,
        "before": None if before is None else rollout_to_value(before.rollout),
        "after": rollout_to_value(transition.after.rollout),
    }


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
