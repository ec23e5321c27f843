"""Logs for the vendor's package, by Python's `logging` under the name "habana_frameworks"."""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Sequence

from ...._missing import missing

_TRACE = 5
_log = logging.getLogger("habana_frameworks")


class LogLevel(enum.Enum):
    """How much a message matters."""

    TRACE = _TRACE
    DEBUG = logging.DEBUG
    INFO = logging.INFO
    WARN = logging.WARNING
    ERROR = logging.ERROR
    CRITICAL = logging.CRITICAL


# `missing` takes `LogLevel` out of this module in releases that do not have it.
_LEVELS = LogLevel


def format_args(args: Sequence[object]) -> str:
    """Returns the text of a message, given as a format string and arguments, or as values."""
    if not args or not isinstance(args[0], str):
        return ", ".join(map(str, args))
    text, values = args[0], args[1:]
    if not values:
        return text
    if "{}" in text:
        return text.format(*map(str, values))
    return text % tuple(values) if "%" in text else ", ".join(map(str, args))


class Logger:
    """Logs under a title, and keeps messages if that is switched on.

    Args:
        type: The title.
    """

    def __init__(self, type: str) -> None:
        self.type = type
        self.store_data = False
        self.data: list[str] = []

    def log(self, level: LogLevel, args: Sequence[object]) -> None:
        """Logs a message, given as its format string and arguments."""
        if self.is_enabled_for(level) or self.store_data:
            message = f"[{self.type}] {format_args(args)}"
            _log.log(level.value, "%s", message)
            if self.store_data:
                self.data.append(message)

    def trace(self, *args: object) -> None:
        """Logs what is seldom wanted."""
        self.log(_LEVELS.TRACE, args)

    def debug(self, *args: object) -> None:
        """Logs what a developer wants to know."""
        self.log(_LEVELS.DEBUG, args)

    def info(self, *args: object) -> None:
        """Logs what a user wants to know."""
        self.log(_LEVELS.INFO, args)

    def warn(self, *args: object) -> None:
        """Logs what may be wrong."""
        self.log(_LEVELS.WARN, args)

    def error(self, *args: object) -> None:
        """Logs what is wrong, and prints it."""
        print("[ERROR]", *args, file=sys.stderr)
        self.log(_LEVELS.ERROR, args)

    def critical(self, *args: object) -> None:
        """Logs what ends the program, and prints it."""
        print("[CRITICAL]", *args, file=sys.stderr)
        self.log(_LEVELS.CRITICAL, args)

    def set_store_data(self, enable: bool) -> None:
        """Switches keeping messages in `data` on or off, and drops those kept so far."""
        self.store_data = enable
        self.data = []

    @staticmethod
    def is_enabled_for(level: LogLevel) -> bool:
        """Returns whether messages of a level are logged."""
        return _log.isEnabledFor(level.value)


def get_log_level(logger_level: str) -> LogLevel:
    """Returns the level with a name.

    Raises:
        ValueError: There is none of that name.
    """
    try:
        return _LEVELS[logger_level.upper()]
    except KeyError:
        known = ", ".join(level.name.lower() for level in _LEVELS)
        raise ValueError(
            f"There is no level {logger_level!r} of logging. Pass one of {known}."
        ) from None


def enable_logging(logger_name: str, logger_level: str) -> None:
    """Logs messages of a level and above, by the one logger, whatever the name."""
    _log.setLevel(get_log_level(logger_level).value)


def refresh_logging_folder_path() -> None:
    """Does nothing: nothing is logged to the folder of `HABANA_LOGS`."""


def is_log_python_enabled(log_level: LogLevel) -> bool:
    """Returns whether messages of a level are logged."""
    return Logger.is_enabled_for(log_level)


__getattr__ = missing(__name__)
