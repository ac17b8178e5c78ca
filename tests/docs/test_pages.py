"""The pages as a whole: they are linked, complete, and keep to the convention. `make docs` checks more, with Sphinx."""

import dataclasses
import posixpath
import re

import pytest
from snippets import PAGES, PARTS, ROOT, PageError, find_page, read_page

import kopf
import kopf.testing
from kopf._kits.packaging.projects import FILES
from tests.check.corpus import find_operators

DOCS = ROOT / "docs"
NAMES = {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES if path.suffix == ".rst"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_pages(path):
    text = path.read_text()
    linked = re.findall(r":doc:`(?:[^`<]*<)?([^`<>]+)>?`", text)
    folder = path.parent.relative_to(DOCS) if path.suffix == ".rst" else ""
    assert {posixpath.join("/", folder, target).removeprefix("/") for target in linked} <= NAMES
    relative = re.findall(r"\]\((?!https?:)([^)#]+)\)", text) if path.suffix == ".md" else []
    assert all((path.parent / target).exists() for target in relative)


def test_all_pages_are_in_the_table_of_contents():
    listed = re.findall(r"^   (?:\w.*<)?([\w/-]+)>?$", (DOCS / "index.rst").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(NAMES - {"index"})


def test_pages_are_in_one_of_four_parts():
    assert {path.parent.name for path in PAGES if path.parent not in (DOCS, ROOT)} == set(PARTS)
    assert {path.name for path in DOCS.glob("*.rst")} == {"index.rst"}
    assert len({path.stem for path in PAGES}) == len(PAGES), "a page is found by its name alone"


@pytest.mark.parametrize(
    "topic",
    """
    install operator concepts handlers daemons timers kwargs async loading resources filters results errors scopes
    memos indexing admission startup shutdown probes authentication configuration peering cli events hierarchies testing
    embedding deployment continuity idempotence reconciliation patches tips troubleshooting architecture vision
    alternatives migration controller-runtime sandbox performance reliability security
""".split(),
)
def test_each_topic_has_its_page_with_something_to_run(topic):
    page = read_page(find_page(topic))
    only_words = {"concepts", "architecture", "vision", "alternatives", "reliability"}
    assert bool(page.lessons or page.shells) is (topic not in only_words)


def test_the_comparisons_of_the_readme_and_of_the_site_are_the_same():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    text = re.sub(r"\[([^\]]+)\]\(https://[^)]+\)", r"\1", "\n".join(lines))  # each column has a link
    shown = [cell.strip() for line in text.splitlines() if line[:4] != "|---" for cell in line.strip("|").split("|")]
    assert text.count("|") == "\n".join(lines).count("|") and len(re.findall("https://", lines[0])) == 4
    table = find_page("alternatives").read_text().partition(".. list-table::")[2].partition("\n\nCompared")[0]
    cells = [cell.strip().replace("``", "`") for cell in re.findall(r"^   (?:\*| ) -(.*)$", table, re.MULTILINE)]
    assert cells == shown
    assert len(cells) > 60


def test_the_figures_of_the_first_page_are_those_that_were_measured():
    page = (DOCS / "index.rst").read_text()
    measured = (DOCS / "performance.csv").read_text()
    [fast] = re.findall(r"\*\*It is fast\.\*\*(.*?)\n\n", page, re.DOTALL)
    text = " ".join(fast.split())
    figures = re.findall(r"[\d.]+ (?:MB|µs|ms)", text)
    assert len(figures) == 8
    assert all(f",{figure}," in measured for figure in figures)
    ratios = re.findall(r"([\d.]+) (µs|ms) instead of ([\d.]+) \2 [^:]*: ([\d.]+) times less", text)
    assert [less for *_, less in ratios] == [f"{float(much) / float(few):.1f}" for few, _, much, _ in ratios]
    assert len(ratios) == 3
    planted = sum(subject.group == "planted" for subject in find_operators())
    words = {name: " ".join(find_page(name).read_text().split()) for name in ("reliability", "emulation", "checking")}
    for name, figure in [
        ("reliability", "23,145"),
        ("emulation", "7,257"),
        ("emulation", "99.5 %"),
        ("checking", f"all {planted} planted mistakes"),
    ]:
        assert figure in " ".join(page.split())
        assert figure in words[name]


def test_the_documented_image_is_that_of_new_projects():
    [dockerfile] = [block for block, _ in read_page(find_page("deployment")).thorough if block.caption == "Dockerfile"]
    assert dockerfile.text.strip() == FILES["Dockerfile"].strip()


@pytest.mark.parametrize("module", [kopf, kopf.testing], ids=lambda module: module.__name__)
def test_the_reference_has_all_public_names(module):
    text = find_page("api").read_text()
    modules = {"on", "lifecycles", "__version__"}
    assert {name for name in set(module.__all__) - modules if not re.search(rf"\b{name}\b", text)} == set()


def test_all_groups_of_settings_are_spoken_of():
    text = "".join(path.read_text() for path in PAGES)
    groups = {field.name for field in dataclasses.fields(kopf.OperatorSettings)}
    assert {group for group in groups if f"settings.{group}." not in text} == set()


@pytest.mark.parametrize(
    "text, problem",
    [
        (".. code-block:: python\n\n    print()\n", "no check follows"),
        ("Like this::\n\n    print()\n", "which language"),
        (".. code-block:: python\n\n    x\n\n.. not run:\n", "has a reason"),
        (".. check:\n\n    print()\n", "no Python code"),
        (".. code-block:: text\n\n    x\n", "nothing is done"),
        (".. code-block:: dockerfile\n\n    FROM x\n", "nothing is done"),
    ],
)
def test_code_cannot_be_left_out_silently(text, problem, monkeypatch, tmp_path):
    monkeypatch.setattr("snippets.ROOT", tmp_path)
    path = tmp_path / "page.rst"
    path.write_text(text)
    with pytest.raises(PageError, match=problem):
        read_page(path)
