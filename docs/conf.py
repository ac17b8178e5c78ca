"""Sphinx: `make docs` renders these pages into docs/_build."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

project = "kopf"
copyright = "The kopf authors"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "settings_tables", "decorator_tables", "redirects"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "kopf"
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Docstrings mark code by single backquotes. All references to pages, sections and public names are checked.
default_role = "code"
nitpicky = True
# Signatures name types of Python, of libraries, and of our own that are not public: nothing to link them to.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
nitpick_ignore_regex = [("py:.*", r"(?!kopf\.[A-Za-z]).*"), ("py:.*", r"kopf\._.*")]
