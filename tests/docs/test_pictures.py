"""The pictures that are made by scripts are what the scripts make."""

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from snippets import PAGES, ROOT

PICTURES = ROOT / "docs" / "pictures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", load("drawings").DRAWINGS)
def test_drawings_are_current(name):
    drawings = load("drawings")
    assert (PICTURES / name).read_text() == drawings.DRAWINGS[name](), "Run: python scripts/drawings.py"


@pytest.mark.parametrize("source", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.name)
def test_diagrams_are_current(source):
    assert source.with_suffix(".svg").read_text() == load("diagrams").draw(source), "Run: python scripts/diagrams.py"


def test_diagrams_are_within_their_pages():
    diagrams = load("diagrams")
    for source in PICTURES.glob("*.txt"):
        boxes = re.findall(r'<rect class="box[^"]*" x="([\d.-]+)" y="[\d.]+" width="([\d.]+)"', diagrams.draw(source))
        assert len(boxes) > 4
        assert all(0 < float(x) and float(x) + float(breadth) < diagrams.WIDTH for x, breadth in boxes)


def test_pictures_have_texts_for_screen_readers():
    for page in PAGES:
        text = page.read_text()
        assert text.count(".. image:: ") == len(re.findall(r"\.\. image:: \S+\n +:alt: \S+ .{15}", text)), page
        assert all(len(words) > 30 for words in re.findall(r"!\[([^\]]*)\]", text))


def test_the_drawing_has_all_packages():
    text = (PICTURES / "architecture.svg").read_text()
    packages = [path.parent for path in (ROOT / "kopf").glob("_*/*/__init__.py")]
    assert len(packages) > 8
    for package in packages:
        name = ".".join(package.relative_to(ROOT / "kopf").parts)
        assert name in text or name.startswith("_kits."), name


@pytest.mark.long
def test_the_recording_is_of_what_the_demo_prints():
    recording = load("recording")
    now = ["$ make demo", *(line for _, line in recording.record())]
    drawn = recording.read((PICTURES / "demo.svg").read_text())
    assert sorted(map(recording.generalise, drawn)) == sorted(map(recording.generalise, now))


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_legible_anywhere(path):
    root = ET.parse(path).getroot()
    assert root.get("aria-label")
    # Each has a background of its own, so that neither a dark page nor a light one shows through.
    width, height = root.get("width"), root.get("height")
    page = next(child for child in root if child.get("class") == "page")
    assert float(page.get("width")) == float(width) - 1 and float(page.get("height")) == float(height) - 1


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_shown(path):
    assert any(re.search(rf"pictures/{path.name}", page.read_text()) for page in PAGES)
