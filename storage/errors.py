"""What can go wrong in storage, as one tree of exceptions.

StorageError
├── BadInputError (ValueError)          the user's file or argument is wrong: says where and what to do
├── MissingError (FileNotFoundError)    a file, data set, cell or version is not there
├── ExistsError (FileExistsError)       the name is taken
├── CorruptError                        what was read is not what was written
└── NoSpaceError (OSError)              the disk is full, or would be: says how much is needed
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors that storage raises on purpose."""


class BadInputError(StorageError, ValueError):
    """The user's file or argument is wrong; the message names the place and the cure."""


class MissingError(StorageError, FileNotFoundError):
    """A file, data set, cell or model version is not there."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ExistsError(StorageError, FileExistsError):
    """The name is taken already."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CorruptError(StorageError):
    """Bytes that were read are not the bytes that were written."""


class NoSpaceError(StorageError, OSError):
    """The disk is full, or would be; the message says how much is needed and how much there is."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
