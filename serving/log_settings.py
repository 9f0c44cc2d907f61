"""What the gateway logs, as clients of Triton's logging calls see and change it.

Source: triton-inference-server/server, docs/protocol/extension_logging.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from paritygate.serving.errors import InvalidArgument, Unsupported

_ROOT = "paritygate"
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_SWITCHES = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
_FORMATS = ("default", "ISO8601")
_MAX_VERBOSE = 2**32 - 1


class LogSettings(logging.Filter):
    """Which lines of this process are written; a filter before whatever writes them.

    Args:
        level: What is written from the start: `debug`, `info`, `warning` or `error`.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        least = logging.getLevelNamesMapping()[level.upper()]
        self._settings: dict[str, Any] = {name: least <= number for name, number in _SWITCHES.items()}
        self._settings |= {"log_verbose_level": int(least <= logging.DEBUG), "log_format": "default"}

    def install(self) -> None:
        """Stand before every handler of the process."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
        self._apply()

    def uninstall(self) -> None:
        """Stand there no more."""
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self)
        logging.getLogger(_ROOT).setLevel(logging.NOTSET)

    def settings(self) -> dict[str, Any]:
        """All of them, as clients are shown them."""
        return {"log_file": "", **self._settings}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if not record.name.startswith(_ROOT):
            return True
        if record.levelno < logging.INFO:
            return bool(self._settings["log_verbose_level"])
        if record.levelno < logging.WARNING:
            return bool(self._settings["log_info"])
        return bool(self._settings["log_warning" if record.levelno < logging.ERROR else "log_error"])

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change some; all of them or none.

        Raises:
            Unsupported: If one cannot be changed.
            InvalidArgument: If there is no such setting, or the value is none for it.
        """
        for name, value in changes.items():
            _check(name, value)
        self._settings.update(changes)
        self._apply()

    def _apply(self) -> None:
        verbose = self._settings["log_verbose_level"] > 0
        logging.getLogger(_ROOT).setLevel(logging.DEBUG if verbose else logging.INFO)
        iso = self._settings["log_format"] == "ISO8601"
        formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%SZ" if iso else None)
        formatter.converter = time.gmtime if iso else time.localtime
        for handler in logging.getLogger().handlers:
            if self in handler.filters:
                handler.setFormatter(formatter)


def _check(name: str, value: Any) -> None:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}; expected true or false.")
    elif name == "log_verbose_level":
        if type(value) is not int or not 0 <= value <= _MAX_VERBOSE:
            raise InvalidArgument(f"{name} is {value!r}; expected a whole number, 0 or more.")
    elif name == "log_format":
        if value not in _FORMATS:
            raise InvalidArgument(f"{name} is {value!r}; expected {' or '.join(_FORMATS)}.")
    elif name == "log_file":
        raise Unsupported("log_file cannot be changed here: the gateway writes to its standard error.")
    else:
        known = ", ".join((*_SWITCHES, "log_verbose_level", "log_format"))
        raise InvalidArgument(f"there is no log setting '{str(name)[:60]}'; there are {known}.")
