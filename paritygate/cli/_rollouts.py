"""Commands on rollouts: apply, status, promote, rollback, history; route and render."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from paritygate.cli._examples import BadArgument
from paritygate.cli._output import out, print_json

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
    result = apply_rollout(
        FileStateStore(rollouts), rollout, signatures=signatures, actor=getpass.getuser(), wait_s=wait
    )
    _say(result, as_json)


def status(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    as_json: JsonFlag = False,
) -> None:
    """Show the rollout in force for a model.   Example: paritygate rollout status digits --rollouts state"""
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    _say(actions.status(_existing(FileStateStore, rollouts), model), as_json)


def promote(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    wait: Wait = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Give the candidate all traffic.   Example: paritygate rollout promote digits --rollouts state"""
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    store = _existing(FileStateStore, rollouts)
    _say(actions.promote(store, model, actor=getpass.getuser(), wait_s=wait), as_json)


def rollback(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    wait: Wait = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Give the stable version all traffic again.   Example: paritygate rollout rollback digits --rollouts state"""
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    store = _existing(FileStateStore, rollouts)
    _say(actions.rollback(store, model, actor=getpass.getuser(), wait_s=wait), as_json)


def history(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    rollouts: StateDir,
    as_json: JsonFlag = False,
) -> None:
    """List what was done to a model's rollout, oldest first.

    Example: paritygate rollout history digits --rollouts state
    """
    from paritygate.mesh import actions
    from paritygate.mesh.state import FileStateStore

    entries = [e.to_json() for e in actions.history(_existing(FileStateStore, rollouts), model)]
    if as_json:
        print_json({"history": entries})
        return
    for entry in entries:
        out().print(json.dumps(entry, sort_keys=True), markup=False)


def route(
    rollout_file: Annotated[Path, typer.Argument(metavar="ROLLOUT", help="A rollout.yaml.")],
    request: Annotated[
        Path, typer.Option(help='JSON: {"headers": {name: value}, "parameters": {name: value}}.')
    ],
    as_json: JsonFlag = False,
) -> None:
    """Explain which rule, weight and bucket act on one request, and why.

    Example: paritygate route rollout.yaml --request request.json
    """
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.explain import explain

    explanation = explain(load_rollout(rollout_file), _load_request(request))
    _say(explanation, as_json)


def render(
    rollout_file: Annotated[Path, typer.Argument(metavar="ROLLOUT", help="A rollout.yaml.")],
    to: Annotated[str, typer.Option("--to", help="The target: istio.")],
    namespace: Annotated[str, typer.Option(help="Namespace of the rendered objects.")] = "default",
    host: Annotated[str | None, typer.Option(help="The service host; default: the model's name.")] = None,
) -> None:
    """Write the rollout as manifests of a mesh, or say which field it cannot express.

    Example: paritygate render rollout.yaml --to istio
    """
    from paritygate.mesh.config import load_rollout
    from paritygate.mesh.dialects import get_dialect

    dialect = get_dialect(to)
    rollout = load_rollout(rollout_file)
    documents = dialect.render(rollout, dialect.target(rollout, namespace=namespace, host=host))
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


def _existing(store: Any, directory: Path) -> Any:
    if not directory.is_dir():
        raise BadArgument(
            f"--rollouts {directory}: there is no such directory. Give the one that `paritygate serve` was given."
        )
    return store(directory)


def _load_request(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadArgument(f"--request {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadArgument(f"--request {path}: expected an object with `headers`, got {type(value).__name__}.")
    return value


def _say(result: Any, as_json: bool) -> None:
    value = result.to_json()
    if as_json:
        print_json(value)
    else:
        out().print(str(result), markup=False)
    if value.get("ok") is False:
        raise typer.Exit(1)
