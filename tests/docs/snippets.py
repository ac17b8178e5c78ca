"""The blocks of code in the pages: what they are, and what is to be done with them.

The convention is in CONTRIBUTING.md, "Documentation". It needs neither Sphinx nor docutils: the instructions are
comments of reStructuredText (or of HTML, in Markdown), so that every renderer hides them.
"""

import dataclasses
import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("tutorial", "howto", "explanation", "reference")
PAGES = [
    ROOT / "docs" / "index.rst",
    *sorted(path for part in PARTS for path in ROOT.glob(f"docs/{part}/*.rst")),
    ROOT / "README.md",
]
SHELLS = ("bash", "console")
KINDS = ("python", *SHELLS, "yaml", "text", "dockerfile", "go")

_CODE = re.compile(r"(?P<indent> *)\.\. code-block::(?: (?P<kind>\S+))?$")
_CAPTION = re.compile(r" *:caption: (?P<caption>.+)$")
_NOTES = "check|check without operator|file|thorough|compiled|not run"
_NOTE = re.compile(rf"(?P<indent> *)\.\. (?P<kind>{_NOTES}):(?P<text>.*)$")
_FENCE = re.compile(r"(?P<indent> *)```(?P<kind>\w*)$")
_HIDDEN = re.compile(rf"(?P<indent> *)<!-- (?P<kind>{_NOTES}):(?P<text>.*?)(?P<end>-->)?$")


class PageError(Exception):
    """A page breaks the convention; the message names the place."""


def find_page(name: str) -> pathlib.Path:
    """Return the page of this name, whichever part of the documentation it is in."""
    [path] = [path for path in PAGES if path.stem == name]
    return path


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code, or an instruction about the blocks before it (of the kinds in `_NOTES`)."""

    page: pathlib.Path
    line: int  #: where the text begins, from 1
    kind: str
    text: str
    caption: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def compile(self):
        """Compile it as Python code that knows where it comes from: tracebacks show the lines of the page."""
        return compile("\n" * (self.line - 1) + self.text, self.page, "exec")


@dataclasses.dataclass
class Lesson:
    """The blocks that are run together, with the check that follows them, and what they are said to print."""

    check: Block
    code: list[Block]
    objects: list[Block]
    outputs: list[Block] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page:
    """All that is run in a page, and what is not."""

    path: pathlib.Path
    lessons: list[Lesson]
    shells: list[Block]
    files: list[Block]
    objects: list[Block]
    thorough: list[tuple[Block, Block]]  #: what takes long or a package index, each with the instruction for it
    compiled: list[tuple[Block, Block]]  #: what is in Go, each with the file around it
    exempted: list[tuple[Block, str]]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


def read_blocks(path: pathlib.Path) -> list[Block]:
    """Find the blocks of a page, in their order."""
    lines = path.read_text().splitlines()
    return list(_read_markdown(path, lines) if path.suffix == ".md" else _read_rst(path, lines))


def _read_rst(path, lines):
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if code := _CODE.match(line):
            caption = None
            while number < len(lines) and lines[number].strip().startswith(":"):
                if found := _CAPTION.match(lines[number]):
                    caption = found["caption"]
                number += 1
            number, start, text = _take_indented(lines, number, len(code["indent"]))
            yield Block(path, start, code["kind"] or "?", text, caption)
        elif note := _NOTE.match(line):
            first, begin = note["text"].strip(), number
            number, start, text = _take_indented(lines, number, len(note["indent"]))
            yield Block(path, start if text else begin, note["kind"], f"{first}\n{text}".strip("\n"))
        elif line.rstrip().endswith("::") and not line.lstrip().startswith(".."):
            yield Block(path, number, "?", line)


def _take_indented(lines, number, indent):
    """Collect the indented lines from here on; return the next line's number, the first one's from 1, and the text."""
    taken, start = [], None
    while number < len(lines):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        if line.strip() and start is None:
            start = number + 1
        if start is not None:
            taken.append(line)
        number += 1
    return number, start or number, textwrap.dedent("\n".join(taken)).rstrip() + "\n"


def _read_markdown(path, lines):
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if fence := _FENCE.match(line):
            start = number
            while not lines[number].strip().startswith("```"):
                number += 1
            text = textwrap.dedent("\n".join(lines[start:number])) + "\n"
            number += 1
            yield Block(path, start + 1, fence["kind"] or "?", text)
        elif note := _HIDDEN.match(line):
            start = number
            if not note["end"]:
                while not lines[number].strip() == "-->":
                    number += 1
            text = "\n".join(lines[start:number])
            number += not note["end"]
            yield Block(path, start + 1, note["kind"], f"{note['text'].strip()}\n{text}".strip("\n"))


def read_page(path: pathlib.Path) -> Page:
    """Arrange the blocks of a page by what is to be done with them.

    :raises PageError: there is a block of which it is not said what is to be done with it.
    """
    page = Page(path, [], [], [], [], [], [], [])
    code: list[Block] = []
    objects: list[Block] = []
    idle: list[Block] = []  # those with which nothing is done: they have to be exempted
    previous: Block | None = None
    for block in read_blocks(path):
        outputs = page.lessons[-1].outputs if page.lessons and not code else idle
        if block.kind in ("check", "check without operator"):
            if not code:
                raise PageError(f"{block.place}: the check has no Python code to check.")
            page.lessons.append(Lesson(block, code, objects))
            code, objects, previous = [], [], None
            continue
        if block.kind == "file":
            if previous is None or not block.text.strip():
                raise PageError(f"{block.place}: it names the file that the block before it is in.")
            page.files.append(dataclasses.replace(previous, caption=block.text.strip()))
            continue
        if block.kind in ("not run", "thorough", "compiled"):
            if previous is None or not (block.text.strip() or block.kind == "thorough"):
                raise PageError(f"{block.place}: an exemption follows a block, and has a reason.")
            for blocks in (code, objects, idle, outputs, page.shells, page.objects):
                blocks[:] = [other for other in blocks if other is not previous]
            if block.kind == "not run":
                page.exempted.append((previous, " ".join(block.text.split())))
            else:
                (page.thorough if block.kind == "thorough" else page.compiled).append((previous, block))
            previous = None
            continue
        places = {
            "python": [code],
            "yaml": [objects, page.objects],
            "text": [outputs],
            "dockerfile": [idle],
            "go": [idle],
            **dict.fromkeys(SHELLS, [page.shells]),
        }.get(block.kind)
        if places is None:
            raise PageError(f"{block.place}: say which language it is, one of: {', '.join(KINDS)}.")
        for place in [*places, page.files] if block.caption else places:
            place.append(block)
        previous = block
    if code:
        raise PageError(f"{code[0].place}: no check follows this code; see CONTRIBUTING.md.")
    if idle:
        raise PageError(f"{idle[0].place}: nothing is done with this block; say why.")
    return page
