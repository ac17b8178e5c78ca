import pytest

import kopf


@pytest.fixture(autouse=True)
def default_registry():
    """The default registry of the test: what its commands declare in this process does not reach other tests."""
    former, registry = kopf.get_default_registry(), kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    yield registry
    kopf.set_default_registry(former)
