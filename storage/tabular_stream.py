"""Opening data files: plain, gzipped or the one csv file of a zip, by content and not by name."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import cast

from .errors import BadInputError, MissingError
from .layout import listed

_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""Of a zip with files and of an empty one."""
_FOREIGN_FOLDER = "__MACOSX"
"""Where macOS puts its own notes on each file of a zip."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """Open a file; gives it as stored (whose position tells the progress) and unpacked.

    Raises MissingError where there is no such file, and BadInputError where it cannot be read or
    its packing is damaged, also for what is raised while the file is being read.
    """
    if path.exists() and not path.is_dir() and not path.is_file():
        raise BadInputError(f"{path}: not a regular file; save the data to a file first")
    try:
        with path.open("rb") as stored:
            magic = stored.peek(4)[:4]
            if magic in _ZIP_MAGICS:
                with _csv_of_zip(path, stored) as text:
                    yield stored, text
            elif magic[:2] == _GZIP_MAGIC:
                with gzip.GzipFile(fileobj=stored, mode="rb") as text:
                    yield stored, text
            else:
                yield stored, stored
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise BadInputError(f"{path}: a folder; name the files in it") from error
    except EOFError as error:
        raise BadInputError(
            f"{path}: the gzip data ends too early; fetch the file again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInputError(f"{path}: damaged gzip data ({error}); fetch the file again") from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror})") from error


@contextmanager
def _csv_of_zip(path: Path, stored: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """The one csv file of a zip, unpacked."""
    try:
        with zipfile.ZipFile(stored) as archive, archive.open(_csv_member(path, archive)) as text:
            yield cast(io.BufferedIOBase, text)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInputError(f"{path}: damaged zip ({error}); fetch the file again") from error
    except NotImplementedError as error:
        raise BadInputError(f"{path}: packed in a way that is not known here; unpack it") from error


def _csv_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The entry of a zip that is its table."""
    found = [entry for entry in archive.infolist() if _is_csv(PurePosixPath(entry.filename))]
    if len(found) != 1:
        names = listed([entry.filename for entry in found]) or "none"
        raise BadInputError(
            f"{path}: a zip of one csv file is expected, but its csv files are: {names}; "
            "unpack it and name the files to read"
        )
    if found[0].flag_bits & 1:
        raise BadInputError(f"{path}: encrypted; unpack it first")
    return found[0]


def _is_csv(name: PurePosixPath) -> bool:
    hidden = name.name.startswith(".") or _FOREIGN_FOLDER in name.parts
    return name.suffix.lower() == ".csv" and not hidden
