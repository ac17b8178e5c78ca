"""A whole operator in the loop of a test, against a sandbox of its own."""

from collections.abc import Iterator

import pytest
from operatorworld import World, new_world


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a sandbox, and operators with handlers of the test in its own loop."""
    with new_world(virtual_time=hasattr(request.function, 'in_virtual_time')) as world:
        yield world
