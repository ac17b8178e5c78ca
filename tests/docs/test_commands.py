"""Whatever commands the pages show are run, and print what is shown."""

import contextlib
import logging
import shutil

import pytest
import yaml
from shells import Shell, environment
from snippets import PAGES, read_page

PAGES_WITH_COMMANDS = [page for page in map(read_page, PAGES) if page.shells]
SOME = {"docs/howto/peering.rst", "docs/howto/metrics.rst"}
"""The pages for each test run; all others are for the long one."""
OBJECTS = [block for page in map(read_page, PAGES) for block in page.objects]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[] if page.name in SOME else [pytest.mark.long])
        for page in PAGES_WITH_COMMANDS
    ],
)
def test_commands_print_what_is_shown(page, empty_sandbox, monkeypatch, folder, hide_clients):
    hide_clients(block.text for block in [*page.files, *page.shells])
    if shutil.which("kubectl") is None and any("kubectl" in block.text for block in page.shells):
        pytest.skip("kubectl is not installed")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))  # `kopf top` looks there for operators
    with contextlib.closing(Shell(folder, page.files)) as shell, _unchanged_logging():
        for block in page.shells:
            shell.run(block)


@contextlib.contextmanager
def _unchanged_logging():
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "aiohttp")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_objects_are_accepted(empty_sandbox):
    for block in OBJECTS:
        for body in yaml.safe_load_all(block.text):
            if "kind" in body and "metadata" in body:
                if "namespace" in body["metadata"]:
                    body["metadata"]["namespace"] = "default"
                try:
                    empty_sandbox.apply(body)
                except Exception as error:
                    error.add_note(block.place)
                    raise
