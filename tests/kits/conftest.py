import pytest

import kopf


@pytest.fixture(autouse=True)
def default_registry():
    """Set a new default registry for each test, as its commands can declare handlers in this process."""
    former, registry = kopf.get_default_registry(), kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    yield registry
    kopf.set_default_registry(former)
