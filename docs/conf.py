"""Sphinx: `make docs` renders these pages into docs/_build."""
project = "kopf"
copyright = "The kopf authors"
extensions: list[str] = []
exclude_patterns = ["_build"]
html_theme = "alabaster"
