from importlib.metadata import version as installed_version

project = "maxslices"
author = "the maxslices developers"
copyright = "2026, the maxslices developers"
release = version = installed_version("maxslices")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

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
