"""What a file or folder is, told from its content: nothing of it is run, and little of it is read.

Suffixes lie (`.ckpt` is written by three frameworks, `.json` by two, `.pb` and `.pkl` by many), so exporters claim
a source by what lies in it. The order of the checks does not matter: no two forms begin alike.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path

from paritygate.converter.checkpoints.archives import BadZip, open_zip
from paritygate.converter.errors import SourceError

_HEAD_BYTES = 1 << 16
_NAMES_READ = 20_000


class Form(enum.Enum):
    """A form of checkpoint or saved model.

    Attributes:
        words: What it is, to follow "is".
        exporters: Who reads it; the first claims it where the user names no framework. Empty: nobody does.
        advice: What to do with a form that nobody reads.
    """

    TORCH_CHECKPOINT = "a PyTorch checkpoint", ("pytorch",)
    TORCHSCRIPT = "a TorchScript archive", ("pytorch",)
    TORCH_PROGRAM = "a torch.export program", ("pytorch",)
    HUGGING_FACE = "a Hugging Face model directory", ("pytorch",)
    SAFETENSORS = "a safetensors file", ("pytorch", "mindspore")
    KERAS_ARCHIVE = "a Keras archive", ("keras",)
    HDF5 = "an HDF5 file", ("keras",)
    SAVED_MODEL = "a TensorFlow SavedModel", ("tensorflow",)
    FROZEN_GRAPH = "a frozen TensorFlow graph", ("tensorflow",)
    TF_CHECKPOINT = "a TensorFlow checkpoint", ("tensorflow", "keras")
    ORBAX = "an Orbax checkpoint", ("jax",)
    FLAX_MSGPACK = "a Flax msgpack file", ("jax",)
    MINDSPORE_CHECKPOINT = "a MindSpore checkpoint", ("mindspore",)
    MINDIR = "a MindIR file", ("mindspore",)
    PICKLE = "a pickle", ("sklearn", "xgboost", "lightgbm", "pytorch", "paddle")
    XGBOOST_JSON = "an XGBoost model (JSON)", ("xgboost",)
    XGBOOST_UBJ = "an XGBoost model (UBJSON)", ("xgboost",)
    LIGHTGBM_TEXT = "a LightGBM model", ("lightgbm",)
    PADDLE_PROGRAM = "a PaddlePaddle program", ("paddle",)
    PADDLE_PARAMETERS = "a PaddlePaddle parameter file", ("paddle",)
    PADDLE_PROGRAM_WEIGHTS = (
        "a file that holds the weights of a program of PaddlePaddle", (),
        "Give the program itself, the .json or .pdmodel that paddle.jit.save wrote beside it.",
    )  # fmt: skip
    PADDLE_PREFIX = (
        "the common prefix of a PaddlePaddle program's files", (),
        "Give the program itself, the .json or .pdmodel of that name.",
    )  # fmt: skip
    PMML = "a PMML document", ("pmml",)
    ONNX = "an ONNX model", ("onnx",)
    BUNDLE = "a bundle already", (), "Prove it with `paritygate validate`."
    SAMPLES = "a numpy archive, which holds arrays and no model", (), "Pass it as --samples."
    TORCH_SHARDS = (
        "a distributed PyTorch checkpoint", (),
        "Gather it with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIRECTORY FILE.pt`.",
    )  # fmt: skip
    TFLITE = "a TensorFlow Lite model", (), "Export the SavedModel or Keras model that it was made from."
    TENSORRT = "a TensorRT engine", (), "Export the model that it was built from."

    def __init__(self, words: str, exporters: tuple[str, ...], advice: str = "") -> None:
        self.words = words
        self.exporters = exporters
        self.advice = advice


def look_at(path: Path) -> Form | None:
    """The form of a file or folder; None if it is none that is known, or cannot be read.

    Args:
        path: A file, a folder, or the common prefix of the files of a TensorFlow checkpoint or a Paddle program.
    """
    try:
        if path.is_dir():
            return _look_into(path)
        if not path.exists():
            return _by_prefix(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if head.startswith(b"PK\x03\x04"):
        return _look_into_zip(path)
    form = _by_magic(head, path.suffix.lower()) or _by_text(head) or _by_protobuf(head, path)
    return Form.PADDLE_PROGRAM_WEIGHTS if form is None and path.suffix == _PADDLE_WEIGHTS else form


def _by_prefix(path: Path) -> Form | None:
    if path.with_name(f"{path.name}.index").is_file():
        return Form.TF_CHECKPOINT
    return Form.PADDLE_PREFIX if _paddle_program(path.name, path) is not None else None


def _paddle_program(stem: str, path: Path) -> Path | None:
    """The program of a name beside a path, where there is one."""
    beside = (path.with_name(stem + suffix) for suffix in (".json", ".pdmodel"))
    return next((file for file in beside if file.is_file() and look_at(file) is Form.PADDLE_PROGRAM), None)


def advice_on(form: Form, path: Path) -> str:
    """What to do with a path of a form that nobody reads; a program of PaddlePaddle is named where it lies."""
    stem = {Form.PADDLE_PROGRAM_WEIGHTS: path.stem, Form.PADDLE_PREFIX: path.name}.get(form)
    program = None if stem is None else _paddle_program(stem, path)
    return form.advice if program is None else f"Give the program itself: {program}."


def is_first_for(source: str | Path, exporter: str) -> bool:
    """Whether this exporter is the one that claims a path by what lies there."""
    form = look_at(Path(source))
    return form is not None and form.exporters[:1] == (exporter,)


def refuse_foreign(source: str | Path, exporter: str) -> None:
    """Refuse a path that holds what the named exporter cannot read.

    Raises:
        SourceError: Naming what it is, and how to say it explicitly.
    """
    form = look_at(Path(source))
    if form is None or exporter in form.exporters:
        return
    advice = advice_on(form, Path(source)) or (
        f"Leave the framework out, or name it: --framework {form.exporters[0]} (framework={form.exporters[0]!r})."
    )
    raise SourceError(f"{source} is {form.words}, and the {exporter} exporter does not read that. {advice}")


# --- folders and archives -----------------------------------------------------------------------------------


def _look_into(folder: Path) -> Form | None:
    names = {entry.name for entry, _ in zip(folder.iterdir(), range(_NAMES_READ), strict=False)}
    if "bundle.json" in names:
        return Form.BUNDLE
    if names & {"saved_model.pb", "saved_model.pbtxt"}:
        return Form.SAVED_MODEL
    if ".metadata" in names and any(name.endswith(".distcp") for name in names):
        return Form.TORCH_SHARDS
    if names & {"_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "_sharding"}:
        return Form.ORBAX
    steps = [name for name in names if re.fullmatch(r"(?:\w+_)?\d+", name)]
    if any((folder / name / "_CHECKPOINT_METADATA").is_file() for name in steps):
        return Form.ORBAX
    if "config.json" in names and any(_is_torch_weights(name) for name in names):
        return Form.HUGGING_FACE
    if "checkpoint" in names and any(name.endswith(".index") for name in names):
        return Form.TF_CHECKPOINT
    return None


def _is_torch_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json")) or name.startswith("pytorch_model")


def _look_into_zip(path: Path) -> Form | None:
    try:
        with open_zip(path) as archive:
            names = archive.namelist()[:_NAMES_READ]
    except (BadZip, OSError):
        return _by_suffix_of_damaged_zip(path.suffix.lower())
    if names and all(name.endswith(".npy") for name in names):
        return Form.SAMPLES
    inner = {name.split("/", 1)[1] if "/" in name else name for name in names}
    if "config.json" in names or "model.weights.h5" in names:
        return Form.KERAS_ARCHIVE
    if "serialized_exported_program.json" in inner or any(re.match(r"models/.*\.json", n) for n in inner):
        return Form.TORCH_PROGRAM
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        return Form.TORCHSCRIPT
    return Form.TORCH_CHECKPOINT if "data.pkl" in inner else None


def _by_suffix_of_damaged_zip(suffix: str) -> Form | None:
    """A zip that is cut off has lost its list of names; its exporter says what is wrong with it."""
    if suffix == ".keras":
        return Form.KERAS_ARCHIVE
    if suffix == ".pt2":
        return Form.TORCH_PROGRAM
    return Form.TORCH_CHECKPOINT if suffix in (".pt", ".pth", ".ckpt", ".bin") else None


# --- files by their first bytes -----------------------------------------------------------------------------

# What torch.save wrote before its zip format: a pickle of this number comes first.
_TORCH_LEGACY = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
_COMPRESSED = (b"\x78", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18")
# A tensor as paddle writes it: two versions and a count, all 0, then the size of its description.
_PADDLE_TENSOR = re.compile(rb"\0{16}[\x02-\x7f]\0{3}\x08", re.DOTALL)
_PADDLE_WEIGHTS = ".pdiparams"
_TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def _by_magic(head: bytes, suffix: str) -> Form | None:
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return Form.HDF5
    if _PADDLE_TENSOR.match(head):
        return Form.PADDLE_PROGRAM_WEIGHTS
    if head[4:8] == b"TFL3":
        return Form.TFLITE
    if head.startswith(b"ftrt"):
        return Form.TENSORRT
    if len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32:
        return Form.SAFETENSORS
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and suffix != ".msgpack":
        return _kind_of_pickle(head, suffix)
    if suffix in (".joblib", ".pkl", ".pickle") and head.startswith(_COMPRESSED):
        return Form.PICKLE
    return Form.FLAX_MSGPACK if suffix == ".msgpack" and head else None


def _kind_of_pickle(head: bytes, suffix: str) -> Form:
    if _TORCH_LEGACY in head[:64] or suffix in _TORCH_SUFFIXES:
        return Form.TORCH_CHECKPOINT
    return Form.PADDLE_PARAMETERS if suffix in (".pdparams", ".pdopt") else Form.PICKLE


def _by_text(head: bytes) -> Form | None:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # XML may be in UTF-16
        head = head[: len(head) // 2 * 2].decode("utf-16", "replace").encode()
    if re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|!--|PMML)", head) and b"<PMML" in head:
        return Form.PMML
    if head.startswith(b"tree\n") and b"version=" in head[:200]:
        return Form.LIGHTGBM_TEXT
    if re.match(rb"\{[LiIlUu].{1,8}learner", head, re.DOTALL):
        return Form.XGBOOST_UBJ
    if not re.match(rb"\s*\{\s*\"", head):
        return None
    if b'"learner"' in head:
        return Form.XGBOOST_JSON
    return Form.PADDLE_PROGRAM if b'"base_code"' in head and b'"pir"' in head else None


# --- protobuf messages, which have no magic: told by the wire form of their first field ---------------------


def _by_protobuf(head: bytes, path: Path) -> Form | None:
    if path.suffix.lower() == ".onnx":
        return Form.ONNX
    if head[:1] == b"\x08" and len(head) > 2 and head[1] < 32 and head[2] in b"\x12\x1a\x22\x3a\x42":
        return Form.ONNX  # ir_version, then the producer, the graph or the operator sets
    inner = _first_message(head)
    if inner is None:
        return None
    if re.fullmatch(rb"\d+\.\d+(\.\d+)?", inner):
        return Form.MINDIR  # its ir_version is a text
    if inner[:1] == b"\x08":
        return Form.PADDLE_PROGRAM  # a block, which begins with its number
    return _by_named_entry(inner)


def _by_named_entry(inner: bytes) -> Form | None:
    """A node of a TensorFlow graph (name, operator) or a parameter of MindSpore (name, tensor)."""
    name = _first_message(inner)
    if name is None or not name or not _is_printable(name):
        return None
    rest = inner[_length_with_header(inner, len(name)) :]
    second = _first_message(b"\x0a" + rest[1:]) if rest[:1] == b"\x12" else None
    if second is None:
        return None
    if re.fullmatch(rb"[A-Za-z_>][\w>]*", second):
        return Form.FROZEN_GRAPH
    return Form.MINDSPORE_CHECKPOINT if second[:1] in (b"\x08", b"\x0a", b"\x12") else None


def _first_message(data: bytes) -> bytes | None:
    """The content of a leading field 1 of the length-delimited kind, cut where the data ends."""
    if data[:1] != b"\x0a":
        return None
    size, used = _varint(data[1:11])
    return None if not used else data[1 + used : 1 + used + size]


def _length_with_header(data: bytes, size: int) -> int:
    return 1 + _varint(data[1:11])[1] + size


def _varint(data: bytes) -> tuple[int, int]:
    """A number in protobuf's variable form, and how many bytes it took; 0 bytes if there is none."""
    value = 0
    for position, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, position + 1
    return 0, 0


def _is_printable(text: bytes) -> bool:
    return all(32 <= byte < 127 for byte in text)
