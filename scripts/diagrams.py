"""The pictures of sequences and decisions: `python scripts/diagrams.py` draws docs/pictures/*.txt as SVG beside them.

A text has a `title:`, and either `actors:` (from left to right) with one step a line, or an indented tree:

    A > B: what A sends to B            an arrow
    A: what A does, or is               a note
    --- another case                    a line across the picture

    A question                          a box
      yes: another question, or an end  a box below it, with an answer on its connection
"""

import dataclasses
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from drawings import PICTURES, page, text  # noqa: E402

WIDTH = 852
CHARACTER = 6.9  # the width of a character of 13 pixels, on average
COLOURS = ("users", "core", "cogs", "kits")


def draw_sequence(title: str, actors: list[str], steps: list[str]) -> str:
    """Draw what the actors send to each other, from the top to the bottom."""
    pitch = (WIDTH - 220) / (len(actors) - 1)
    places = {actor: 110 + number * pitch for number, actor in enumerate(actors)}
    y = 128.0
    parts: list[str] = []
    for step in steps:
        height, drawn = draw_step(step, places, y)
        parts += drawn
        y += height
    heads = [text(24, 34, title, "name")]
    for number, (actor, x) in enumerate(places.items()):
        heads += [
            f'<line class="line" x1="{x:g}" y1="92" x2="{x:g}" y2="{y - 6:g}" stroke-dasharray="3 4" opacity="0.6"/>',
            f'<rect class="box {COLOURS[number]}" x="{x - 80:g}" y="54" width="160" height="38" rx="6"/>',
            text(x, 78, actor, "name", "middle"),
        ]
    return page(WIDTH, round(y + 12), title, [*heads, *parts])


def draw_step(step: str, places: dict[str, float], y: float) -> tuple[float, list[str]]:
    """Return the height and the parts of one step."""
    if step.startswith("---"):
        line = f'<line class="arc" x1="24" y1="{y + 4:g}" x2="{WIDTH - 24}" y2="{y + 4:g}" stroke-width="1"/>'
        return 52, [line, text(24, y + 24, step.strip("- "), "name")]
    where, _, words = step.partition(": ")
    source, _, target = where.partition(" > ")
    if not target:
        return draw_note(words, places[source], y)
    start, end = places[source], places[target]
    middle = (start + end) / 2
    lines = textwrap.wrap(words, max(16, int(abs(end - start) / CHARACTER) - 2))
    parts = [text(middle, y + 15 * number, line, "", "middle") for number, line in enumerate(lines)]
    y_arrow = y + 15 * len(lines) - 6
    gap = 5 if end > start else -5
    parts.append(f'<path class="line" d="M{start:g},{y_arrow:g} L{end - gap:g},{y_arrow:g}" marker-end="url(#tip)"/>')
    return 15 * len(lines) + 26, parts


def draw_note(words: str, x: float, y: float) -> tuple[float, list[str]]:
    lines = textwrap.wrap(words, 30)
    breadth = max(map(len, lines)) * CHARACTER + 24
    left = min(max(x - breadth / 2, 12), WIDTH - 12 - breadth)
    height = 16 * len(lines) + 12
    box = f'<rect class="box end" x="{left:g}" y="{y - 14:g}" width="{breadth:g}" height="{height}" rx="6"/>'
    return height + 18, [
        box,
        *(text(left + breadth / 2, y + 4 + 16 * number, line, "", "middle") for number, line in enumerate(lines)),
    ]


@dataclasses.dataclass
class Node:
    """A box of a tree: a question, or an end."""

    depth: int
    answer: str
    words: str

    @property
    def is_question(self) -> bool:
        return self.words.endswith("?")


def read_tree(lines: list[str]) -> list[Node]:
    """Return the boxes of a tree, from the top to the bottom."""
    nodes = []
    for line in lines:
        found = re.fullmatch(r"( *)(?:(yes|no): )?(.+)", line)
        assert found is not None
        nodes.append(Node(len(found[1]) // 2, found[2] or "", found[3]))
    return nodes


def draw_tree(title: str, lines: list[str]) -> str:
    """Draw questions with their answers, each below the one that it follows from."""
    left, indent, pitch, height = 24, 62, 48, 32
    parts = [text(left, 34, title, "name")]
    last: dict[int, int] = {}  # where the connections of each depth start
    for number, node in enumerate(read_tree(lines)):
        x, y = left + node.depth * indent, 54 + number * pitch
        kind = "users" if not node.depth else "core" if node.is_question else "end"
        breadth = len(node.words) * CHARACTER + 34
        if node.depth:
            start = x - indent + 20
            parts.append(
                f'<path class="line" d="M{start:g},{last[node.depth - 1] + height} V{y + height / 2:g} H{x - 3}" '
                'marker-end="url(#tip)"/>'
            )
            parts.append(text(start + 6, y + height / 2 - 5, node.answer, "small dim"))
        parts += [
            f'<rect class="box {kind}" x="{x}" y="{y}" width="{breadth:g}" height="{height}" rx="6"/>',
            text(x + 14, y + 21, node.words),
        ]
        last[node.depth] = y
    return page(WIDTH, 54 + len(lines) * pitch, title, parts)


def draw(source: pathlib.Path) -> str:
    """Draw the picture of a text."""
    first, *lines = [line for line in source.read_text().splitlines() if line.strip()]
    title = first.removeprefix("title: ")
    if lines[0].startswith("actors: "):
        return draw_sequence(title, lines[0].removeprefix("actors: ").split(" | "), lines[1:])
    return draw_tree(title, lines)


def main() -> int:
    for source in sorted(PICTURES.glob("*.txt")):
        source.with_suffix(".svg").write_text(draw(source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
