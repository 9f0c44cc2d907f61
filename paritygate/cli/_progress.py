"""How long work looks: a bar or a word on what goes on at a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from paritygate.cli._output import out

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from paritygate.converter.environments.progress import BuildStep


class BuildDisplay:
    """Shows lines and steps while its `with` block lasts; the bar is gone afterwards, the lines stay."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = out()
        self._silent = silent
        self._bar: Progress | None = None
        self._shown = ""

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: Any) -> None:
        """Print one line; a bar that is there stays below it."""
        if not self._silent:
            self._console.print(f"  {line}", markup=False)

    def step(self, step: BuildStep) -> None:
        """Show how far the build is."""
        if self._silent:
            return
        if self._console.is_terminal:
            self._move_bar(step)
        elif str(step) != self._shown:
            self._shown = str(step)
            self.say(step)

    def _move_bar(self, step: BuildStep) -> None:
        if self._bar is None:
            self._bar = _new_bar(self._console)
            self._bar.start()
            self._bar.add_task("", total=step.total, what="", size="")
        size = f"{_mib(step.bytes_done)} of {_mib(step.bytes_total)} MiB" if step.bytes_total else ""
        what = f"{step.environment}: {step.phase}"
        self._bar.update(
            self._bar.task_ids[0],
            completed=step.done,
            total=step.total,
            description=what,
            what=step.package,
            size=size,
        )


class BusyDisplay:
    """Prints lines as they come; on a terminal it says below them what goes on, while its `with` block lasts."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = out()
        self._silent = silent
        self._status: Status | None = None

    def __enter__(self) -> BusyDisplay:
        if self._console.is_terminal and not self._silent:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Print one line that stays."""
        if not self._silent:
            self._console.print(line, markup=False)

    def busy_with(self, what: str) -> None:
        """Show what goes on now, where that can be taken back."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(what))


def _new_bar(console: Any) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        TextColumn("{task.fields[size]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f}"
