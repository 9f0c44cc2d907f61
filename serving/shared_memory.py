"""System shared memory: regions that clients on this machine register, to leave tensors in and find answers in.

Off unless the operator lists prefixes of keys that clients may name. Nothing is mapped: a client that makes its
object smaller while it is in use would end the process by a signal. Bytes are read and written through the file.

Source: triton-inference-server/server, docs/protocol/extension_shared_memory.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from paritygate.serving.errors import InvalidArgument, NotFound, PayloadTooLarge, Unsupported

_FOLDER = "/dev/shm"  # noqa: S108 - where POSIX shared memory objects are on Linux
_MAX_REGIONS = 1024
_MAX_NAME_CHARS = 256
_MAX_KEY_BYTES = 255


@dataclass(frozen=True, slots=True)
class Region:
    """A part of one shared memory object; its file stays open as long as somebody uses it.

    Attributes:
        name: What clients call it.
        key: Name of the object.
        offset: Where it begins in the object, in bytes.
        byte_size: How long it is.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    _file: _File = field(repr=False)

    def part(self, offset: int, byte_size: int) -> RegionPart:
        """A part of it for one tensor.

        Raises:
            InvalidArgument: If it reaches beyond the region.
        """
        if offset < 0 or byte_size < 0 or offset + byte_size > self.byte_size:
            raise InvalidArgument(
                f"Invalid offset + byte size for shared memory region: '{self.name}' has {self.byte_size} bytes, "
                f"asked for {byte_size} from {offset}."
            )
        return RegionPart(self, offset, byte_size)


class _File:
    """An open object, closed with the last reference to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class RegionPart:
    """Where one tensor lies, or is to lie.

    Attributes:
        region: The region.
        offset: Where in the region, in bytes.
        byte_size: How many bytes there are for it.
    """

    region: Region
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """A copy of the bytes that are there now.

        Raises:
            InvalidArgument: If the object has become too small.
        """
        octets = os.pread(self.region._file.descriptor, self.byte_size, self.region.offset + self.offset)
        if len(octets) != self.byte_size:
            raise self._shrunk()
        return octets

    def write(self, output: str, octets: bytes) -> None:
        """Put an output's bytes there.

        Raises:
            InvalidArgument: If there is no room for them, or the object has become too small.
        """
        if len(octets) > self.byte_size:
            raise InvalidArgument(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) "
                f"should be at least {len(octets)} bytes to hold the results."
            )
        descriptor, at = self.region._file.descriptor, self.region.offset + self.offset
        if os.fstat(descriptor).st_size < at + len(octets):
            raise self._shrunk()
        view = memoryview(octets)
        while view:
            done = os.pwrite(descriptor, view, at)
            view, at = view[done:], at + done

    def _shrunk(self) -> InvalidArgument:
        return InvalidArgument(
            f"shared memory region '{self.region.name}' is smaller than when it was registered; register it again."
        )


class Regions:
    """The regions that are registered; one name stands for one region.

    Args:
        prefixes: Keys must begin with one of these, the leading slash left out; none turns it all off.
        max_part_bytes: Largest tensor that may lie there, as it is copied.
    """

    def __init__(self, prefixes: Sequence[str] = (), *, max_part_bytes: int = 1 << 30) -> None:
        self._max_part_bytes = max_part_bytes
        self._prefixes = tuple(prefix.lstrip("/") for prefix in prefixes)
        self._regions: dict[str, Region] = {}

    @property
    def enabled(self) -> bool:
        """Whether there can be any."""
        return bool(self._prefixes)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open an object for a region.

        Raises:
            Unsupported: If shared memory is off.
            InvalidArgument: If the name is taken, the key may not be named, or the object is missing or too small.
        """
        self._check_enabled()
        if not name or len(name) > _MAX_NAME_CHARS:
            raise InvalidArgument(
                f"a region's name has 1 to {_MAX_NAME_CHARS} characters, this has {len(name)}."
            )
        if name in self._regions:
            raise InvalidArgument(f"shared memory region '{name}' already in manager; unregister it first.")
        if len(self._regions) >= _MAX_REGIONS:
            raise InvalidArgument(
                f"{_MAX_REGIONS} regions are registered, which is the limit; unregister some."
            )
        if offset < 0 or byte_size <= 0:
            raise InvalidArgument(
                f"region '{name}' has offset {offset} and byte_size {byte_size}; expected 0 or more and 1 or more."
            )
        file = self._open(name, key)
        size = os.fstat(file.descriptor).st_size
        if offset + byte_size > size:
            raise InvalidArgument(
                f"failed to register shared memory region '{name}': invalid args, the object '{key[:60]}' has "
                f"{size} bytes, asked for {byte_size} from {offset}."
            )
        self._regions[name] = Region(name, key, offset, byte_size, file)

    def _open(self, name: str, key: str) -> _File:
        plain = key.removeprefix("/")
        may = plain.startswith(self._prefixes) and "/" not in plain and "\0" not in plain
        if not may or plain in ("", ".", "..") or len(os.fsencode(plain)) > _MAX_KEY_BYTES:
            raise InvalidArgument(
                f"region '{name}' asks for the object '{key[:60]}', which clients may not name here; "
                f"keys begin with {' or '.join(map(repr, self._prefixes))} and are no paths."
            )
        try:
            # Not through a link, and without waiting for the other end of a pipe.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = _File(os.open(os.path.join(_FOLDER, plain), flags))
        except OSError as error:
            raise InvalidArgument(
                f"Unable to open shared memory region: '{name}', object '{key[:60]}': {error.strerror}."
            ) from error
        if not stat.S_ISREG(os.fstat(file.descriptor).st_mode):
            raise InvalidArgument(f"object '{key[:60]}' of region '{name}' is no shared memory object.")
        return file

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all; requests that use it go on with it. An unknown one is forgotten already."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        """One region, or all by their names.

        Raises:
            NotFound: If there is no region of that name.
        """
        return [self._get(name)] if name else [self._regions[known] for known in sorted(self._regions)]

    def part(self, owner: str, name: object, offset: object, byte_size: object) -> RegionPart:
        """The part that a tensor's parameters name.

        Raises:
            Unsupported: If shared memory is off.
            NotFound: If there is no such region.
            InvalidArgument: If the parameters are of another type, or reach beyond the region.
            PayloadTooLarge: If the tensor is larger than any request may be.
        """
        self._check_enabled()
        if not isinstance(name, str):
            raise InvalidArgument(f"shared_memory_region of {owner} is {name!r}; expected a region's name.")
        if type(byte_size) is not int:
            raise InvalidArgument(
                f"'shared_memory_byte_size' of {owner} is {byte_size!r}; expected the number of its bytes."
            )
        if byte_size > self._max_part_bytes:
            raise PayloadTooLarge(
                f"{owner} has {byte_size} bytes in shared memory; at most {self._max_part_bytes} are accepted."
            )
        if type(offset) is not int:
            raise InvalidArgument(
                f"'shared_memory_offset' of {owner} is {offset!r}; expected a whole number."
            )
        return self._get(name).part(offset, byte_size)

    def _get(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name[:60]}'")
        return region

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise Unsupported(
                "shared memory is off here; the operator may allow keys with "
                "`paritygate serve --shared-memory PREFIX`."
            )


NONE = Regions()
"""Where there are no regions."""
