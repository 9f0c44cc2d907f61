"""Tells the quickstart's story: colours on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Narrator:
    """Prints numbered steps, facts below them, and small tables."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(soft_wrap=True, highlight=False, quiet=quiet)
        self._step = 0

    def title(self, text: str) -> None:
        """Say what this is about."""
        self._console.print(f"[bold]{escape(text)}[/bold]")

    def step(self, text: str) -> None:
        """Begin the next numbered step."""
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}.[/bold cyan] [bold]{escape(text)}[/bold]")

    def fact(self, text: str) -> None:
        """Say one thing that was seen."""
        self._console.print(f"   {escape(text)}")

    def good(self, text: str) -> None:
        """Say one thing that went as it should."""
        self._console.print(f"   [green]ok[/green]  {escape(text)}")

    def refused(self, text: str) -> None:
        """Say that something was refused, as it should be."""
        self._console.print(f"   [red]refused[/red]  {escape(text)}")

    def log(self, text: str) -> None:
        """Pass on a line that a process of the story wrote."""
        self._console.print(f"   [dim]{escape(text)}[/dim]")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show figures side by side: columns of a table on a terminal, aligned text elsewhere."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row)
        from rich.padding import Padding

        self._console.print(Padding(table, (0, 0, 0, 3)))

    def text(self, text: str) -> None:
        """Show text as it is, indented."""
        for line in text.splitlines():
            self._console.print(f"   [dim]{escape(line)}[/dim]")
