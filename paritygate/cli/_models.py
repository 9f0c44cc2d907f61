"""Commands on models and bundles: export, validate, pmml, publish, repo."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paritygate.cli._output import out, print_json

if TYPE_CHECKING:
    from paritygate.converter.bundle import Bundle
    from paritygate.converter.parity.report import Certificate

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("export")(export)
    app.command("validate")(validate)
    app.command("pmml")(pmml)
    app.command("publish")(publish)
    repository = typer.Typer(help="Look at a model repository.", no_args_is_help=True)
    repository.command("lint")(lint)
    app.add_typer(repository, name="repo")


def export(
    source: Annotated[str, typer.Argument(help="A checkpoint, a saved model, or module:factory.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The bundle directory to make.")],
    name: Annotated[str | None, typer.Option(help="The model's name; default: the source's.")] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="When it cannot be told from the source: pytorch, keras, tensorflow, jax, sklearn, xgboost, "
            "lightgbm, paddle, mindspore, pmml or onnx."
        ),
    ] = None,
    factory: Annotated[
        str | None, typer.Option(help="module:function that builds the network whose weights SOURCE holds.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="The entry of a training checkpoint that holds the weights, e.g. ema.")
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="The signature of a SavedModel; default: serving_default or serve.")
    ] = None,
    keep_saved_model: Annotated[
        bool,
        typer.Option("--keep-saved-model", help="Let the SavedModel travel along, for TensorFlow Serving."),
    ] = False,
    samples: Annotated[
        Path | None, typer.Option(help=".npz with example inputs, one array an input.")
    ] = None,
    include_samples: Annotated[
        bool,
        typer.Option(
            "--include-samples", help="Prove the samples too; their arrays are sealed for all to read."
        ),
    ] = False,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="An open dimension, as input:axis=name, e.g. x:0=batch; none alone fixes all."),
    ] = None,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="An example input where there are no samples, as x:float32[2,3]; a name for a size opens it.",
        ),
    ] = None,
    integer_range: Annotated[
        list[str] | None,
        typer.Option(help="What an integer input may hold, as input=lowest:highest, e.g. ids=0:30521."),
    ] = None,
    input_name: Annotated[list[str] | None, typer.Option(help="Names of the inputs, in order.")] = None,
    output_name: Annotated[list[str] | None, typer.Option(help="Names of the outputs, in order.")] = None,
    opset: Annotated[int, typer.Option(help="ONNX opset of the default domain.")] = 18,
    trust: Annotated[bool, typer.Option("--trust", help="Open sources that can run code.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn a checkpoint or a saved model into a bundle.

    Example: paritygate export weights.safetensors --factory net:build --samples x.npz -o bundle
    """
    from paritygate.cli._examples import (
        BadArgument,
        load_samples,
        parse_dynamic,
        parse_inputs,
        parse_ranges,
    )
    from paritygate.cli._progress import BuildDisplay
    from paritygate.converter.config import ExportConfig
    from paritygate.converter.environments import export_source

    if samples and input_shape:
        raise BadArgument("--samples and --input both give the example inputs; give one of them.")
    if include_samples and not samples:
        raise BadArgument("--include-samples has no samples to include; give --samples FILE.npz.")
    shapes = input_shape or []
    arrays = load_samples(samples) if samples else None
    config = ExportConfig(
        name=name or _name_of(source),
        factory=factory,
        weights=weights,
        signature=signature,
        keep_saved_model=keep_saved_model,
        inputs=parse_inputs(shapes) if arrays is None else arrays,
        dynamic=parse_dynamic(dynamic or [], shapes),
        samples=(arrays,) if include_samples and arrays else (),
        include_samples=include_samples,
        integer_ranges=parse_ranges(integer_range or []),
        input_names=tuple(input_name) if input_name else None,
        output_names=tuple(output_name) if output_name else None,
        opset=opset,
        trust=trust,
    )
    with BuildDisplay(silent=as_json) as display:
        bundle = export_source(
            source, output, config, framework=framework, on_event=display.say, on_step=display.step
        )
    if as_json:
        print_json({"bundle": str(bundle.path), "digest": bundle.digest, **bundle.signature.to_json()})
        return
    console = out()
    lines = [f"bundle     {bundle.path}", f"digest     {bundle.digest}", f"signature  {bundle.signature}"]
    lines += [f"note       {note}" for note in bundle.manifest["notes"]]
    lines.append(f"next       paritygate validate {bundle.path}")
    for line in lines:
        console.print(line, markup=False)


def _name_of(source: str) -> str:
    """A model name for a source that was given none: the file's stem, or the factory's module."""
    stem = source.partition(":")[0] if ":" in source and not Path(source).exists() else Path(source).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem.rpartition(".")[2] or stem).strip("-.") or "model"


def validate(
    bundle_path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle directory.")],
    report: Annotated[Path | None, typer.Option(help="Also write the certificate as JSON here.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Prove that a bundle computes the numbers of its source, and write the certificate into it.

    Exit code 1 when it does not.   Example: paritygate validate bundle
    """
    certificate = _prove(bundle_path)
    if report:
        report.write_text(
            json.dumps(certificate.to_json(), indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
    if as_json:
        print_json(certificate.to_json())
    else:
        out().print(certificate.summary(), markup=False)
    if certificate.verdict != "pass":
        raise typer.Exit(1)


def _prove(path: Path, bundle: Bundle | None = None) -> Certificate:
    from paritygate.converter.bundle import read_bundle
    from paritygate.converter.parity import validate_bundle, write_evidence

    bundle = bundle or read_bundle(path)
    certificate = validate_bundle(bundle)
    write_evidence(bundle, certificate)
    return certificate


def pmml(
    bundle_path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle directory.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The PMML file to make.")],
    as_json: JsonFlag = False,
) -> None:
    """Write a bundle's linear model or trees as PMML 4.4, once it gives the sealed answers of the source.

    Example: paritygate pmml bundle -o model.pmml
    """
    from paritygate.converter.bundle import read_bundle
    from paritygate.converter.pmml import write_pmml

    path = write_pmml(read_bundle(bundle_path), output)
    size = path.stat().st_size
    if as_json:
        print_json({"pmml": str(path), "size_bytes": size})
        return
    out().print(
        f"written  {path}  ({size:,} bytes; it gives the sealed answers)", markup=False, soft_wrap=True
    )


def publish(
    bundle_path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle directory.")],
    repo: Annotated[Path, typer.Option(help="The model repository.")],
    name: Annotated[str | None, typer.Option(help="Publish under this model name.")] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=0, help="Triton's max_batch_size; 0: the batch is a plain dimension.")
    ] = 0,
    allow_unproven: Annotated[
        bool, typer.Option("--allow-unproven", help="Publish without a certificate; every answer says so.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Publish a bundle as a new version, proving it first where that has not been done.

    Example: paritygate publish bundle --repo model_repo
    """
    from paritygate.converter.bundle import read_bundle
    from paritygate.serving.publish import publish_bundle

    bundle = read_bundle(bundle_path)
    certificate = bundle.certificate()
    if certificate is None and not allow_unproven:
        certificate = _prove(bundle_path, bundle)
    published = publish_bundle(
        bundle_path, repo, model_name=name, allow_unproven=allow_unproven, max_batch_size=max_batch_size
    )
    verdict = certificate.verdict if certificate else "unproven"
    if as_json:
        print_json(
            {
                "model": published.model,
                "version": published.version,
                "digest": published.digest,
                "created": published.created,
                "path": str(published.path),
                "verdict": verdict,
                "max_abs_diff": _figure(certificate.max_abs_diff) if certificate else None,
                "share_of_allowed": _figure(certificate.share) if certificate else None,
                "framework": bundle.manifest["framework"]["name"],
            }
        )
        return
    done = "published" if published.created else "already there"
    proof = f"{verdict}, {certificate.differences}" if certificate else verdict
    out().print(
        f"{done}  {published.model} version {published.version}  ({proof})\n           {published.path}"
    )


def _one_repository(repository: Path | None, repo: Path | None) -> Path:
    from paritygate.cli._examples import BadArgument

    given = [path for path in (repository, repo) if path is not None]
    if len(given) != 1:
        raise BadArgument(
            "name one model repository, as in: repo lint model_repo, or: repo lint --repo model_repo"
        )
    return given[0]


def _figure(value: float) -> float | None:
    """A figure as JSON has it, which knows no infinity."""
    return value if math.isfinite(value) else None


def lint(
    repository: Annotated[Path | None, typer.Argument(metavar="REPO", help="A model repository.")] = None,
    repo: Annotated[Path | None, typer.Option(help="The same, as publish and serve take it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a Triton, or this gateway, would stumble over in a model repository.

    Example: paritygate repo lint model_repo
    """
    from paritygate.serving.publish import ModelRepository

    path = _one_repository(repository, repo)
    findings = ModelRepository(path).lint()
    if as_json:
        print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            out().print(str(finding), markup=False)
        out().print(f"{len(findings)} finding(s) in {path}")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
