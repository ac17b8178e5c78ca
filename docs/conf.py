"""Sphinx: `make docs` renders these pages into docs/_build."""

import os
import pathlib
import sys

import kopf

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

project = "kopf"
copyright = "The kopf authors"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "changelog",
    "decorator_tables",
    "message_tables",
    "option_names",
    "redirects",
    "search_sections",
    "settings_tables",
]
exclude_patterns = ["_build"]
html_theme = "furo"
release = kopf.__version__
html_title = f"kopf {release}"  # each page says for which version it is
# Where the site is published, readers can edit each page: the address of the repository is that of the publisher.
if repository := os.environ.get("DOCS_REPOSITORY"):
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["search_words.js"]

# Docstrings mark code by single backquotes. All references to pages, sections and public names are checked.
default_role = "code"
nitpicky = True
# Signatures name types of Python, of libraries, and of our own that are not public: nothing to link them to.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
nitpick_ignore_regex = [("py:.*", r"(?!kopf\.[A-Za-z]).*"), ("py:.*", r"kopf\._.*")]
