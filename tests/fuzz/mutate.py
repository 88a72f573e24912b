"""Damage to bytes and to text, as disks, networks and people do it."""

from __future__ import annotations

import random
from typing import Any

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF)
_CHARACTERS = (0, 9, 10, 32, 34, 39, 45, 58, 91, 123, 0xFEFF, 0x1F600)
_TEXTS = (
    "", "~", "null", "true", "0", "-1", "1e9", "1.0e+308", ".inf", "-.inf", ".nan", "0x7fffffff",
    "0b1", "1" * 30, "1" * 400, "1" * 5000, "9" * 400 + ".0", ":".join(["59"] * 200), "1:2:3.5",
    "2026-02-30", "!!bool foo", "!!int x", "!!float y", "!!binary zz", "!!timestamp x", "!!set {a}",
    "!!python/object/apply:os.system [ls]", "&a [*a]", "*a", "<<: *a", "[" * 200, "{a: 1, a: 2}",
    "? [a]\n: b", "'\\ud800'", '"\\ud800"', '"\\0"', '"a\\0b"', "\ud800", "\0", "\ufeff", "\t",
    "---", "...", "%YAML 9.9", "|", ">-", "- ", ": ", "#", "${{", "${{a.side_outputs.b}}",
    "standard_tomo", "method", "parameters", "save_result", "id", "side_outputs", "preview",
    "flats", "file", "data_path", "user_defined", "angles_total", "2000000000", "-2000000000",
)  # fmt: skip


def heaps(data: bytes) -> list[list[tuple[int, int]]]:
    """Objects of the global heaps of an HDF5 file: number and place of each, 0 the free space."""
    heaps_of_file, start = [], data.find(b"GCOL")
    while start >= 0:
        end = start + int.from_bytes(data[start + 8 : start + 16], "little")
        objects, at = [], start + 16
        while at + 16 <= end:
            number = int.from_bytes(data[at : at + 2], "little")
            size = int.from_bytes(data[at + 8 : at + 16], "little")
            objects.append((number, at))
            at = at + 16 + -(-size // 8) * 8 if number else end
        heaps_of_file.append(objects)
        start = data.find(b"GCOL", end)
    return heaps_of_file


def hangs_hdf5(data: bytes) -> bool:
    """True if HDF5 2.0 reads a global heap of the file without end.

    It goes on by the size of each object, in arithmetic of 64 bits, and does not notice that it
    stays where it is.
    """
    start = data.find(b"GCOL")
    while start >= 0:
        at, end = start + 16, start + int.from_bytes(data[start + 8 : start + 16], "little")
        for _ in range(2**16 + 1):
            if at + 16 > min(end, len(data)):
                break
            size = int.from_bytes(data[at + 8 : at + 16], "little")
            step = size if not any(data[at : at + 2]) else (16 + -(-size // 8) * 8) % 2**64
            if step == 0:
                return True
            at += step
        else:
            return True
        start = data.find(b"GCOL", start + 4)
    return False


def damaged_heap(data: bytes, random_: random.Random) -> bytes:
    """Damage objects of the global heaps of an HDF5 file; files without heaps are unchanged."""
    changed = bytearray(data)
    places = [at for heap in heaps(data) for _, at in heap]
    for at in random_.sample(places, min(len(places), random_.choice((1, 1, 2)))):
        field, width = random_.choice(((0, 2), (8, 8), (8, 8)))
        value = random_.choice((0, 1, 8, 16, 24, 2**16, 2**63, 2**64 - 8, 2**64 - 16, 2**64 - 24))
        changed[at + field : at + field + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(changed)


def damaged(data: bytes, random_: random.Random) -> bytes:
    """Damage a file in one to three ways."""
    data = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        _damage(data, random_)
    return bytes(data)


def _damage(data: bytearray, random_: random.Random) -> None:
    if not data:
        return
    # Most of a file is pixels. Its structure is at the beginning and at the end.
    size = len(data)
    near = random_.randrange(min(size, 2048))
    at = random_.choice((random_.randrange(size), near, size - 1 - near))
    kind = random_.randrange(9)
    if kind <= 2:
        data[at] ^= 1 << random_.randrange(8)
    elif kind == 3:
        data[at] = random_.choice(_NUMBERS)
    elif kind == 4:
        width = random_.choice((2, 4, 8))
        value = random_.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, size))
        order = random_.choice(("little", "big"))
        data[at : at + width] = (value % 256**width).to_bytes(width, order)
    elif kind == 5:
        del data[at:]
    elif kind == 6:
        del data[at : at + random_.choice((1, 2, 4, 8, 100))]
    elif kind == 7:
        data[at : at + random_.choice((1, 8, 64, 512))] = bytes(random_.choice((1, 8, 64, 512)))
    else:
        start = random_.randrange(size)
        data[at : at + 16] = data[start : start + 16]


def damaged_text(text: str, random_: random.Random) -> str:
    """Damage a text file in one to four ways: words, lines and characters."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        text = _damage_text(text, random_)
    return text


def _damage_text(text: str, random_: random.Random) -> str:
    kind = random_.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6))
    if kind == 0:  # the value behind a colon
        lines = text.split("\n")
        at = random_.randrange(len(lines))
        head, colon, _ = lines[at].rpartition(": ")
        lines[at] = f"{head}{colon}{random_.choice(_TEXTS)}"
        return "\n".join(lines)
    if kind == 1:  # a line twice, or elsewhere
        lines = text.split("\n")
        lines.insert(random_.randrange(len(lines)), random_.choice(lines))
        return "\n".join(lines)
    if kind == 2:
        lines = text.split("\n")
        del lines[random_.randrange(len(lines))]
        return "\n".join(lines)
    at = random_.randrange(len(text) + 1)
    if kind == 3:
        return text[:at] + random_.choice(_TEXTS) + text[at:]
    if kind == 4:
        return text[:at] + text[at + random_.choice((1, 2, 5, 20)) :]
    if kind == 5:
        odd = (*_CHARACTERS, random_.randrange(1, 256))
        return text[:at] + chr(random_.choice(odd)) + text[at:]
    words = text.split(" ")
    words[random_.randrange(len(words))] = random_.choice(_TEXTS)
    return " ".join(words)


_LEAVES = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**400, 0.5, -1e308, "", "a", "float32", "nan",
    "../up", "/etc/passwd", "result.h5", "thesis.tex", "a\0b", "\ud800", [], {}, [0], {"a": 1},
)  # fmt: skip


def tampered(value: Any, random_: random.Random) -> Any:
    """Change one to three places of plain values, as JSON has them."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        value = _tamper(value, random_)
    return value


def _tamper(value: Any, random_: random.Random) -> Any:
    if not isinstance(value, list | dict) or not value or random_.random() < 0.1:
        return _other(value, random_)
    changed = value.copy()
    key = random_.choice(list(value) if isinstance(value, dict) else range(len(value)))
    kind = random_.randrange(12)
    if kind == 0:
        del changed[key]
    elif kind == 1 and isinstance(changed, list):
        changed.insert(random_.randrange(len(value) + 1), value[key])
    elif kind == 1:
        changed[random_.choice(("", "more", *value))] = value[key]
    else:
        changed[key] = _tamper(value[key], random_)
    return changed


def _other(value: Any, random_: random.Random) -> Any:
    """Put another value in the place of one, often one that is close to it."""
    kind = random_.randrange(4)
    if type(value) is int and kind:
        return value + random_.choice((-1, 1, 7, -value))
    if isinstance(value, str) and value and kind == 1:
        at = random_.randrange(len(value))
        return value[:at] + random_.choice("0a/ ") + value[at + 1 :]
    return random_.choice(_LEAVES)
