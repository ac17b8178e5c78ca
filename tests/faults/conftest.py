"""What goes wrong in clusters, shown to operators in the loop of a test."""

from collections.abc import Iterator

import pytest
from operatorworld import World, new_world


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a sandbox, and operators with handlers of the test in its own loop."""
    with new_world() as world:
        yield world
