"""The glossary in docs/words.md names the classes of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "maxslices"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| `(\w+)` \|$", re.MULTILINE)


TREES = [
    (path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8")))
    for path in sorted(PACKAGE.rglob("*.py"))
]
"""(path within the package, syntax tree) of each file of the package."""
CLASSES = [
    (node.name, path)
    for path, tree in TREES
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
]
"""(name, path) of each class that is defined in the package."""


def exported():
    """Names in `__all__`: of all packages of the core, and of the package of networks itself."""
    names = set()
    for path, tree in TREES:
        if path.parts[0] == "nn" and path != Path("nn/__init__.py"):
            continue
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
                names |= set(ast.literal_eval(node.value))
    return names


def glossary():
    """(class, folder) of each row of the table of classes."""
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    return ROW.findall(text[text.index("## Classes") :])


def test_no_class_name_is_defined_twice():
    where = {}
    for name, path in CLASSES:
        where.setdefault(name.lstrip("_"), []).append(str(path))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert not twice


def test_every_exported_class_is_in_the_glossary():
    named = {name for name, _ in glossary()}
    assert {name for name, _ in CLASSES} & exported() - named == set()


def test_every_class_in_the_glossary_is_in_the_folder_that_it_names():
    defined = {(name, path.parts[0].removesuffix(".py")) for name, path in CLASSES}
    folders = {path.name for path in PACKAGE.iterdir()}  # that of networks may be away
    rows = [row for row in glossary() if row[1] in folders or row[1] != "nn"]
    assert [row for row in rows if row not in defined] == []


def test_no_row_of_the_glossary_is_repeated():
    rows = glossary()
    assert len(rows) == len(set(rows)) > 50
