"""The addresses that pages had before lead to pages: those of the flat layout, and those of upstream's site."""

import importlib.util
import types

import pytest
from snippets import PAGES, ROOT

DOCS = ROOT / "docs"
NAMES = {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES if path.suffix == ".rst"}

FLAT = """
    admission alternatives api architecture async authentication checking children cli concepts conditions configuration
    continuity controller-runtime daemons deployment election embedding errors events filters handlers hierarchies
    idempotence indexing inspection install kwargs levels loading manifests memos metrics migration models naming
    patches peering performance probes quickstart reconciliation reliability resources results sandbox scopes security
    settings shutdown soak startup testing timers tips traces troubleshooting vision walkthrough writes
""".split()
UPSTREAM = """
    install concepts walkthrough/problem walkthrough/prerequisites walkthrough/resources walkthrough/starting
    walkthrough/creation walkthrough/updates walkthrough/diffs walkthrough/deletion walkthrough/cleanup handlers
    daemons timers kwargs async loading resources filters patches results errors scopes memos indexing admission
    startup shutdown probing authentication configuration peering cli events hierarchies testing embedding docker
    deployment continuity idempotence reconciliation tips tips-and-tricks troubleshooting vision naming critiques
    alternatives status impressum minikube contributing architecture packages/kopf
""".split()


def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("redirects", DOCS / "_ext" / "redirects.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted({*FLAT, *UPSTREAM}))
def test_a_former_address_leads_to_a_page(name):
    assert load().read_redirects(DOCS / "redirects.txt").get(name) in NAMES


def test_no_page_is_hidden_by_a_redirect():
    redirects = load().read_redirects(DOCS / "redirects.txt")
    assert not set(redirects) & NAMES
    assert {target.partition("#")[0] for target in redirects.values()} <= NAMES
    assert {old.partition("#")[0] for old in redirects if "#" in old} <= NAMES, "sections move from pages that exist"


@pytest.mark.parametrize(
    "old, new, suffix, href",
    [
        ("handlers", "reference/handlers", ".html", "reference/handlers.html"),
        ("walkthrough/diffs", "tutorial/operator", ".html", "../tutorial/operator.html"),
        ("walkthrough/diffs", "tutorial/operator", "/", "../../tutorial/operator/"),
    ],
)
def test_a_redirect_is_relative_and_keeps_the_section(old, new, suffix, href):
    builder = types.SimpleNamespace(get_target_uri=lambda name: f"{name}{suffix}")
    page = load().render(types.SimpleNamespace(builder=builder), old, new)
    assert f'url={href}"' in page and f'href="{href}"' in page
    assert f'location.replace("{href}" + location.search + location.hash)' in page


def test_sections_that_have_moved_are_left_by_a_script_of_their_former_page():
    builder = types.SimpleNamespace(get_relative_uri=lambda page, name: "" if page == name else f"{name}.html")
    redirects = {"page#a": "other", "page#b": "other#c", "page#d": "page#e", "pages#f": "other", "old": "page"}
    script = load().render_script(types.SimpleNamespace(builder=builder), "page", redirects)
    assert '{"#a": "other.html", "#b": "other.html#c", "#d": "#e"}' in script
    assert "location.hash" in script
    assert load().render_script(types.SimpleNamespace(builder=builder), "other", redirects) == ""


def test_a_comment_begins_after_a_space(tmp_path):
    path = tmp_path / "redirects.txt"
    path.write_text("# all of it\na#b c#d  # the rest\n")
    assert load().read_redirects(path) == {"a#b": "c#d"}


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("gone", "page", ""),
        ("page#former", "page#there", ""),
        ("gone", "gone", "there is no page gone"),
        ("page", "page", "page is a page itself"),
        ("gone#former", "page", "gone is no page itself"),
        ("gone", "page#not-there", "page has no section #not-there"),
        ("page#there", "page", "page has a section #there"),
    ],
)
def test_redirects_that_lead_nowhere_are_found(old, new, problem, tmp_path):
    (tmp_path / "page.html").write_text('<section id="there">')
    builder = types.SimpleNamespace(get_outfilename=lambda name: tmp_path / f"{name}.html")
    app = types.SimpleNamespace(builder=builder, env=types.SimpleNamespace(found_docs={"page"}))
    assert load().find_problem(app, old, new) == problem


def test_a_line_of_another_form_is_an_error(tmp_path):
    path = tmp_path / "redirects.txt"
    for text in ("handlers", "handlers a\nhandlers b", "handlers to here"):
        path.write_text(text)
        with pytest.raises(ValueError, match="each old one once"):
            load().read_redirects(path)
