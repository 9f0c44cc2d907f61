"""The most memory that the gateway's process may take: an allocation beyond it fails, and nobody is killed."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

log = logging.getLogger("paritygate.serving")

_SHARE = 0.9
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit_memory(max_bytes: int) -> int:
    """Limit what this process may write to (its data segment and private mappings); gives the limit in bytes.

    Args:
        max_bytes: The limit; 0 takes nine tenths of what the machine, or its container, has.

    Source: setrlimit(2), RLIMIT_DATA, which counts private writable mappings since Linux 4.7.
    """
    limit = max_bytes or int(_SHARE * available_bytes())
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    log.info("at most %d bytes of memory are taken", limit)
    return limit


def available_bytes() -> int:
    """Memory of the machine, or of the container if that has less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *filter(None, map(_cgroup_bytes, _CGROUPS))])


def _cgroup_bytes(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
