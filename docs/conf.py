import importlib.util
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

project = "maxslices"
author = "the maxslices developers"
copyright = "2026, the maxslices developers"
release = version = installed_version("maxslices")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_argparse_cli",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

# Networks are described without torch too; its classes are then stood in for.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_show_class_members = False
default_role = "code"
highlight_language = "none"  # what is not said to be Python is a drawing, or was printed

html_theme = "furo"
html_title = f"maxslices {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {"navigation_with_keys": True}


def add_methods(app, page, source):
    """Put the reference of the methods, generated from what they declare, into its page."""
    if page == "reference/methods":
        from method_reference import markdown

        source[0] += markdown()


def setup(app):
    """Connect what is generated at build time."""
    app.connect("source-read", add_methods)
