"""The recording of the demo, docs/pictures/demo.svg: `python scripts/recording.py` runs the demo and draws its output.

Every line is what `make demo` has printed, at the moment when it has printed it, but slower. Dates are left out, and
long lines are cut, as they do not fit into a picture. Where nothing moves, all lines are there at once.
"""

import html
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
COLUMNS = 118
PITCH, CHAR = 19, 7.85  # pixels
SLOWER = 2.0

STYLE = """
    .page { fill: #1b1f27; stroke: #3d4452 } .bar { fill: #2a303b } .dot { fill: #59637a }
    text { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 13px; fill: #d7dce6 }
    .title { fill: #9aa5bb } .command { fill: #ffffff; font-weight: bold } .step { fill: #8fd3ff }
    .warning { fill: #ffcf7a } .error { fill: #ff9a8f } .log { fill: #c3cad8 }
    .line { animation: appear 0.2s both }
    @keyframes appear { from { opacity: 0 } to { opacity: 1 } }
    @media (prefers-reduced-motion: reduce) { .line { animation: none } }
"""


def record() -> list[tuple[float, str]]:
    """Run the demo; give its lines, each with the time since the beginning (seconds)."""
    began, lines = time.monotonic(), []
    command = [sys.executable, "-u", str(ROOT / "scripts" / "demo.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = [(time.monotonic() - began, line.rstrip("\n")) for line in process.stdout]
    if process.returncode:
        raise SystemExit("\n".join(line for _, line in lines))
    return lines


def shorten(line: str) -> str:
    """Make a line fit into the picture."""
    line = re.sub(r"\[\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+\]", r"[\1]", line)
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"


def classify(line: str) -> str:
    for kind, sign in {"step": "==>", "error": "[ERROR", "warning": "[WARNING", "command": "$ "}.items():
        if line.startswith(sign) or sign in line[:70]:
            return kind
    return "log"


def draw(lines: list[tuple[float, str]]) -> str:
    """Draw the terminal."""
    shown = [(0.0, "$ make demo"), *((0.6 + moment * SLOWER, shorten(line)) for moment, line in lines)]
    width, height = round(COLUMNS * CHAR) + 44, 62 + len(shown) * PITCH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="What make demo prints">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9"/>',
        f'<path class="bar" d="M1,34 V10 Q1,1 10,1 H{width - 10} Q{width - 1},1 {width - 1},10 V34 z"/>',
        *(f'<circle class="dot" cx="{22 + 20 * number}" cy="18" r="6"/>' for number in range(3)),
        f'<text class="title" x="{width / 2:g}" y="22" text-anchor="middle">make demo</text>',
    ]
    parts += [
        f'<text class="line {classify(line)}" style="animation-delay: {moment:.1f}s" xml:space="preserve" '
        f'x="22" y="{58 + number * PITCH}">{html.escape(line)}</text>'
        for number, (moment, line) in enumerate(shown)
    ]
    return "\n".join([*parts, "</svg>", ""])


def read(picture: str) -> list[str]:
    """Give the lines of a picture."""
    return [html.unescape(line) for line in re.findall(r'<text class="line [^>]*>(.*?)</text>', picture)]


def generalise(line: str) -> str:
    """Replace what is different each time: times, names of temporary folders, ports, orders of equal things."""
    line = re.sub(r"kopf-sandbox-\w+", "kopf-sandbox-X", shorten(line))
    return re.sub(r"\d+", "0", line)[: COLUMNS - 8]


if __name__ == "__main__":
    PICTURE.write_text(draw(record()))
