"""Notebooks made from the tutorials."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """# A page

See [there](../there.md).

```python
# one.py
print(1)
```

```console
$ python one.py
```

```text
1
```

![The one](../_static/tutorial-one.png)

## Where to go next

- nowhere
"""


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "scripts")
    spec = importlib.util.spec_from_file_location(
        "docs_notebooks", DOCS / "scripts" / "notebooks.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_become_cells_in_order(notebooks):
    assert notebooks.sources(notebooks.notebook(PAGE)) == [
        "# A page\n\nSee there.",
        "%%writefile one.py\n# one.py\nprint(1)",
        "!python one.py",
        'from IPython.display import Image\n\nImage("one.png")',
    ]


def test_python_that_is_no_file_is_refused(notebooks):
    with pytest.raises(AssertionError, match="no file"):
        notebooks.notebook("# A page\n\n```python\nprint(1)\n```\n")


@pytest.mark.parametrize("name", ["method", "scan", "network"])
def test_each_tutorial_is_a_notebook(notebooks, name):
    page = (DOCS / "tutorials" / f"{name}.md").read_text()
    sources = notebooks.sources(notebooks.notebook(page))
    assert sum(text.startswith("!") for text in sources) == page.count("```console")
    assert sum(text.startswith("%%writefile") for text in sources) == (
        page.count("```python") + page.count("```yaml")
    )


def test_a_page_shows_what_was_printed_and_the_pictures(notebooks, tmp_path):
    notebook = notebooks.notebook(PAGE)
    pixels = base64.b64encode(b"a picture").decode()
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "text": ["\x1b[31m1\x1b[0m\n"]}]
    notebook["cells"][3]["outputs"] = [{"data": {"image/png": pixels}}]
    page = notebooks.as_markdown(notebook, "one", tmp_path)
    assert page.startswith("# A page (notebook)\n\n{download}`one.ipynb`")
    assert "```text\n!python one.py\n```\n\n```text\n1\n```" in page
    assert "![What the cell shows](one-3.png)" in page
    assert (tmp_path / "one-3.png").read_bytes() == b"a picture"
    assert "without executing" not in page
    assert "without executing" in notebooks.as_markdown(notebooks.notebook(PAGE), "one", tmp_path)


def test_a_notebook_that_prints_something_else_is_refused(notebooks):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    assert notebooks.output_text(notebooks.executed(notebooks.notebook(EXECUTED))["cells"][-1])
    with pytest.raises(AssertionError, match="the page shows"):
        notebooks.executed(notebooks.notebook(EXECUTED.replace("text\n1", "text\n2")))


EXECUTED = PAGE.partition("![")[0]
