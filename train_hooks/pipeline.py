"""From a trained model to a published version: export here, validate and publish in a child of the core.

The same for every framework; what is special about one stands in `hooks/`. No collective is called: ranks other
than 0 return at once, and rank 0 waits for nobody.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paritygate.train_hooks.errors import CoreUnavailable, ExportFailed, HookError, PublishFailed
from paritygate.train_hooks.hooks import find_hook
from paritygate.train_hooks.hooks.ranks import rank_of_job
from paritygate.train_hooks.types import CoreEnvironment, HookResult

if TYPE_CHECKING:
    from paritygate.converter.bundle import Bundle

CORE_CHECK_TIMEOUT_S = 120.0
PUBLISH_TIMEOUT_S = 3600.0
"""Validation runs every probe on the CPU; an hour is beyond any model that fits the probes' budget."""

_CORE_PROBE = """
import importlib.util, json, sys
wanted = ["paritygate.cli", "onnxruntime", "tritonclient"]
missing = []
for name in wanted:
    try:
        found = importlib.util.find_spec(name) is not None
    except ImportError:
        found = False
    if not found:
        missing.append(name)
version = None
if "paritygate.cli" not in missing:
    import paritygate
    version = paritygate.__version__
print(json.dumps({"missing": missing, "version": version}))
"""

_JOB_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
    "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT",
    "MS_NODE_ID", "MS_WORKER_NUM", "MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT",
)  # fmt: skip
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE")


def begin() -> CoreEnvironment | None:
    """Find out, before the training starts, whether a trained model could be validated and published.

    Returns:
        The core environment; None on ranks other than 0, which publish nothing.

    Raises:
        CoreUnavailable: If there is none.
        RankUnclear: If the environment does not say which rank this is.
    """
    return check_core_environment() if rank_of_job(os.environ).is_first else None


def after_training(
    model: Any,
    example_inputs: Any,
    *,
    name: str | None = None,
    repository: str | os.PathLike[str] | None = None,
    bundle_dir: str | os.PathLike[str] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = 18,
    samples: Iterable[Mapping[str, Any]] | None = None,
    seed: int = 1,
) -> HookResult | None:
    """Export a trained model, prove it, and publish it; to be called once, on every rank.

    Args:
        model: A trained model of any framework in `HOOKS`, with whatever DDP, torch.compile and the like put
            around it.
        example_inputs: One array, a tuple, or a dict of arrays by name, with a batch dimension.
        name: Model name; None takes `export.name` of the job file.
        repository: Model repository to publish into; None takes `export.repository` of the job file, and where
            there is none either, the result ends at the bundle.
        bundle_dir: New directory for the bundle, which is kept; None takes `export.bundle_dir` of the job file,
            or a place below the working directory that is removed once the repository holds the same bytes.
        input_names: Names that clients use, in the order of the inputs.
        output_names: The same for outputs.
        dynamic: Input name to axis to the name of its varying size, as in `{"x": {0: "batch"}}`.
        opset: ONNX opset.
        samples: Feeds of your own to be tried besides the generated ones.
        seed: Seed of the generated probes.

    Returns:
        What was made; None on ranks other than 0.

    Raises:
        HookError: If the model cannot be exported or published; a bundle that is there is kept, and the message
            says how to publish it.
    """
    started_at = time.monotonic()
    hook = find_hook(model)
    if not hook.rank().is_first:
        return None
    chosen_name = name or os.environ.get("PARITYGATE_EXPORT_NAME")
    if not chosen_name:
        raise HookError(
            'the model has no name; call after_training(..., name="digits") or set export.name in job.yaml.'
        )
    target = _repository(repository)
    directory, is_chosen = _bundle_directory(chosen_name, bundle_dir)
    bundle = _export(
        hook.unwrap(model),
        directory,
        name=chosen_name,
        framework=hook.framework,
        inputs=example_inputs,
        input_names=input_names,
        output_names=output_names,
        dynamic=dynamic,
        opset=opset,
        samples=samples,
        seed=seed,
    )
    facts = _publish(bundle.path, target) if target is not None else {}
    is_kept = is_chosen or not facts
    if not is_kept:
        _remove(bundle.path)
    result = HookResult(
        name=chosen_name,
        framework=str(bundle.manifest["framework"]["name"]),
        bundle=str(bundle.path) if is_kept else None,
        bundle_digest=bundle.digest,
        repository=target,
        seconds=round(time.monotonic() - started_at, 3),
        **facts,
    )
    _report(result)
    return result


def _repository(given: str | os.PathLike[str] | None) -> str | None:
    """The repository as the child is to see it, which runs in another directory."""
    text = os.fspath(given) if given is not None else os.environ.get("PARITYGATE_REPOSITORY")
    if not text:
        return None
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _bundle_directory(name: str, given: str | os.PathLike[str] | None) -> tuple[Path, bool]:
    """Where the bundle goes, and whether the user chose the place."""
    text = os.fspath(given) if given is not None else os.environ.get("PARITYGATE_BUNDLE_DIR")
    if text:
        return Path(os.path.abspath(os.path.expanduser(text))), True
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return Path.cwd() / "paritygate-bundles" / f"{name}-{stamp}-{os.getpid()}", False


def _export(model: Any, directory: Path, **options: Any) -> Bundle:
    from paritygate.converter.exporters import export_model

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        return export_model(model, directory, **options)
    except Exception as error:  # whatever a framework raises: the training itself went well, and says so
        said = str(error) or type(error).__name__
        raise ExportFailed(f"{options['name']} was trained, but not exported: {said}") from error


def _remove(bundle: Path) -> None:
    """Remove a scratch bundle whose bytes the repository holds, and its folder if it was the last one."""
    import shutil

    shutil.rmtree(bundle)
    try:
        bundle.parent.rmdir()
    except OSError:
        return  # other bundles lie there


def _report(result: HookResult) -> None:
    """Add the result to the file (or pipe) that the launcher reads, one line of JSON."""
    path = os.environ.get("PARITYGATE_RESULT_FILE")
    if not path:
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json.dumps(result.to_json()).encode() + b"\n")
    finally:
        os.close(handle)


# The core environment.


def core_python() -> str:
    """The interpreter of the core environment: PARITYGATE_CORE_PYTHON, which the launcher sets, or this one."""
    return os.environ.get("PARITYGATE_CORE_PYTHON") or sys.executable


def check_core_environment() -> CoreEnvironment:
    """The environment in which bundles are validated and published, seen to be there.

    Raises:
        CoreUnavailable: If its interpreter does not run, or lacks a part that publishing needs.
    """
    python = core_python()
    origin = "PARITYGATE_CORE_PYTHON" if os.environ.get("PARITYGATE_CORE_PYTHON") else "this interpreter"
    hint = "set PARITYGATE_CORE_PYTHON to an interpreter that has paritygate[cpu,serve]"
    try:
        done = subprocess.run(
            [python, "-P", "-c", _CORE_PROBE],
            env=_core_variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CORE_CHECK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer in time"
        raise CoreUnavailable(
            f"the core environment {python} ({origin}) cannot be run: {reason}; {hint}."
        ) from error
    found = _last_json(done.stdout)
    if done.returncode != 0 or found is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CoreUnavailable(
            f"the core environment {python} ({origin}) ended with code {done.returncode}: {last}; {hint}."
        )
    if found["missing"]:
        raise CoreUnavailable(
            f"the core environment {python} ({origin}) lacks {', '.join(found['missing'])}; {hint}."
        )
    return CoreEnvironment(Path(python), str(found["version"]))


def _core_variables() -> dict[str, str]:
    """The environment of a child of the core: nothing of the training interpreter, nothing of the job."""
    dropped = {*_JOB_VARIABLES, *_PYTHON_VARIABLES}
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.environ.get("PARITYGATE_CORE_PYTHONPATH")
    if path is None and core_python() == sys.executable:
        path = os.environ.get("PYTHONPATH")
    return {**env, "PYTHONPATH": path} if path else env


def publish_command(bundle: Path, repository: str) -> str:
    """The line that publishes a kept bundle by hand."""
    return shlex.join([core_python(), "-m", "paritygate", "publish", str(bundle), "--repo", repository])


def _publish(bundle: Path, repository: str) -> dict[str, Any]:
    """Validate and publish in a child of the core environment.

    Returns:
        The fields of HookResult that the child knows.

    Raises:
        PublishFailed: If the version is not in the repository afterwards.
    """
    words = [core_python(), "-P", "-m", "paritygate", "publish", str(bundle), "--repo", repository, "--json"]
    try:
        done = subprocess.run(
            words,
            env=_core_variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PUBLISH_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _publish_failed(bundle, repository, str(error)) from error
    said = _last_json(done.stdout) or {}
    if done.returncode != 0 or "version" not in said:
        last = (done.stderr.strip().splitlines() or [f"the child ended with code {done.returncode}"])[-1]
        raise _publish_failed(bundle, repository, str(said.get("error") or last))
    names = ("version", "created", "verdict", "max_abs_diff", "share_of_allowed", "path")
    return {name: said.get(name) for name in names}


def _publish_failed(bundle: Path, repository: str, reason: str) -> PublishFailed:
    command = publish_command(bundle, repository)
    return PublishFailed(
        f"not published into {repository}: {reason.rstrip('.')}. The bundle is kept in {bundle}; "
        f"publish it with: {command}",
        bundle=bundle,
        command=command,
    )


def _last_json(text: str) -> dict[str, Any] | None:
    """The JSON object that a child printed, which may span lines; None if it printed none."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        value = json.loads(text[start:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
