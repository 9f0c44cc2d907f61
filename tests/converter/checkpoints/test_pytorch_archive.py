"""Reading what `torch.save` wrote as data: nothing is imported, built or called, and damage is told."""

from __future__ import annotations

import argparse
import builtins
import copyreg
import io
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.checkpoints.inert_pickle import MAX_STEPS, BadPickle, Global, Stub, read_pickle
from paritygate.converter.checkpoints.torch_archive import Archive, BadArchive, TensorRef, read_archive
from paritygate.converter.checkpoints.torch_state import has_weights
from paritygate.converter.errors import SourceError

torch = pytest.importorskip("torch")

FORMATS: dict[str, dict[str, Any]] = {
    "zip": {},
    "zip, protocol 5": {"pickle_protocol": 5},
    "stream": {"_use_new_zipfile_serialization": False},
    "stream, protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


def read(data: bytes) -> tuple[Any, set[Global]]:
    return read_pickle(io.BytesIO(data), size=len(data), rebuild={})


class Trap:
    """Leaves a mark in every way in which a pickle can have code of its class run."""

    ran: list[str] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        Trap.ran.append("init")

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Trap:
        Trap.ran.append("new")
        return super().__new__(cls)

    def __setstate__(self, _state: Any) -> None:
        Trap.ran.append("setstate")

    def __reduce__(self) -> Any:
        return (spring, ("reduced",), {"state": 1}, iter([1]), iter([("key", 2)]))

    def append(self, _item: Any) -> None:
        Trap.ran.append("append")

    def __setitem__(self, _key: Any, _value: Any) -> None:
        Trap.ran.append("setitem")


def spring(mark: str) -> Trap:
    Trap.ran.append(mark)
    return Trap()


def _global(name: str) -> bytes:
    return f"c{__name__}\n{name}\n".encode()


WAYS = {
    "REDUCE": b"\x80\x02" + _global("spring") + b"X\x01\x00\x00\x00a\x85R.",
    "NEWOBJ": b"\x80\x02" + _global("Trap") + b")\x81.",
    "NEWOBJ_EX": b"\x80\x04" + _global("Trap") + b")}\x92.",
    "BUILD": b"\x80\x02" + _global("Trap") + b")\x81}b.",
    "OBJ": b"(" + _global("Trap") + b"o.",
    "INST": f"(i{__name__}\nTrap\n.".encode(),
    "STACK_GLOBAL": b"\x80\x04X"
    + struct.pack("<I", len(__name__))
    + __name__.encode()
    + b"X\x04\x00\x00\x00Trap\x93)R.",
    "APPEND": b"\x80\x02" + _global("Trap") + b")RK\x01a.",
    "SETITEM": b"\x80\x02" + _global("Trap") + b")RK\x01K\x02s.",
}


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> type[Trap]:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Trap.__module__])
    Trap.ran.clear()
    return Trap


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_a_pickle_runs_code(way: str, trap: type[Trap]) -> None:
    value, foreign = read(WAYS[way])
    assert isinstance(value, Stub)
    assert foreign
    assert trap.ran == []


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_are_real(way: str, trap: type[Trap]) -> None:
    pickle.loads(WAYS[way])
    assert trap.ran


def test_foreign_objects_leave_what_they_said_of_themselves(trap: type[Trap]) -> None:
    value, foreign = read(pickle.dumps(object.__new__(Trap)))
    assert (str(value.of), value.arguments) == (f"{Trap.__module__}.spring", ("reduced",))
    assert (value.state, value.items, value.entries) == ({"state": 1}, [1], {"key": 2})
    assert foreign == {Global(Trap.__module__, "spring")}
    assert trap.ran == []


def test_extension_codes_are_refused_even_where_the_process_has_cached_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = 200
    copyreg.add_extension("builtins", "print", code)
    try:
        data = pickle.dumps(builtins.print, protocol=2)
        assert b"\x82\xc8" in data
        assert pickle.loads(data) is print  # the cache is filled now
        with pytest.raises(BadPickle, match="EXT1 has no place in a checkpoint"):
            read(data)
    finally:
        copyreg.remove_extension("builtins", "print", code)


def test_no_module_is_imported(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(
        pickle.dumps({"a": 1}) and b"\x80\x02cthis_module_would_be_imported\nnow\n)R."
    )
    script = (
        "import sys; from pathlib import Path\n"
        "from paritygate.converter.checkpoints.torch_archive import read_archive\n"
        "print(read_archive(Path(sys.argv[1])).foreign, 'torch' in sys.modules, 'antigravity' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "weights.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "this_module_would_be_imported" in done.stdout
    assert done.stdout.endswith("False False\n")


# --- bounds -------------------------------------------------------------------------------------------------


def test_nested_tuples_as_keys_take_no_time() -> None:
    """Hashing a tuple that holds the one before twice, sixty deep, would take 2**60 steps."""
    nest = b")" + b"".join(b"q%c2\x86" % index for index in range(60))
    value, _ = read(b"\x80\x02}" + nest + b"K\x01s.")
    ((key, one),) = value.items()
    assert (str(key), one) == ("builtins.tuple", 1)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x04B\xff\xff\xff\x7fabc.", id="bytes of 2 GiB"),
        pytest.param(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", id="bytes of 8 EiB"),
        pytest.param(b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", id="byte array of 8 EiB"),
        pytest.param(b"\x80\x04\x8b\xff\xff\xff\x7f1.", id="integer of 2 GiB"),
        pytest.param(b"\x80\x02]", id="no end"),
        pytest.param(b"\x80\x02.", id="nothing on the stack"),
        pytest.param(b"\x80\x02h\x05.", id="memo that is not there"),
        pytest.param(b"\x80\x02K\x01K\x02a.", id="append to a number"),
        pytest.param(b"\x80\x02(K\x01a.", id="mark in the way"),
        pytest.param(b"\xff\xfe\xfd", id="no pickle"),
        pytest.param(b"", id="empty"),
    ],
)  # fmt: skip
def test_absurd_pickles_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(BadPickle) as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_names_of_any_length_and_kind_stay_in_one_line() -> None:
    name = "a\n\x1b[2J" * 1000
    text = name.encode()
    _, foreign = read(b"\x80\x04X" + struct.pack("<I", len(text)) + text + b"\x8c\x01b\x93)R.")
    (found,) = map(str, foreign)
    assert len(found) <= 201
    assert found.isprintable()


def test_nested_values_are_not_printed_in_an_error(tmp_path: Path) -> None:
    """A tuple that holds the one before twice, sixty deep, in the place where the kind of a storage stands."""
    nest = b")" + b"".join(b"q%c2\x86" % index for index in range(60))
    data = b"\x80\x02(X\x07\x00\x00\x00storage" + nest + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ."
    with pytest.raises(BadArchive, match="storage of the kind tuple"):
        read_archive(rewritten(tmp_path, lambda name, old: data if name.endswith("data.pkl") else old))


def test_memo_with_a_huge_index_takes_no_memory() -> None:
    value, _ = read(b"\x80\x02K\x07r\xff\xff\xff\xff.")
    assert value == 7


def test_number_of_instructions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritygate.converter.checkpoints.inert_pickle.MAX_STEPS", 1000)
    assert MAX_STEPS > 1_000_000
    with pytest.raises(BadPickle, match="more than 1000 instructions"):
        read(b"\x80\x02" + b"N0" * 1000 + b"N.")


def test_every_instruction_of_pickle_is_known_or_refused() -> None:
    """A new instruction of a later Python is refused, not skipped."""
    for opcode in pickletools.opcodes:
        with pytest.raises(BadPickle):
            read(opcode.code.encode("latin1"))


# --- what torch.save writes ---------------------------------------------------------------------------------


def saved(content: Any, folder: Path, **options: Any) -> Archive:
    torch.save(content, folder / "saved.pt", **options)
    return read_archive(folder / "saved.pt")


def tensor_of(archive: Archive, value: TensorRef) -> Any:
    flat = torch.frombuffer(archive.read(value.storage), dtype=getattr(torch, value.dtype))
    return flat.as_strided(value.shape, value.stride, value.offset)


TENSORS: dict[str, Callable[[], Any]] = {
    "float32": lambda: torch.arange(6.0).reshape(2, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "a part": lambda: torch.arange(60.0)[7:31:2],
    "scalar": lambda: torch.tensor(3.5),
    "float64": lambda: torch.linspace(0, 1, 5, dtype=torch.float64),
    "float16": lambda: torch.linspace(0, 1, 5, dtype=torch.float16),
    "bfloat16": lambda: torch.linspace(0, 1, 5, dtype=torch.bfloat16),
    "float8": lambda: torch.linspace(0, 1, 5).to(torch.float8_e4m3fn),
    "int64": lambda: torch.tensor([2**62, -1]),
    "uint16": lambda: torch.tensor([1, 65535], dtype=torch.uint16),
    "bool": lambda: torch.tensor([True, False]),
    "complex64": lambda: torch.tensor([1 + 2j]),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "expanded": lambda: torch.ones(1).expand(4, 3),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("form", FORMATS)
def test_tensors_come_back_bit_for_bit(kind: str, form: str, tmp_path: Path) -> None:
    tensor = TENSORS[kind]()
    archive = saved({"weight": tensor}, tmp_path, **FORMATS[form])
    found = tensor_of(archive, archive.content["weight"])
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    bits = [
        value.detach().contiguous().view(torch.uint8) for value in (found.reshape(-1), tensor.reshape(-1))
    ]
    assert torch.equal(*bits)
    assert not archive.foreign


@pytest.mark.parametrize("form", FORMATS)
def test_tied_weights_share_a_storage(form: str, tmp_path: Path) -> None:
    tensor = torch.ones(4)
    content = saved({"a": tensor, "b": tensor[1:], "c": torch.ones(4)}, tmp_path, **FORMATS[form]).content
    assert content["a"].storage == content["b"].storage != content["c"].storage


@pytest.mark.parametrize("form", FORMATS)
def test_what_training_leaves_beside_weights_is_read_as_names(
    form: str, tmp_path: Path, trap: type[Trap]
) -> None:
    content = {
        "state_dict": OrderedDict(weight=torch.ones(2)),
        "hyper_parameters": argparse.Namespace(root=Path("/data"), rate=np.float64(0.1), table=np.arange(3)),
        "callbacks": {Trap: object.__new__(Trap), "counts": defaultdict(list, a=[1])},
    }
    archive = saved(content, tmp_path, **FORMATS[form])
    assert list(archive.content["state_dict"]) == ["weight"]
    assert {"argparse.Namespace", "pathlib.PosixPath", f"{Trap.__module__}.spring"} <= set(
        map(str, archive.foreign)
    )
    assert trap.ran == []


def test_values_of_other_entries_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = saved({"weight": torch.ones(3), "optimizer": torch.zeros(1000)}, tmp_path)
    weight, other = archive.content["weight"], archive.content["optimizer"]
    assert len(archive.read(weight.storage)) == 12
    assert archive.places[other.storage.key].size_bytes == 4000


# --- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_every_cut_is_told_in_one_line(form: str, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(64), "epoch": 3}, tmp_path / "whole.pt", **FORMATS[form])
    data = (tmp_path / "whole.pt").read_bytes()
    for size in range(0, len(data) - 1, max(1, len(data) // 60)):
        (tmp_path / "cut.pt").write_bytes(data[:size])
        with pytest.raises(BadArchive) as caught:
            read_archive(tmp_path / "cut.pt")
        assert "\n" not in str(caught.value)


def test_changed_byte_among_the_weights_is_seen(tmp_path: Path) -> None:
    archive = saved({"weight": torch.ones(64)}, tmp_path)
    place = archive.places[archive.content["weight"].storage.key]
    data = bytearray(archive.path.read_bytes())
    data[place.start + 5] ^= 1
    archive.path.write_bytes(data)
    damaged = read_archive(archive.path)
    with pytest.raises(BadArchive, match="their checksum differs"):
        damaged.read(damaged.content["weight"].storage)


def test_archive_without_checksums_is_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        archive = saved({"weight": torch.ones(3)}, tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(tensor_of(archive, archive.content["weight"]), torch.ones(3))


def rewritten(folder: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """A saved tensor whose records were changed, or left out."""
    torch.save({"weight": torch.ones(64)}, folder / "real.pt")
    with (
        zipfile.ZipFile(folder / "real.pt") as real,
        zipfile.ZipFile(folder / "x.pt", "w", **options) as copy,
    ):
        for name in real.namelist():
            data = change(name, real.read(name))
            if data is not None:
                copy.writestr(name, data)
    return folder / "x.pt"


def test_compressed_records_are_refused_since_they_may_be_bombs(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda _name, data: data, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(BadArchive, match=r"is compressed, which torch\.save never does"):
        read_archive(path)


def test_missing_and_short_storages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="values of storage '0' are missing"):
        read_archive(rewritten(tmp_path, lambda name, data: None if name.endswith("data/0") else data))
    with pytest.raises(BadArchive, match="has 8 bytes, its tensors need 256"):
        read_archive(rewritten(tmp_path, lambda name, data: data[:8] if name.endswith("data/0") else data))


def test_tensor_that_reaches_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    def grown(name: str, data: bytes) -> bytes:
        return data.replace(b"K@\x85", b"M\x00\x10\x85") if name.endswith("data.pkl") else data

    with pytest.raises(BadArchive, match=r"a tensor of the shape \[4096\] reaches beyond its storage of 64"):
        read_archive(rewritten(tmp_path, grown))


def test_big_endian_files_are_refused(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda name, data: b"big" if name.endswith("byteorder") else data)
    with pytest.raises(BadArchive, match="big-endian"):
        read_archive(path)


@pytest.mark.parametrize("form", FORMATS)
def test_random_damage_never_ends_in_another_error(form: str, tmp_path: Path) -> None:
    content = {"weight": torch.ones(8), "path": Path("/data"), "names": {"a"}, "old": torch.nn.Linear(2, 2)}
    torch.save(content, tmp_path / "whole.pt", **FORMATS[form])
    data = (tmp_path / "whole.pt").read_bytes()
    chance = random.Random(0)
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "changed.pt").write_bytes(changed)
        try:
            read_archive(tmp_path / "changed.pt")
        except BadArchive as error:
            assert "\n" not in str(error)  # noqa: PT017 - either end is right


class Part:
    """Stands for a module that was pickled whole."""

    def __init__(self, children: dict[str, Part], names: list[str]) -> None:
        self._modules, self._parameters, self._buffers = children, {}, {}
        self._non_persistent_buffers_set = names


def test_a_list_that_lies_in_many_parts_is_counted_in_each(tmp_path: Path) -> None:
    names = [f"name{k}" for k in range(1000)]
    part = Part({}, names)
    for _ in range(3):
        part = Part({str(k): part for k in range(100)}, names)
    torch.save(part, tmp_path / "net.pt")
    assert (tmp_path / "net.pt").stat().st_size < 100_000
    content = read_archive(tmp_path / "net.pt").content
    with pytest.raises(SourceError, match="more parts than any real one"):
        has_weights(content)
