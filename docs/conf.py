import importlib.util
import re
import sys
import tomllib
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
changes = Path(__file__).parents[1] / "changes"
urls = pyproject["project"]["urls"]

project = "maxslices"
author = "the maxslices developers"
copyright = "2026, the maxslices developers"
release = version = installed_version("maxslices")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_click",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_show_class_members = False
default_role = "code"
smartquotes_action = "qe"  # two hyphens begin an option
highlight_language = "none"  # what is not said to be Python is a drawing, or was printed

html_theme = "furo"
html_title = f"maxslices {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_favicon = "_static/favicon.svg"
html_baseurl = f"{urls['Documentation']}/en/latest/"
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": urls["Homepage"],
    "source_branch": "main",
    "source_directory": "docs/",
}


def fill(app, page, source):
    """Add the methods, and unreleased changes; leave out what only torch can describe."""
    if page == "reference/methods":
        from method_reference import markdown

        source[0] += markdown()
    elif page == "changelog":
        fragments = sorted(set(changes.glob("*.md")) - {changes / "README.md"})
        unreleased = "".join(f"- {path.read_text()}" for path in fragments)
        source[0] += f"\n## Not released yet\n\n{unreleased}"
    elif page == "reference/networks" and importlib.util.find_spec("torch") is None:
        missing = "```{note}\nLeft out: these pages were built without torch.\n```"
        source[0] = re.sub(r"```\{eval-rst\}.*?```", missing, source[0], flags=re.DOTALL)


def setup(app):
    """Make what is made at build time."""
    from notebooks import write_pages

    write_pages()
    app.connect("source-read", fill)
