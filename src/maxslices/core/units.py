"""Read and write byte counts and durations, and escape text for output."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Integral

from ..errors import UsageError

MIB = 2**20
"""Bytes of a mebibyte, the unit of allocators."""
_FACTORS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": MIB,
    "GIB": 2**30,
    "TIB": 2**40,
}
_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]+)\s*")
_LARGEST_BYTES = 2**62


def parse_bytes(text: str | int) -> int:
    """Read a byte count such as ``"16GB"``, ``"512 MiB"`` or an `int` of bytes.

    Parameters
    ----------
    text : str or int
        A positive number with a unit: B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB
        (powers of 1024), in upper or lower case. An `int` is a number of bytes. Fractions of a
        byte are dropped.

    Returns
    -------
    int
        Bytes, at least 1 and at most ``2**62``.

    Raises
    ------
    UsageError
        If the unit is missing or unknown, or the number is not positive.
    """
    if isinstance(text, Integral) and not isinstance(text, bool):  # NumPy's integers too
        number, factor = Decimal(int(text)), 1
    else:
        match = _PATTERN.fullmatch(str(text))
        if match is None:
            hint = ""
            if re.fullmatch(r"[1-9][0-9]*", str(text)):
                hint = f"; did you mean {text}{'GB' if len(str(text)) < 5 else 'B'}?"
            raise UsageError(
                f"{str(text)!r} is not an amount of memory: write a number with a unit, "
                f"for example 16GB or 512MiB{hint}"
            )
        unit = match[2].upper()
        if unit not in _FACTORS:
            meant = f"{match[1]}{unit.replace('I', 'i')}B"
            hint = f"; did you mean {meant}?" if f"{unit}B" in _FACTORS else ""
            raise UsageError(
                f"{match[2]!r} in {text!r} is not a unit of memory: use B, kB, MB, GB, TB "
                f"(powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024){hint}"
            )
        # float() first, because a Decimal of 1e999999999 cannot be converted to int.
        approximate, factor = float(match[1]), _FACTORS[unit]
        number = Decimal(match[1]) if 1e-20 < approximate < 1e20 else Decimal(approximate)
    if number * factor > _LARGEST_BYTES:
        raise UsageError(f"{_shown(text)} is more memory than any machine has")
    if number * factor < 1:
        raise UsageError(f"an amount of memory must be at least one byte, not {_shown(text)}")
    return int(number * factor)


def _shown(text: str | int) -> str:
    return repr(text) if isinstance(text, str) else f"{Decimal(int(text)):.3g} bytes"


def format_bytes(n_bytes: int | None) -> str:
    """Write a byte count with three significant digits in powers of 1000, as in ``"1.42 GB"``.

    None, an unknown number, is written ``"-"``.
    """
    if n_bytes is None:
        return "-"
    value, units = float(n_bytes), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    whole = units[0] == "B" or abs(value) >= 99.95
    return f"{value:.{0 if whole else 1 if abs(value) >= 9.995 else 2}f} {units[0]}"


def format_duration(duration_s: float) -> str:
    """Write a duration with a unit.

    Examples
    --------
    >>> [format_duration(each) for each in (0.0042, 2.649, 95.2, 7384)]
    ['4 ms', '2.6 s', '1 min 35 s', '2 h 03 min']
    """
    if duration_s < 0.1:
        return f"{1000 * duration_s:.0f} ms"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    minutes, rest_s = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(round(duration_s / 60), 60)
    return f"{hours} h {minutes:02d} min"


def readable(text: str) -> str:
    r"""Escape the characters that a terminal, an editor or a YAML reader would act on.

    Parameters
    ----------
    text : str
        Text for a terminal, a log or a file. It may contain names and units from a scan, which
        are not trusted.

    Returns
    -------
    str
        The text with control characters, marks of the writing direction and surrogates of
        undecodable file names as ``\uXXXX``, which JSON and YAML can read. Tabs and line ends are
        unchanged.

    Examples
    --------
    >>> print(readable("um" + chr(27) + "[2J"))
    um\u001b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\t\n" else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
