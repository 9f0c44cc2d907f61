"""The command line: every command helps itself, every error is one line with exit code 1."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paritygate.cli import build_app, main
from paritygate.cli._examples import (
    BadArgument,
    load_samples,
    parse_dynamic,
    parse_inputs,
    parse_ranges,
)
from paritygate.cli._output import describe
from paritygate.converter.bundle import read_bundle
from paritygate.converter.errors import ConverterError


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One command as its own process, the way a person types it."""
    command = [sys.executable, "-m", "paritygate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def _commands() -> list[tuple[str, ...]]:
    from typer.main import get_command

    def walk(command: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        children = getattr(command, "commands", {})
        found = [path]
        for name, child in children.items():
            found += walk(child, (*path, name))
        return found

    return walk(get_command(build_app()), ())


@pytest.mark.parametrize("path", _commands(), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*path, "--help"])
    assert stop.value.code == 0
    assert "Usage: paritygate" in capsys.readouterr().out


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import paritygate

    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"paritygate {paritygate.__version__}\n"


def test_help_imports_no_framework() -> None:
    code = (
        "import sys; from paritygate.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'tensorflow', 'onnxruntime', 'fastapi', 'grpc', 'sklearn', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_help_of_export_names_every_framework(capsys: pytest.CaptureFixture[str]) -> None:
    from paritygate.converter.exporters import EXPORTERS

    with pytest.raises(SystemExit):
        main(["export", "--help"])
    shown = re.split(r"\W+", capsys.readouterr().out.partition("--framework")[2].partition("--factory")[0])
    assert set(EXPORTERS) <= set(shown)


def test_every_setting_of_the_gateway_is_a_flag() -> None:
    import dataclasses
    import inspect

    from paritygate.cli import _deploy
    from paritygate.serving.config import Settings

    flags = {
        name.replace("load_model", "load_models") for name in inspect.signature(_deploy.serve).parameters
    }
    assert flags == {field.name for field in dataclasses.fields(Settings)}


BAD_COMMANDS = {
    "export of a checkpoint that is not there": (
        ["export", "no-such.pt", "--factory", "x:y", "-o", "b"],
        "no-such.pt",
    ),
    "validate of a bundle that is not there": (["validate", "no-such-bundle"], "no-such-bundle"),
    "publish of a bundle that is not there": (["publish", "no-such-bundle", "--repo", "r"], "no-such-bundle"),
    "rollout that is not there": (
        ["rollout", "apply", "no-such.yaml", "--rollouts", "s", "--repo", "r"],
        "no-such.yaml",
    ),
    "state that is not there": (
        ["rollout", "status", "digits", "--rollouts", "no-such-state"],
        "no-such-state",
    ),
    "job that is not there": (["launch", "no-such-job.yaml"], "no-such-job.yaml"),
    "repository that is not there": (["serve", "--repo", "no-such-repo"], "no-such-repo"),
    "samples that are not there": (["export", "x.pt", "-o", "b", "--samples", "no-such.npz"], "no-such.npz"),
    "an input that cannot be read": (["export", "x.pt", "-o", "b", "--input", "x=float32"], "x=float32"),
    "examples given in two ways": (
        ["export", "x.pt", "-o", "b", "--samples", "x.npz", "--input", "x:float32[2]"],
        "--samples and --input",
    ),
    "an input beyond all memory": (
        ["export", "x.pt", "-o", "b", "--input", "x:float32[99999999999,4]"],
        "memory",
    ),
    "a framework without an environment": (["env", "sync", "no-such-framework"], "no-such-framework"),
    "no repository to look at": (["repo", "lint"], "name one model repository"),
    "two repositories to look at": (["repo", "lint", "a", "--repo", "b"], "name one model repository"),
    "a framework by its package's name": (
        ["export", "x.pt", "-o", "b", "--framework", "torch"],
        "Did you mean 'pytorch'?",
    ),
    "an environment by its package's name": (["env", "doctor", "tf"], "Did you mean 'tensorflow'?"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_COMMANDS.values(), ids=BAD_COMMANDS)
def test_bad_input_is_one_line_and_exit_code_one(arguments: list[str], named: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paritygate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert named in lines[0]
    assert "unexpected" not in lines[0]


@pytest.mark.parametrize("given", [["REPO"], ["--repo", "REPO"]], ids=["by itself", "as an option"])
def test_a_repository_is_named_either_way(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["repo", "lint", *(str(tmp_path) if word == "REPO" else word for word in given)])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"0 finding(s) in {tmp_path}\n"


def test_an_error_with_json_is_one_object_on_standard_output() -> None:
    done = run("validate", "no-such-bundle", "--json")
    assert done.returncode == 1
    assert "no-such-bundle" in json.loads(done.stdout)["error"]


def test_an_unforeseen_error_is_named_and_still_one_line() -> None:
    assert describe(KeyError("x\ny")) == r"unexpected KeyError: 'x\ny' (PARITYGATE_DEBUG=1 shows where)"


def test_names_out_of_a_file_neither_steer_the_terminal_nor_fill_it() -> None:
    assert (
        describe(ConverterError("the node 'a\x1b[2J\nb' is unknown")) == "the node 'a\\x1b[2J b' is unknown"
    )
    assert describe(OSError(2, "No\x1b[2J file")) == "No\\x1b[2J file"
    assert len(describe(ConverterError("x" * 10**6))) == 500
    assert len(describe(ConverterError("x " * 10**6))) == 4000


def test_example_inputs_are_the_same_each_time() -> None:
    first, again = parse_inputs(["x:float32[2,3]"]), parse_inputs(["x:float32[2,3]"])
    assert first is not None
    assert again is not None
    assert first["x"].shape == (2, 3)
    assert first["x"].tobytes() == again["x"].tobytes()


@pytest.mark.parametrize("text", ["x", "x:float32", "x:float32[2,-1]", "x:float33[2]", ":float32[2]"])
def test_an_example_input_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="--input"):
        parse_inputs([text])


def test_names_in_the_shapes_open_their_axes_and_trace_at_sizes_of_their_own() -> None:
    texts = ["ids:int64[batch,time]", "feats:float32[batch,3]", "scale:float32[]"]
    examples = parse_inputs(texts)
    assert isinstance(examples, dict)
    assert {name: array.shape for name, array in examples.items()} == {
        "ids": (2, 17),
        "feats": (2, 3),
        "scale": (),
    }
    assert parse_dynamic([], texts) == {"ids": {0: "batch", 1: "time"}, "feats": {0: "batch"}}


def test_texts_are_left_to_the_exporter_that_knows_some() -> None:
    texts = ["age:float32[batch,1]", "city:string[batch,1]"]
    assert parse_inputs(texts) == tuple(texts)


def test_open_dimensions_and_names_in_the_shapes_add_up() -> None:
    opened = parse_dynamic(["ids:0=batch", "feats:0=batch"], ["ids:int64[batch,5]", "feats:float32[2,3]"])
    assert opened == {"ids": {0: "batch"}, "feats": {0: "batch"}}


def test_sizes_that_are_all_numbers_open_nothing_by_themselves() -> None:
    assert parse_dynamic([], ["x:float32[2,3]"]) is None


def test_axis_with_two_names_is_refused() -> None:
    with pytest.raises(BadArgument, match="called 'batch' already"):
        parse_dynamic(["x:0=rows"], ["x:float32[batch,3]"])


def test_input_given_twice_is_refused() -> None:
    with pytest.raises(BadArgument, match="'x' twice"):
        parse_inputs(["x:float32[2]", "x:float32[3]"])


@pytest.mark.parametrize("text", ["x", "x:batch", "x:0", "x:-1=batch", "x:0=1batch"])
def test_an_open_dimension_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="input:axis=name"):
        parse_dynamic([text])


def test_open_dimensions_are_gathered_by_input() -> None:
    assert parse_dynamic(["x:0=batch", "x:1=length", "y:0=batch"]) == {
        "x": {0: "batch", 1: "length"},
        "y": {0: "batch"},
    }


def test_pickled_samples_are_refused(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(BadArgument, match=r"the array 'x' holds Python objects.*x=array\.astype\(str\)"):
        load_samples(path)


def test_texts_in_samples_are_read(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "x.npz", word=np.array(["a", "bc"], dtype=object).astype(str))
    assert load_samples(tmp_path / "x.npz")["word"].tolist() == ["a", "bc"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["w/data.pkl", "w/data/0"], "is a PyTorch checkpoint; expected an .npz with one example array"),
        (["metadata.json", "config.json", "model.weights.h5"], "is a Keras archive; expected an .npz"),
        (["x.npy", "notes.txt"], "is an archive with other things in it; expected an .npz"),
        ([], "is an empty archive; expected an .npz"),
    ],
    ids=["checkpoint", "keras", "mixed", "empty"],
)
def test_other_archives_are_no_samples(members: list[str], said: str, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        for member in members:
            archive.writestr(member, b"x")
    with pytest.raises(BadArgument, match=rf"--samples .*weights\.pt {said}.*numpy\.savez"):
        load_samples(tmp_path / "weights.pt")


def test_samples_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    path.write_text("hello", encoding="utf-8")
    with pytest.raises(BadArgument, match=r"numpy\.savez"):
        load_samples(path)


def test_fixed_sizes_ranges_and_samples_reach_the_bundle(tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", 3])]
    outputs = [helper.make_tensor_value_info("next", TensorProto.INT64, ["rows", 3])]
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    node = helper.make_node("Add", ["ids", "one"], ["next"])
    graph = helper.make_graph([node], "graph", values, outputs, [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", ids=np.array([[30, 40, 50]]))
    options = ["--integer-range", "ids=20:60", "--samples", tmp_path / "samples.npz", "--include-samples"]
    ended = run("export", tmp_path / "net.onnx", "-o", tmp_path / "b", "--dynamic", "none", *options)
    assert ended.returncode == 0, ended.stderr
    bundle = read_bundle(tmp_path / "b")
    assert bundle.signature.inputs[0].shape == (1, 3)
    asked = {probe.case: probe.inputs["ids"] for probe in bundle.probes()}
    assert asked["sample:0"].tolist() == [[30, 40, 50]]
    assert all(ids.min() >= 20 and ids.max() <= 60 for ids in asked.values())


def test_sizes_and_ranges_follow_an_input_to_its_new_name(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info("ids", TensorProto.INT64, [None, 3])]
    outputs = [helper.make_tensor_value_info("next", TensorProto.INT64, [None, 3])]
    graph = helper.make_graph([helper.make_node("Add", ["ids", "ids"], ["next"])], "graph", values, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "net.onnx")
    options = ["--input", "ids:int64[rows,3]", "--integer-range", "ids=20:60", "--input-name", "tokens"]
    ended = run("export", tmp_path / "net.onnx", "-o", tmp_path / "b", *options)
    assert ended.returncode == 0, ended.stderr
    bundle = read_bundle(tmp_path / "b")
    (spec,) = bundle.signature.inputs
    assert (spec.name, spec.shape) == ("tokens", ("rows", 3))
    assert all(probe.inputs["tokens"].min() >= 20 for probe in bundle.probes() if probe.inputs["tokens"].size)


@pytest.mark.parametrize("text", ["ids", "ids=5", "ids=9:1", "ids=a:b", "ids=1.5:3"])
def test_a_range_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="input=lowest:highest"):
        parse_ranges([text])


def test_ranges_are_gathered_by_input_and_given_once() -> None:
    assert parse_ranges(["ids=0:30521", "kinds=-1:1"]) == {"ids": (0, 30521), "kinds": (-1, 1)}
    with pytest.raises(BadArgument, match="'ids' twice"):
        parse_ranges(["ids=0:1", "ids=0:2"])


def test_samples_that_were_not_given_cannot_be_included(tmp_path: Path) -> None:
    ended = run("export", "net.onnx", "-o", tmp_path / "b", "--include-samples")
    assert ended.returncode == 1
    assert "--include-samples has no samples" in ended.stderr
