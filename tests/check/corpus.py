"""
The corpus: operators with planted bugs, correct ones, the examples, and corners of the framework.

The operators are in files of their own, as their users would write them; none of them knows of the check. The first
line of each says what it is: a planted bug and what a check should see of it, a correct one, or a corner.
"""

import ast
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(__file__).parent / "operators"
EXAMPLES = ROOT / "examples"

LOADS = {
    "by_prefix": "prefixes.yaml",
    "joined": "joined.yaml",
    "order_dependence": "defaults.yaml",
    "same_port": "webapps.yaml",
    "shared_map": "hosts.yaml",
    "waiting": "defaults.yaml",
    "wrong_owner": "webapps.yaml",
}
"""The objects of operators that need others than one of their kind."""

NEEDING_PODS = frozenset({"rollout"})
"""The operators that need the controllers of the sandbox."""

GROUPS = ("planted", "correct", "example", "corner")

LONELY_EXAMPLES = (
    "01-minimal",
    "02-children",
    "03-exceptions",
    "04-events",
    "05-handlers",
    "07-subhandlers",
    "08-events",
    "09-testing",
    "11-filtering-handlers",
    "13-hooks",
    "14-daemons",
    "15-timers",
    "16-indexing",
    "17-admission",
    "18-walkthrough",
    "20-applied-children",
    "21-conditions",
    "99-all-at-once",
)
"""
The examples that can be run alone in virtual time.

Not among them: 06 (several operators), 10 (nothing of its own), 12 (a program),
19 (conversions alone).
"""


class Subject(NamedTuple):
    """One operator to check."""

    name: str
    group: str
    """``planted``, ``correct``, ``corner`` or ``example``."""
    app: pathlib.Path
    crds: tuple[pathlib.Path, ...]
    loads: tuple[pathlib.Path, ...]
    title: str
    pods: bool = False
    """Whether the sandbox emulates the controllers of deployments, and so on."""


def find_subjects() -> list[Subject]:
    """Return all operators of the corpus, sorted by groups and names."""
    found = [*find_operators(), *find_examples()]
    return sorted(
        found, key=lambda subject: (["planted", "correct", "example", "corner"].index(subject.group), subject)
    )


def find_operators() -> Iterator[Subject]:
    """Yield the operators of this folder."""
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        group, _, title = title.partition(": ")
        if group in ("Planted", "Correct", "Corner"):
            load = LOADS.get(path.stem, "database.yaml" if '"webapps"' not in text else "webapp.yaml")
            crds = [FOLDER / "crd.yaml"]
            if path.stem == "corner_peering":
                crds += [ROOT / "peering.yaml", FOLDER / "peering.yaml"]
            yield Subject(
                path.stem, group.lower(), path, tuple(crds), (FOLDER / load,), title, path.stem in NEEDING_PODS
            )


def find_examples() -> Iterator[Subject]:
    """Yield the examples that can be run alone."""
    for name in LONELY_EXAMPLES:
        folder = EXAMPLES / name
        [app] = [path for path in folder.glob("*.py") if not path.name.startswith("test_")]
        own = folder if (folder / "crd.yaml").exists() else EXAMPLES
        crd, load = (
            (folder / "crd.yaml", folder / "obj.yaml") if own else (EXAMPLES / "crd.yaml", EXAMPLES / "obj.yaml")
        )
        more = [path for path in (folder / "text.yaml", folder / "objects.yaml") if path.exists()]
        title = (ast.get_docstring(ast.parse(app.read_text())) or "").partition("\n")[0]
        yield Subject(name, "example", app, (own / "crd.yaml",), (*more, own / "obj.yaml"), title)
