"""Notebooks of the tutorials, made from their pages, so that there is one source.

    python docs/scripts/notebooks.py [TUTORIAL...]

executes them in a kernel, each in an empty folder, holds what they print against the pages, and
writes ``docs/tutorials/notebooks/NAME.ipynb``. It needs nbclient and ipykernel. When the docs are
built, `docs/conf.py` turns them into pages; notebooks that were not executed have no outputs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[1] / "tutorials"
NOTEBOOKS = TUTORIALS / "notebooks"
NAMES = ("method", "scan", "network")
LIMIT_S = 600
"""The longest tutorial takes a minute on two cores."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$|^!\[.*?\]\((\S+)\)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!https?:)[^)]+\)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
Cell = dict[str, Any]


def notebook(page: str) -> dict[str, Any]:
    """Notebook of a page, not executed."""
    cells = list(cells_of(page.partition("\n## Where to go next")[0]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


def cells_of(page: str) -> Iterator[Cell]:
    """Cells of a page: its prose, files that are written, commands, pictures."""
    begin, last = 0, None
    for match in BLOCK.finditer(page):
        yield from prose(page[begin : match.start()])
        begin = match.end()
        language, text, picture = match.groups()
        if language == "text" and last is not None:
            last["metadata"].setdefault("prints", []).append(text)
            continue
        last = code(source(language, text, picture))
        yield last
    yield from prose(page[begin:])


def prose(text: str) -> Iterator[Cell]:
    """A cell of Markdown without links to other pages, if there is any text."""
    if text := LINK.sub(r"\1", text.strip()):
        yield {"cell_type": "markdown", "metadata": {}, "source": text}


def code(text: str) -> Cell:
    """A cell of code."""
    return {
        "cell_type": "code", "metadata": {}, "source": text, "outputs": [], "execution_count": None
    }  # fmt: skip


def source(language: str | None, text: str | None, picture: str | None) -> str:
    """Code that does what a block of the page asks the reader to do."""
    if picture is not None:
        name = Path(picture).name.removeprefix("tutorial-")
        return f'from IPython.display import Image\n\nImage("{name}")'
    assert text is not None
    if language == "console":
        return text.strip().replace("$ ", "!")
    if language == "yaml":
        return f"%%writefile pipeline.yaml\n{text.strip()}"
    name = re.match(r"# (\w+\.py)\n", text)
    assert name is not None, f"Python on a page of a tutorial that is no file:\n{text}"
    return f"%%writefile {name[1]}\n{text.strip()}"


def executed(plain: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells print, in an empty folder.

    Raises
    ------
    AssertionError
        If a line that the page shows was not printed.
    """
    import nbformat
    from nbclient import NotebookClient

    sys.path.insert(0, str(TUTORIALS.parents[1]))
    from tests.test_docs import same_text

    found = nbformat.from_dict(plain)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "lab"
        folder.mkdir()
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(found, timeout=LIMIT_S, resources=resources).execute()
    for cell in found.cells:
        for text in cell.metadata.pop("prints", []):
            printed = output_text(cell)
            assert same_text(printed, text), f"the page shows\n{text}\nbut printed\n{printed}"
    return json.loads(nbformat.writes(found))  # type: ignore[no-any-return]


def output_text(cell: Cell) -> str:
    """What a cell printed."""
    texts = ("".join(each.get("text", "")) for each in cell.get("outputs", []))
    return COLOUR.sub("", "".join(texts)).replace("\r\n", "\n")


def as_markdown(found: dict[str, Any], name: str, pictures: Path) -> str:
    """A page with the cells and their output. Pictures are written into a folder."""
    parts = []
    for number, cell in enumerate(found["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if not number:
                heading, _, text = text.partition("\n\n")
                parts.append(f"{heading} (notebook)")
            parts.append(text)
            continue
        language = "text" if text.startswith("!") or ".yaml\n" in text else "python"
        parts.append(f"```{language}\n{text}\n```")
        printed = output_text(cell).strip("\n")
        if printed and not text.startswith("%%writefile"):
            parts.append(f"```text\n{printed}\n```")
        for each in cell.get("outputs", []):
            if image := each.get("data", {}).get("image/png"):
                path = pictures / f"{name}-{number}.png"
                path.write_bytes(base64.b64decode("".join(image)))
                parts.append(f"![What the cell shows]({path.name})")
    if not any(cell.get("outputs") for cell in found["cells"]):
        parts.insert(1, "```{note}\nThese pages were built without executing it.\n```")
    parts.insert(1, f"{{download}}`{name}.ipynb` to run it yourself, in an empty folder.")
    return "\n\n".join(parts) + "\n"


def write_pages() -> None:
    """Write a page for each notebook; those that are not there are made, not executed."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for name in NAMES:
        path = NOTEBOOKS / f"{name}.ipynb"
        plain = notebook((TUTORIALS / f"{name}.md").read_text())
        if not path.exists() or sources(json.loads(path.read_text())) != sources(plain):
            path.write_text(json.dumps(plain, indent=1))
        page = as_markdown(json.loads(path.read_text()), name, NOTEBOOKS)
        (NOTEBOOKS / f"{name}.md").write_text(page)


def sources(found: dict[str, Any]) -> list[str]:
    """Sources of a notebook's cells."""
    return ["".join(cell["source"]) for cell in found["cells"]]


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for each in sys.argv[1:] or NAMES:
        result = executed(notebook((TUTORIALS / f"{each}.md").read_text()))
        (NOTEBOOKS / f"{each}.ipynb").write_text(json.dumps(result, indent=1))
        print(f"docs/tutorials/notebooks/{each}.ipynb")
