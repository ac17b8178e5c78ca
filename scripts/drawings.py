"""The pictures of the documentation that are made from the code: `python scripts/drawings.py` writes docs/pictures/.

The architecture is what the modules import in fact: a box a package, an arc for all imports between two packages.
The cycle of handling is drawn by hand, in code, so that both look alike. The chart of the speed is made from
docs/performance.csv. Every picture has a background of its own, so that it is legible on any page; browsers in dark
mode get dark colours.
"""

import csv
import dataclasses
import html
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"

# From the top to the bottom, as in .importlinter; with what each is for.
PACKAGES = {
    "users": ("kopf, kopf.on, kopf.cli, kopf.testing", "what users import and run"),
    "kopf._kits": ("_kits", "tools for developers of operators"),
    "kopf._core.reactor": ("_core.reactor", "starts an operator, watches, processes"),
    "kopf._core.engines": ("_core.engines", "daemons, indexing, admission, peering, posting"),
    "kopf._core.intents": ("_core.intents", "what is declared; what is to be done"),
    "kopf._core.actions": ("_core.actions", "runs a handler once"),
    "kopf._cogs.clients": ("_cogs.clients", "the Kubernetes API"),
    "kopf._cogs.configs": ("_cogs.configs", "settings and storages"),
    "kopf._cogs.structs": ("_cogs.structs", "bodies, diffs, patches, resources"),
    "kopf._cogs.aiokits": ("_cogs.aiokits", "asyncio without a domain"),
    "kopf._cogs.helpers": ("_cogs.helpers", "the Python world"),
}

STYLE = """
    .page { fill: #fbfbfd; stroke: #d7dae2 } .box { stroke: #5b6b8c; fill: #ffffff } text { fill: #20242e }
    .users { fill: #fff4e0 } .kits { fill: #f3ecff } .core { fill: #e3f1ff } .cogs { fill: #e6f6ea }
    .dim { fill: #5c6475 } .arc { fill: none; stroke: #6f7d99 } .arrow { fill: #6f7d99; stroke: none }
    .line { fill: none; stroke: #6f7d99; stroke-width: 1.6 } .end { fill: #fff4e0 }
    .theirs { fill: #c6ccda } .ours { fill: #2f7fc1 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #16181d; stroke: #3a3f4b } .box { stroke: #8b98b5; fill: #20242d } text { fill: #e8eaf0 }
      .users { fill: #3a2f1b } .kits { fill: #2f2740 } .core { fill: #1d3147 } .cogs { fill: #1d3626 }
      .dim { fill: #a9b1c2 } .arc { stroke: #8b98b5 } .arrow { fill: #8b98b5 } .line { stroke: #8b98b5 }
      .end { fill: #3a2f1b } .theirs { fill: #4b5163 } .ours { fill: #4f9ad6 }
    }
    text { font-family: -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; font-size: 13px }
    .name { font-weight: bold; font-size: 14px } .small { font-size: 11px }
"""


def package_of(module: str) -> str:
    """Tell in which box of the drawing the module is."""
    return next((package for package in PACKAGES if f"{module}.".startswith(f"{package}.")), "users")


def find_imports() -> set[tuple[str, str]]:
    """Find which packages import which ones; what is only for type checkers does not count."""
    import grimp

    graph = grimp.build_graph("kopf", exclude_type_checking_imports=True, cache_dir=None)
    pairs = {
        (package_of(module), package_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return {(upper, lower) for upper, lower in pairs if upper != lower}


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    """Put the parts on a page of this size (pixels)."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{html.escape(title)}">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse" markerUnits="userSpaceOnUse"><path class="arrow" d="M0,0 L10,5 L0,10 z"/>'
            '</marker></defs>',
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(content)}</text>'


def draw_architecture() -> str:
    """Draw the packages and what they import of each other."""
    width, left, top, box, pitch, breadth = 860, 24, 56, 46, 62, 430
    rows = {package: top + number * pitch for number, package in enumerate(PACKAGES)}
    parts = [
        text(left, 34, "Packages, from the users down to the foundations", "name"),
        text(width - left, 34, "arcs: imports, always downwards", "dim", "end"),
    ]
    for upper, lower in sorted(find_imports(), key=lambda pair: (rows[pair[0]], rows[pair[1]])):
        start, end = rows[upper] + box / 2 + 6, rows[lower] + box / 2 - 6
        if end < start:
            raise SystemExit(f"{upper} imports {lower}, which is above it")
        reach = 24 + (end - start) * 0.52
        parts.append(
            f'<path class="arc" d="M{left + breadth},{start:g} C{left + breadth + reach:g},{start:g} '
            f'{left + breadth + reach:g},{end:g} {left + breadth + 3},{end:g}" '
            f'stroke-width="1.6" opacity="0.6" marker-end="url(#tip)">'
            f"<title>{upper} imports {lower}</title></path>"
        )
    for package, (name, purpose) in PACKAGES.items():
        kind = package.split(".")[1].strip("_") if "." in package else package
        parts += [
            f'<rect class="box {kind}" x="{left}" y="{rows[package]}" width="{breadth}" height="{box}" rx="6"/>',
            text(left + 14, rows[package] + 20, name, "name"),
            text(left + 14, rows[package] + 37, purpose, "dim"),
        ]
    return page(width, top + len(PACKAGES) * pitch + 6, "The packages of kopf and their imports", parts)


@dataclasses.dataclass
class Step:
    """A box of the cycle: where it is, and what it says."""

    x: int
    y: int
    title: str
    lines: list[str]
    kind: str = ""

    width, height = 236, 78

    def draw(self) -> list[str]:
        return [
            f'<rect class="box {self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" '
            f'height="{self.height}" rx="8"/>',
            text(self.x + self.width / 2, self.y + 23, self.title, "name", "middle"),
            *(
                text(self.x + self.width / 2, self.y + 43 + 17 * number, line, "small dim", "middle")
                for number, line in enumerate(self.lines)
            ),
        ]


def draw_cycle() -> str:
    """Draw what happens from a change of an object to its rest."""
    x, y = (24, 306, 588), (60, 196, 332)
    steps = [
        Step(x[0], y[0], "A change in the cluster", ["a line of the watch-stream,", "or the initial list"], "users"),
        Step(x[1], y[0], "Is it news?", ["not for the echo of our own patch,", "nor for what is not essential"]),
        Step(x[2], y[0], "Why?", ["compared with the state handled last:", "create, update, delete, or resume"]),
        Step(x[2], y[1], "Which handlers?", ["those that match, are not done,", "and are due"], "core"),
        Step(x[2], y[2], "Run", ["async in the loop, sync in a thread:", "result, patch, error, sub-handlers"], "core"),
        Step(x[1], y[2], "One patch", ["status, results, patch, progress;", "finalizer when it is needed"], "cogs"),
        Step(x[1], y[1], "All done?", ["succeeded, or failed for good"]),
        Step(x[0], y[1], "At rest", ["the state is stored as handled last,", "progress and memory are freed"], "end"),
        Step(x[0], y[2], "Sleep", ["until the next handler is due:", "no thread, no request, no lock"]),
    ]
    links = [
        ("M260,99 H304", "", 0, 0),
        ("M542,99 H586", "yes", 554, 92),
        ("M706,138 V194", "", 0, 0),
        ("M706,274 V330", "", 0, 0),
        ("M588,371 H544", "", 0, 0),
        ("M424,332 V276", "", 0, 0),
        ("M306,235 H262", "yes", 273, 228),
        ("M424,196 C424,172 540,172 586,220", "more are due", 470, 166),
        ("M326,274 C306,306 284,336 262,356", "later", 250, 316),
        ("M142,410 V436 H838 V235 H826", "when the time has come, or when the object changes", 424, 430),
        ("M424,60 V40 H12 V235 H22", "no", 300, 34),
    ]
    parts = [part for step in steps for part in step.draw()]
    for path, label, label_x, label_y in links:
        parts.append(f'<path class="line" d="{path}" marker-end="url(#tip)"/>')
        if label:
            parts.append(text(label_x, label_y, label, "small dim", "middle" if label_x > 400 else "start"))
    return page(852, 452, "The cycle of handling: from a change of an object to its rest", parts)


# The rows of docs/performance.csv in the chart: how their names begin, and those of the rows that they belong to.
BARS = [
    ("30,000 of them: CPU", None, "CPU for an object, @kopf.on.event"),
    ("2,000 objects created, with ``@kopf.on.create``", None, "CPU for an object, @kopf.on.create"),
    ("the same: memory in the end", "30,000 of them: CPU", "Memory with 30,000 objects"),
    ("2,000 daemons, idle: memory", None, "Memory for an idle daemon"),
    ("3,000 objects with ``@kopf.index``", None, "Until 3,000 objects are indexed"),
    ("the same (99 %)", "One change at a time: until its handler runs", "Until a handler runs (99 %)"),
    ("the same: the time of one", "Validating webhooks: requests", "Response of a webhook (median)"),
    ("Ready: from the start", None, "From the start to the first call"),
]


def find_row(rows: list[list[str]], name: str, owner: str | None) -> list[str]:
    """Return the only row with this name, or the first one after the row of the owner."""
    starts = [number for number, row in enumerate(rows) if row[0].startswith(owner or name)]
    if len(starts) != 1:
        raise SystemExit(f"docs/performance.csv has {len(starts)} rows that begin with {owner or name!r}")
    return next(row for row in rows[starts[0] :] if row[0].startswith(name))


def draw_speed() -> str:
    """Draw the costs of an operator under this package, as parts of those under upstream kopf."""
    with (ROOT / "docs" / "performance.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    width, left, reach, top, pitch = 852, 284, 440, 66, 38
    parts = [
        text(24, 34, "What an operator costs, compared with upstream kopf", "name"),
        text(width - 24, 34, "shorter is better", "dim", "end"),
    ]
    for number, (name, owner, label) in enumerate(BARS):
        _, theirs, ours, ratio = find_row(rows, name, owner)
        y = top + number * pitch
        length = max(2.0, reach * float(ratio))
        parts += [
            text(left - 12, y + 18, label, "", "end"),
            f'<rect class="theirs" x="{left}" y="{y}" width="{reach}" height="12" rx="2"/>',
            f'<rect class="ours" x="{left}" y="{y + 14}" width="{length:g}" height="12" rx="2"/>',
            text(left + reach + 8, y + 10, f"{theirs}  upstream", "small dim"),
            text(left + length + 8, y + 24, f"{ours}  kopf", "small"),
        ]
    title = "What an operator costs under kopf and under upstream kopf: all values are in the table of performance"
    return page(width, top + len(BARS) * pitch + 8, title, parts)


DRAWINGS = {"architecture.svg": draw_architecture, "cycle.svg": draw_cycle, "speed.svg": draw_speed}


def main() -> int:
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
