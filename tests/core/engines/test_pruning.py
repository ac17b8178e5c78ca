"""Which children are deleted when a run has succeeded."""

import pytest

from kopf._cogs.structs.references import Resource
from kopf._core.engines.adoption import ChildKey
from kopf._core.engines.pruning import PruneRules, is_unwanted

KEY = ChildKey(Resource('', 'v1', 'configmaps', namespaced=True), 'ns', 'child')
RULES = PruneRules('owner', 'operator', 'fn', (), {})


def child(*, owner='owner', operator='operator', handler='fn', **metadata):
    labels = {} if operator is None else {'kopf.dev/pruned-by': operator}
    annotations = {} if handler is None else {'kopf.dev/handler': handler}
    annotations |= metadata.pop('annotations', {})
    references = [{'uid': owner}]
    return {'metadata': {'labels': labels, 'annotations': annotations, 'ownerReferences': references, **metadata}}


def test_a_child_that_is_not_applied_any_more_is_unwanted():
    assert is_unwanted(KEY, child(), RULES)
    assert not is_unwanted(KEY, child(), RULES._replace(wanted=[KEY]))


@pytest.mark.parametrize(
    'raw',
    [
        child(owner='another'),
        child(operator=None),
        child(operator='another'),
        child(annotations={'kopf.dev/keep': 'true'}),
        child(deletionTimestamp='now'),
    ],
    ids=['owner', 'unlabelled', 'operator', 'kept', 'ending'],
)
def test_what_is_not_to_be_pruned_stays(raw):
    assert not is_unwanted(KEY, raw, RULES)


def test_children_of_other_handlers_stay():
    assert not is_unwanted(KEY, child(handler='other'), RULES._replace(others={'other': ()}))
    assert not is_unwanted(KEY, child(handler='other'), RULES._replace(others={'other': None}))
    # Another handler has taken it over in memory, while the event of that is still to come.
    assert not is_unwanted(KEY, child(), RULES._replace(others={'other': [KEY]}))


@pytest.mark.parametrize(
    ('others', 'unwanted'),
    [
        ({}, True),
        ({'other': ()}, True),
        ({'other': None}, False),
        ({'other': [KEY]}, False),
        ({'a': (), 'b': None}, False),
    ],
)
def test_children_of_former_handlers_are_unwanted_when_all_others_are_known_not_to_want_them(others, unwanted):
    assert is_unwanted(KEY, child(handler='former'), RULES._replace(others=others)) is unwanted
    assert is_unwanted(KEY, child(handler=None), RULES._replace(others=others)) is unwanted
