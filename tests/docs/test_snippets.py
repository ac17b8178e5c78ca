"""Whatever code the pages show is run, and does what the checks after it say."""

import subprocess
import sys

import pytest
from snippets import PAGES, read_page
from stage import Stage

LESSONS = [lesson for path in PAGES for lesson in read_page(path).lessons]

SOME = {"README.md", "docs/index.rst", "docs/reference/handlers.rst"}
"""The pages for each test run; all others are for the long one."""


@pytest.mark.parametrize(
    "lesson",
    [
        pytest.param(
            lesson,
            id=lesson.code[0].place,
            marks=[] if lesson.code[0].place.partition(":")[0] in SOME else [pytest.mark.long],
        )
        for lesson in LESSONS
    ],
)
def test_snippets_do_what_their_checks_say(lesson, sandbox, namespace, folder, hide_clients):
    hide_clients(block.text for block in [*read_page(lesson.check.page).files, *lesson.code, lesson.check])
    Stage(sandbox, namespace).perform(lesson)


def test_snippets_import_what_they_use_and_use_what_they_import(tmp_path):
    for number, lesson in enumerate(LESSONS):
        file = tmp_path / f"{number:03}_{lesson.code[0].place.replace('/', '_').replace(':', '_')}.py"
        file.write_text("\n".join(block.text for block in lesson.code))
    process = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F401,F821,F841,E9", tmp_path],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout


def test_no_code_is_left_out():
    # Think twice before you add to this list: what is not run is wrong sooner or later.
    exempted = {(page.name, reason) for page in map(read_page, PAGES) for _, reason in page.exempted}
    assert exempted == set()
