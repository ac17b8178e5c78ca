"""Ids of handlers whose progress is stored where something else is stored, too."""

import pytest

import kopf
from kopf._core.intents.mistakes import DeclarationError
from kopf._core.intents.record_places import check_places, find_shared_places


@pytest.fixture
def persistence():
    return kopf.OperatorSettings().persistence


def declare(*ids, resource='kopfexamples', registry=None, **options):
    registry = kopf.OperatorRegistry() if registry is None else registry
    for each in ids:
        kopf.on.create(resource, id=each, registry=registry, **options)(lambda **_: None)
    return registry


@pytest.mark.parametrize('key', ['last-handled-configuration', 'last-handled-configuration-packed'])
def test_handlers_cannot_overwrite_the_last_handled_configuration(persistence, key):
    pattern = (
        rf"^Handler '{key}' \(.*test_record_places.py:\d+\) would store its progress in the annotation "
        rf"'kopf.zalando.org/{key}' .* Rename the function, or give it another id=.$"
    )
    with pytest.raises(DeclarationError, match=pattern):
        check_places(declare('fn', key), persistence)


def test_the_annotations_of_the_storages_in_use_are_compared(persistence):
    persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix='my.dev')
    check_places(declare('last-handled-configuration'), persistence)
    persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
        [kopf.StatusDiffBaseStorage(), kopf.AnnotationsDiffBaseStorage(prefix='my.dev', key='fn.last')]
    )
    check_places(declare('last-handled-configuration'), persistence)
    with pytest.raises(DeclarationError, match="'my.dev/fn.last'"):
        check_places(declare('fn/last'), persistence)
    persistence.progress_storage = kopf.StatusProgressStorage()
    check_places(declare('fn/last'), persistence)


def test_handlers_that_store_no_progress_can_have_any_id(persistence):
    registry = kopf.OperatorRegistry()
    kopf.on.event('kopfexamples', id='last-handled-configuration', registry=registry)(lambda **_: None)
    kopf.daemon('kopfexamples', id='last-handled-configuration', registry=registry)(lambda **_: None)
    check_places(registry, persistence)
    assert not list(find_shared_places(registry, persistence))


class OwnProgress(kopf.SmartProgressStorage):
    def store(self, *, key, record, body, patch):
        """Store the records elsewhere."""


class OwnDiffBase:
    def fetch(self, *, body):
        """Fetch the state from elsewhere."""


def test_storages_of_ones_own_are_not_judged(persistence):
    registry = declare('last-handled-configuration', 'f/x', 'f.x')
    persistence.progress_storage = OwnProgress()
    check_places(registry, persistence)
    assert not list(find_shared_places(registry, persistence))
    persistence.progress_storage, persistence.diffbase_storage = kopf.SmartProgressStorage(), OwnDiffBase()
    check_places(registry, persistence)


def test_ids_of_one_kind_with_the_same_annotation_are_told(persistence):
    (text,) = find_shared_places(declare('f/x', 'other', 'f.x'), persistence)
    assert text.startswith("Handler 'f/x' (")
    assert "Handler 'f.x' (" in text
    assert "store their progress in the same annotation, 'kopf.zalando.org/f.x'" in text


def test_ids_with_annotations_of_their_own_are_not_told(persistence):
    registry = declare('f/x', 'f/x', 'f/y', 'F/x')  # the same id twice is another mistake, with a message of its own
    declare('f.x', resource='pods', registry=registry)
    assert not list(find_shared_places(registry, persistence))
    persistence.progress_storage = kopf.StatusProgressStorage()
    assert not list(find_shared_places(declare('f/x', 'f.x'), persistence))
