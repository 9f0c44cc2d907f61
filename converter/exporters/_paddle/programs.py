"""What a saved program says of itself: paddle's JSON form, read with the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritygate.converter.errors import SourceError, UnsafeSource, UnsupportedOperator
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import DType

_DTYPES = {
    "t_bool": DType.BOOL, "t_ui8": DType.UINT8, "t_i8": DType.INT8, "t_i16": DType.INT16, "t_i32": DType.INT32,
    "t_i64": DType.INT64, "t_f16": DType.FLOAT16, "t_bf16": DType.BFLOAT16, "t_f32": DType.FLOAT32,
    "t_f64": DType.FLOAT64,
}  # fmt: skip
"""Element types as a program spells them. Source: paddle/fluid/pir/serialize_deserialize/include/schema.h."""

TOUCHES = {
    "load", "load_combine", "save", "save_combine", "read_file", "read", "create_py_reader",
    "create_double_buffer_reader", "py_func", "py_layer", "pylayer", "run_program", "custom_call", "custom_engine",
    "openvino_engine", "tensorrt_engine", "lite_engine", "listen_and_serv", "send", "recv", "send_v2", "recv_v2",
    "p_send", "p_send_array", "p_recv", "p_recv_array", "partial_send", "partial_recv", "barrier", "fetch_barrier",
    "comm_init_all", "global_gather", "global_scatter", "dgc", "distributed_lookup_table",
    "distributed_fused_lamb_init",
}  # fmt: skip
"""Operators that read or write files, reach other machines, or call code by name: read off the list of all 1,209
that PaddlePaddle 3 registers. One that it does not register cannot be loaded."""

_CONNECTS = ("c_comm_", "c_gen_")
"""What the names of operators that open connections begin with."""


@dataclass(frozen=True)
class Operation:
    """One operator of a program.

    Attributes:
        name: As paddle spells it, without the dialect.
        layer: The path of layers that it stands in, or None where the program does not say.
    """

    name: str
    layer: str | None

    @property
    def where(self) -> str:
        """The layer, as it follows the name in a sentence."""
        return f" (in layer {self.layer})" if self.layer else ""


def read_document(path: Path) -> Mapping[str, Any]:
    """A program's JSON document.

    Raises:
        SourceError: If it is cut short, or something else.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        list(_entries(document))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{path} is no PaddlePaddle program: cut short, or something else ({type(error).__name__}). Save it "
            "again with paddle.jit.save."
        ) from error
    if not isinstance(document, dict) or not any(_name(entry) == "fetch" for entry in _entries(document)):
        raise SourceError(f"{path} holds no PaddlePaddle program with outputs; save it with paddle.jit.save.")
    return document


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Every operator, those of inner blocks too."""
    return [Operation(_name(entry), _layer(entry)) for entry in _entries(document) if entry["#"] != "p"]


def refuse_code(names: list[str], path: Path, *, trust: bool) -> None:
    """Refuse a program whose operators do more than compute.

    Raises:
        UnsafeSource: Naming the operator.
    """
    touching = next(
        (name for name in names if name.rstrip("_") in TOUCHES or name.startswith(_CONNECTS)), None
    )
    if touching is not None and not trust:
        raise UnsafeSource(
            f"{path} holds the operator {touching!r}, which touches files or other machines, or calls "
            "code; it was not run. Pass --trust (trust=True) if you know where the file comes from."
        )


def program_inputs(document: Mapping[str, Any]) -> tuple[SourceInput, ...]:
    """What a program takes, in its order; a size that it leaves open is None."""
    found = []
    for entry in _entries(document):
        if _name(entry) in ("data", "feed"):
            tensor = entry["O"][0]["TT"]["D"]
            code = str(tensor[0]["#"]).rpartition(".")[2]
            name = str(_attributes(entry)["name"])
            if code not in _DTYPES:
                raise UnsupportedOperator(
                    f"input {name!r} is of paddle's type {code}, which no served model takes.",
                    operator="data",
                )
            shape = tuple(int(size) if int(size) > 0 else None for size in tensor[1])
            found.append(SourceInput(name, _DTYPES[code], shape))
    return tuple(found)


def num_outputs(document: Mapping[str, Any]) -> int:
    """How many outputs a program gives."""
    return sum(1 for entry in _entries(document) if _name(entry) == "fetch")


def has_parameters(document: Mapping[str, Any]) -> bool:
    """Whether a program has weights."""
    return any(entry.get("#") == "p" for entry in _entries(document))


def _entries(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from _in_regions(document["program"]["regions"])


def _in_regions(regions: Any) -> Iterator[Mapping[str, Any]]:
    for region in regions:
        for block in region["blocks"]:
            for entry in block["ops"]:
                yield entry
                yield from _in_regions(entry.get("regions", ()))


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["#"]).rpartition(".")[2]


def _layer(entry: Mapping[str, Any]) -> str | None:
    attributes = entry.get("A")
    if not isinstance(attributes, list):
        return None
    said = _attributes(entry).get("struct_name")
    return str(said).strip("/") or None if said else None


def _attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {item["N"]: item["AT"].get("D") for item in entry.get("A", ()) if isinstance(item, dict)}
