"""The words of each section, for the page of the search: its results lead to the section that answers.

The index of Sphinx knows for each word only the pages that have it. `docs/_static/search_words.js` finds the section.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search import SearchLanguage, languages

FILE = "search_sections.js"


class Section(NamedTuple):
    """One section without those inside of it."""

    anchor: str
    title: str
    names: str
    """The stems of the words in its title, and in the entries of the index that lead to it."""
    words: str
    """The stems of all other words."""
    targets: list[str]
    """The anchors in it, such as those of the entries of the index."""


def find_sections(doctree: nodes.document, language: SearchLanguage) -> Iterator[Section]:
    """Yield the sections of a page. The first one is the page itself; it has no anchor, as it begins at the top."""
    for number, section in enumerate(doctree.findall(nodes.section)):
        title = section.next_node(nodes.title)
        own = [node for node in section.findall(_is_indexed) if _find_section(node) is section]
        entries = [node for node in own if isinstance(node, addnodes.index)]
        names = " ".join([title.astext(), *(entry[1] for node in entries for entry in node["entries"])])
        texts = [node for node in own if isinstance(node, nodes.Text) and node.parent is not title]
        yield Section(
            section["ids"][0] if number else "",
            title.astext(),
            _stem(names, language),
            _stem(" ".join(text.astext() for text in texts), language),
            [anchor for node in own if isinstance(node, nodes.Element) for anchor in node.get("ids", [])],
        )


def _is_indexed(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Text):
        return not isinstance(node.parent, (nodes.comment, nodes.raw))
    return isinstance(node, nodes.Element) and (isinstance(node, addnodes.index) or bool(node.get("ids")))


def _find_section(node: nodes.Node) -> nodes.Node:
    while not isinstance(node, nodes.section):
        node = node.parent
    return node


def _stem(text: str, language: SearchLanguage) -> str:
    """Return the stems of the words in a text, each once, as the search compares them."""
    stems = dict.fromkeys(language.stem(word.lower()) for word in language.split(text))
    return " ".join(stem for stem in stems if language.word_filter(stem))


def collect(env: BuildEnvironment) -> dict[str, list[Section]]:
    """Return the sections of all pages."""
    found = languages[env.config.language or "en"]
    assert not isinstance(found, str)
    language = found({})
    return {page: list(find_sections(env.get_doctree(page), language)) for page in sorted(env.found_docs)}


def add_script(app: Sphinx, page: str, *_: Any) -> None:
    """Called when a page is rendered. Load the sections where they are used: they are as large as some pages."""
    if page == "search":
        app.add_js_file(FILE)


def write_sections(app: Sphinx, exception: Exception | None) -> None:
    """Called when the site is built. Write the sections of all pages."""
    if exception is None and app.builder.format == "html":
        text = json.dumps(collect(app.env), ensure_ascii=False, separators=(",", ":"))
        pathlib.Path(app.outdir, "_static", FILE).write_text(f"const SEARCH_SECTIONS = {text};\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", add_script)
    app.connect("build-finished", write_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
