"""Byte counts as people write and read them."""

from __future__ import annotations

import math
import re

from .errors import UsageError

_FACTORS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]+)\s*")


def parse_bytes(text: str | int) -> int:
    """Read a byte count such as ``"16GB"``, ``"512 MiB"`` or an `int` of bytes.

    Parameters
    ----------
    text : str or int
        A positive number with a unit (B, kB, MB, GB, TB or KiB, MiB, GiB, TiB); decimal
        units are powers of 1000, binary ones of 1024. An `int` is taken as bytes.

    Returns
    -------
    int
        Bytes, at least 1.

    Raises
    ------
    UsageError
        If there is no unit, an unknown one, or no positive number.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        value = float(text)
        size = text
    else:
        match = _PATTERN.fullmatch(str(text))
        if match is None:
            hint = f"; did you mean {text}GB?" if re.fullmatch(r"\s*\d+\s*", str(text)) else ""
            raise UsageError(
                f"{str(text)!r} is not an amount of memory: write a number with a unit, "
                f"for example 16GB or 512MiB{hint}"
            )
        factor = _FACTORS.get(match[2].upper())
        if factor is None:
            raise UsageError(
                f"{match[2]!r} in {str(text)!r} is not a unit of memory: use B, KB, MB, GB, TB "
                "(powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
            )
        value = float(match[1]) * factor
        if not math.isfinite(value):
            raise UsageError(f"{text!r} is not a finite amount of memory")
        size = int(value)
    if size < 1:
        raise UsageError(f"an amount of memory must be positive, not {text!r}")
    return size


def format_bytes(n_bytes: int | None) -> str:
    """Write a byte count with three significant digits in powers of 1000, as in ``"1.42 GB"``.

    None, a figure that is not available, is written ``"-"``.
    """
    if n_bytes is None:
        return "-"
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{int(value)} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"
