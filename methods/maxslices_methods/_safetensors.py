"""Weights as safetensors files: a header in JSON and plain numbers, so nothing that can run.

Read here rather than by the library of that name: a plan needs the shapes alone, without torch.
The format is described at https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}
_LONGEST_HEADER = 100_000_000


def read_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors by name; the numbers are not read.

    Raises
    ------
    ValueError
        If there is no such file, or it is none of safetensors.
    """
    return {name: tuple(entry["shape"]) for name, entry in _header(Path(path))[0].items()}


def read_tensors(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return a file's tensors by name, mapped into memory: changing them changes no file.

    Raises
    ------
    ValueError
        As `read_shapes`.
    """
    header, start = _header(Path(path))
    content = np.memmap(path, np.uint8, "c", start)
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        values = content[first:last].view(_TYPES[entry["dtype"]])
        found[name] = np.asarray(values).reshape(entry["shape"])
    return found


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors to a file, which is replaced if it exists.

    Raises
    ------
    ValueError
        If a tensor is of a dtype that is not float64 to float16, int64, int32 or uint8.
    """
    header: dict[str, Any] = {}
    at = 0
    for name, values in tensors.items():
        if values.dtype not in _NAMES:
            raise ValueError(f"weights {name!r} are {values.dtype}: use one of {list(_NAMES)}")
        kind = _NAMES[values.dtype]
        shape, end = list(values.shape), at + values.nbytes
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the checked header and where the numbers begin."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            fits = len(first) == 8 and length <= min(_LONGEST_HEADER, size - 8)
            text = file.read(length) if fits else b""
    except OSError as error:
        raise ValueError(f"weights cannot be read from {path}: {error.strerror}") from None
    if first.startswith((b"PK\x03\x04", b"\x80")) and not text.startswith(b"{"):
        raise ValueError(
            f"{path} is a pickle, as torch.save writes it, and reading it could run code: load it "
            "with torch.load(path, weights_only=True) and save its tensors as safetensors"
        )
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        for entry in header.values():
            (start, end), shape = entry["data_offsets"], entry["shape"]
            n_bytes = math.prod(shape) * np.dtype(_TYPES[entry["dtype"]]).itemsize
            if min(shape, default=1) < 0 or not 0 <= start <= end <= size - 8 - length:
                raise ValueError("a tensor lies outside of the file")
            if end - start != n_bytes:
                raise ValueError("a tensor's bytes are not those of its shape")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f": {error}" if text else ""
        raise ValueError(f"{path} is not a safetensors file{why}") from None
    return header, 8 + length
