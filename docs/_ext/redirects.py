"""Redirect the addresses that pages had before, ours and those of upstream's site, to where their content is now.

`docs/redirects.txt` lists them. A page of its own is written for each old address: it needs no server that redirects.
"""

import html
import json
import pathlib
import posixpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx  # the tests of the table do without it

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Moved</title>
<link rel="canonical" href="{href}">
<meta name="robots" content="noindex">
<script>location.replace({script} + location.search + location.hash)</script>
<meta http-equiv="refresh" content="1; url={href}">
<p>This page has moved to <a href="{href}">{href}</a>.</p>
</html>
"""


def read_redirects(path: pathlib.Path) -> dict[str, str]:
    """Return the new names of pages by the old ones, from lines such as `old new`; `#` begins a comment.

    Raises:
        ValueError: a line has another form, or an old name is listed twice.
    """
    redirects: dict[str, str] = {}
    for line in path.read_text().splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] in redirects:
            raise ValueError(f"{path}: write the old and the new name of a page, each old one once: {line!r}")
        redirects[words[0]] = words[1]
    return redirects


def render(app: 'Sphinx', old: str, new: str) -> str:
    """Return the HTML of the old page, which leads to the new one."""
    here, there = app.builder.get_target_uri(old), app.builder.get_target_uri(new)
    folder = here if here.endswith("/") else posixpath.dirname(here)
    href = posixpath.relpath(there or ".", folder or ".") + ("/" if there.endswith("/") else "")
    return PAGE.format(href=html.escape(href), script=json.dumps(href))


def write_redirects(app: 'Sphinx', exception: Exception | None) -> None:
    """Called when the site is built. Write a page for each old address; warn of those that lead nowhere."""
    if exception is not None or app.builder.format != "html":
        return
    from sphinx.util import logging

    for old, new in read_redirects(pathlib.Path(app.srcdir, "redirects.txt")).items():
        if old in app.env.found_docs or new not in app.env.found_docs:
            logging.getLogger(__name__).warning("redirects.txt: %s is a page itself, or %s is none", old, new)
            continue
        path = pathlib.Path(app.builder.get_outfilename(old))  # type: ignore[attr-defined]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(app, old, new))


def setup(app: 'Sphinx') -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", write_redirects)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
