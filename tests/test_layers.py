"""Imports point downward only in the layers of the design, as read from the source by ast."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import maxslices

PACKAGE = Path(maxslices.__file__).parent
DESIGN = Path(__file__).parents[1] / "docs" / "design.md"


def drawn_layers() -> list[set[str]]:
    """Read the layers from the drawing in the design, from the bottom up."""
    _, _, after = DESIGN.read_text(encoding="utf-8").partition("## Layers")
    rows = after.partition("```\n")[2].partition("```")[0].splitlines()
    return [{"__init__" if name == "maxslices" else name for name in row.split()} for row in rows][
        ::-1
    ]


LAYERS = drawn_layers()
LAYER_OF = {name: height for height, names in enumerate(LAYERS) for name in names}
assert len(LAYER_OF) == sum(map(len, LAYERS)), "a part is in two layers"


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to: a module or subpackage."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that a file imports, absolute, and the lines."""
    package = ["maxslices", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            for alias in node.names:
                yield ".".join([*base, alias.name]), node.lineno


def own_parts(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the parts of this package that a file imports."""
    for name, line in imported(path):
        first, *rest = name.split(".")
        if first == "maxslices":
            known = rest and ((PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").exists())
            # `from maxslices import method` means the function, which __init__ offers.
            yield (rest[0] if known and not is_public_name(name) else "__init__"), line


def is_public_name(name: str) -> bool:
    return name.removeprefix("maxslices.") in maxslices.__all__ and name.count(".") == 1


def test_imports_point_downward_only():
    upward = [
        f"{path.relative_to(PACKAGE)}:{line} imports {part}, which is above {part_of(path)}"
        for path in sources()
        for part, line in own_parts(path)
        if LAYER_OF[part] > LAYER_OF[part_of(path)]
    ]
    assert upward == []


def test_nothing_outside_of_networks_imports_them():
    outside = [path for path in sources() if part_of(path) != "nn"]
    assert [path for path in outside if "nn" in dict(own_parts(path))] == []


def files_of_imports(path: Path) -> Iterator[Path]:
    """Yield the files of this package that a file imports, also inside functions."""
    for name, _ in imported(path):
        first, *rest = name.split(".")
        if first != "maxslices" or is_public_name(name):
            continue
        for length in (len(rest), len(rest) - 1):  # a module, or a name in one
            base = PACKAGE.joinpath(*rest[:length])
            found = [base.with_suffix(".py")] if length else []
            for file in [*found, base / "__init__.py"]:
                if file.exists():
                    yield file
                    break
            else:
                continue
            break


def circles(needs: dict[Path, set[Path]]) -> list[str]:
    """Names of those that import each other in a circle, or lie between two circles."""
    while free := [
        path
        for path, others in needs.items()
        if not others & set(needs) or not any(path in each for each in needs.values())
    ]:
        for path in free:
            del needs[path]
    return [str(path.relative_to(PACKAGE)) for path in needs]


def test_no_two_files_import_each_other_in_a_circle():
    assert circles({path: set(files_of_imports(path)) - {path} for path in sources()}) == []


def test_no_two_folders_of_a_part_import_each_other_in_a_circle():
    needs: dict[Path, set[Path]] = {}
    for path in sources():
        if len(path.relative_to(PACKAGE).parts) > 2:  # not the part's own files
            found = {file.parent for file in files_of_imports(path)} - {path.parent}
            needs.setdefault(path.parent, set()).update(found)
    assert {"io/scans", "runner/blocks"} <= {  # networks may be away
        str(folder.relative_to(PACKAGE)) for folder in needs
    }
    assert circles(needs) == []


def test_the_bottom_layer_needs_numpy_alone():
    foreign = [
        f"{path.name}:{line} imports {name}"
        for path in sources()
        if part_of(path) in ("errors", "core", "registry")
        for name, line in imported(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "maxslices", "numpy"}
    ]
    assert foreign == []
