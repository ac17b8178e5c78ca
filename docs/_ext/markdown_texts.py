"""Convert the Markdown of the changelog to reStructuredText: headings, lists, code, links, and references to pages."""

import re

HEADING = re.compile(r"(#{2,3}) (?:\[(.+)\]|(.+))")
INLINE = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)")
PAGE = re.compile(r"docs/((?:tutorial|howto|explanation|reference)/[\w-]+)\.rst")


def convert(text: str) -> str:
    """Return the text as reStructuredText."""
    lines: list[str] = []
    for line in INLINE.sub(_convert_inline, text).splitlines():
        if heading := HEADING.fullmatch(line):
            title = heading[2] or heading[3]
            lines += [title, ("-" if heading[1] == "##" else "~") * len(title)]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _convert_inline(found: re.Match[str]) -> str:
    code, label, target = found.groups()
    if code is None:
        return f"`{' '.join(label.split())} <{target}>`__"
    page = PAGE.fullmatch(code)
    return f":doc:`/{page[1]}`" if page else f"``{' '.join(code.split())}``"
