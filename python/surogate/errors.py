"""Errors of the native library."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The status codes of surogate.h."""

    OK = 0
    INTERNAL = 1
    INVALID = 2
    UNSUPPORTED = 3
    NOT_FOUND = 4
    IO = 5
    DEVICE = 6
    NO_FIT = 7
    DIVERGED = 8
    CHECKPOINT = 9
    SAVE = 10
    INTERRUPTED = 11
    RANK = 12


class SurogateError(RuntimeError):
    """A call that failed.

    status: the kind of failure; message: what failed, where, what was expected, what to do.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[SurogateError], tuple[Status, str]]:
        return type(self), (self.status, self.message)
