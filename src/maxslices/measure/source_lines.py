"""The user's line of code that is running: the innermost one outside libraries."""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import sysconfig
from collections.abc import Sequence
from functools import lru_cache

from .allocation_sequence import CallSite

_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"])
_MEASURE_FOLDER = os.path.dirname(os.path.abspath(__file__))
_OWN_FOLDERS = (_MEASURE_FOLDER, os.path.join(os.path.dirname(_MEASURE_FOLDER), "devices"))
"""Folders of the code that stands between a method and what it allocates: the meters, and the
devices, which call methods and limit CuPy's pool."""
_LIBRARIES = frozenset(
    ("numpy", "scipy", "cupy", "cupyx", "cupy_backends", "array_api_compat", "pywt", "torch",
     "numba", "skimage", "finufft", "cufinufft", "contextlib.py")
)  # fmt: skip


_TYPED = ("<stdin>", "<python-input-", "<ipython-input-", "<doctest ", "<console>")
"""Beginnings of the names that code typed at a prompt has for its file; generated code has others,
such as ``<string>``."""


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """True if a file belongs to Python, an array library, the meters or the devices."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED)
    path = os.path.abspath(filename)
    if os.path.dirname(path) in _OWN_FOLDERS:
        return True
    parts = path.split(os.sep)
    for root in ("site-packages", "dist-packages"):
        if root in parts:
            return parts[parts.index(root) + 1] in _LIBRARIES
    return os.path.realpath(path).startswith(_STDLIB + os.sep)


def call_site(lines: Sequence[tuple[str, int, str]]) -> CallSite:
    """Site of an allocation: the innermost line outside libraries, and a digest of all lines.

    Parameters
    ----------
    lines : sequence of (str, int, str)
        File, line and function of each frame, the innermost first.
    """
    text = "\n".join(f"{_tail(filename)}:{line}" for filename, line, _ in lines)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    own = next((each for each in lines if not is_library(each[0])), None)
    filename, line, function = own or next(iter(lines), ("", 0, ""))
    return CallSite(filename, line, function, digest)


def _tail(filename: str) -> str:
    """Last two parts of a path, the same wherever a package is installed."""
    return "/".join(filename.split(os.sep)[-2:])


@lru_cache(maxsize=64)
def _statements(text: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def assigned_name(site: CallSite) -> str:
    """Name that the statement of a site assigns to; "result" where it returns; else ""."""
    if site.function == "<lambda>":
        return ""
    covering = [
        node
        for node in _statements("".join(linecache.getlines(site.filename)))
        if node.lineno <= site.line <= (node.end_lineno or node.lineno)
    ]
    statement = max(covering, key=lambda node: node.lineno, default=None)
    if isinstance(statement, ast.Return):
        return "result"
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        target = statement.target
    return target.id if isinstance(target, ast.Name) else ""
