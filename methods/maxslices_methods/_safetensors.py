"""Read and write network weights in safetensors files, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file


def read_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Read the shapes of a file's tensors from its header.

    Raises
    ------
    ValueError
        If the file is missing or damaged, or is not a safetensors file.
    """
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def read_tensors(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read a file's tensors, by name.

    Raises
    ------
    ValueError
        As for `read_shapes`.
    """
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors to a file, replacing an existing file."""
    # safetensors 0.8.0 ignores the strides of an array.
    save_file({name: np.asarray(values, order="C") for name, values in tensors.items()}, path)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except OSError as error:
        # safetensors raises FileNotFoundError without errno and strerror.
        missing = isinstance(error, FileNotFoundError)
        why = "No such file or directory" if missing else error.strerror or error
        raise ValueError(f"weights cannot be read from {os.fspath(path)}: {why}") from None
    except TypeError as error:
        raise ValueError(f"{os.fspath(path)} has numbers without a NumPy dtype: {error}") from None
    except SafetensorError as error:
        if _is_pickle(path):
            raise ValueError(
                f"{os.fspath(path)} is a pickle, as written by torch.save, and reading it could "
                "run code: load it with torch.load(path, weights_only=True) and save its tensors "
                "as safetensors"
            ) from None
        raise ValueError(f"{os.fspath(path)} is not a safetensors file: {error}") from None


def _is_pickle(path: str | os.PathLike[str]) -> bool:
    """True for a zip archive or a pickle of protocol 2 or later, as written by `torch.save`."""
    with open(path, "rb") as file:
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))
