"""Makes docs/quickstart.svg: the quickstart on a terminal, as it really prints.

Run it after a change of what the quickstart says: `.venv/bin/python docs/make_picture.py`.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("quickstart.svg")
_WIDTH = 112


def record() -> str:
    """Run the quickstart on a pseudo terminal, in an empty directory; gives what it wrote, colours included."""
    written: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        written.append(data)
        return data

    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        os.environ |= {"COLUMNS": str(_WIDTH), "TERM": "xterm-256color"}
        status = pty.spawn([sys.executable, "-m", "paritygate", "quickstart"], read)
        os.chdir("/")
        if status != 0:
            raise SystemExit(f"the quickstart ended with status {status}")
        text = b"".join(written).decode().replace("\r\n", "\n")
        return text.replace(str(Path(empty).resolve()), "~")


def shorten(text: str) -> str:
    """Leave out the Istio manifests, which are long, and cut lines at the picture's width."""
    head, _, tail = text.partition("apiVersion: networking.istio.io")
    rest = tail[tail.index("written to") :] if tail else ""
    lines = f"{head.rstrip()[: head.rstrip().rfind(chr(10))]}\n   ok  {rest}".splitlines()
    return "\n".join(
        line if len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= _WIDTH else _cut(line) for line in lines
    )


def _cut(line: str) -> str:
    text = Text.from_ansi(line)
    text.truncate(_WIDTH, overflow="ellipsis")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=_WIDTH)
    console.print(text, end="", soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined]


def main() -> None:
    """Run, shorten, draw."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ paritygate quickstart\n" + shorten(record())))
    PICTURE.write_text(console.export_svg(title="paritygate quickstart"), encoding="utf-8")


if __name__ == "__main__":
    main()
