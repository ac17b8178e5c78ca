"""Redirect the addresses that pages had before, ours and those of upstream's site, to where their content is now.

`docs/redirects.txt` lists them. A page of its own is written for each old address: it needs no server that redirects.
Sections that have moved from a page that still exists are redirected by a script in this page.
"""

import html
import json
import pathlib
import posixpath
import re
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
SCRIPT = """(() => {
  const moved = %s;
  const leave = () => { if (location.hash in moved) location.replace(moved[location.hash]); };
  addEventListener("hashchange", leave);
  leave();
})()"""


def read_redirects(path: pathlib.Path) -> dict[str, str]:
    """Return the new names of pages by the old ones, from lines such as `old new`; `#` after a space begins a comment.

    Both can be sections: `page#section`.

    Raises:
        ValueError: a line has another form, or an old name is listed twice.
    """
    redirects: dict[str, str] = {}
    for line in path.read_text().splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
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


def render_script(app: 'Sphinx', page: str, redirects: dict[str, str]) -> str:
    """Return the script that leads from the sections that this page had to where they are now; or nothing."""
    moved = {}
    for old, new in redirects.items():
        if old.startswith(f"{page}#"):
            name, mark, section = new.partition("#")
            moved["#" + old.partition("#")[2]] = app.builder.get_relative_uri(page, name) + mark + section
    return SCRIPT % json.dumps(moved) if moved else ""


def add_script(app: 'Sphinx', page: str, *_: Any) -> None:
    """Called when a page is rendered. Add the script for the sections that it had."""
    if page in app.env.found_docs:
        if script := render_script(app, page, read_redirects(pathlib.Path(app.srcdir, "redirects.txt"))):
            app.add_js_file(None, body=script)


def find_problem(app: 'Sphinx', old: str, new: str) -> str:
    """Return what is wrong with a redirect, given the pages that were written; or nothing."""
    name, _, section = new.partition("#")
    page, _, former = old.partition("#")
    if name not in app.env.found_docs:
        return f"there is no page {name}"
    if bool(former) is not (page in app.env.found_docs):
        return f"{page} is {'no' if former else 'a'} page itself"
    for place, anchor, wanted in ((name, section, True), (page, former, False)):
        path = pathlib.Path(app.builder.get_outfilename(place))  # type: ignore[attr-defined]
        if anchor and (f'id="{anchor}"' in path.read_text()) is not wanted:
            return f"{place} has {'no' if wanted else 'a'} section #{anchor}"
    return ""


def write_redirects(app: 'Sphinx', exception: Exception | None) -> None:
    """Called when the site is built. Write a page for each old address; warn of those that lead nowhere."""
    if exception is not None or app.builder.format != "html":
        return
    from sphinx.util import logging

    for old, new in read_redirects(pathlib.Path(app.srcdir, "redirects.txt")).items():
        if problem := find_problem(app, old, new):
            logging.getLogger(__name__).warning("redirects.txt: %s: %s", old, problem)
        elif "#" not in old:
            path = pathlib.Path(app.builder.get_outfilename(old))  # type: ignore[attr-defined]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(app, old, new))


def setup(app: 'Sphinx') -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", add_script)
    app.connect("build-finished", write_redirects)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
