"""Which children are deleted when a run has succeeded."""

import pytest

from kopf._cogs.clients.errors import APIConnectionError, APIForbiddenError, APITooManyRequestsError
from kopf._cogs.structs.references import Resource
from kopf._core.engines.adoption import ChildKey
from kopf._core.engines.pruning import DeletionRefusedError, PruneRules, Refusals, is_unwanted

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


@pytest.mark.parametrize(('wanted', 'unwanted'), [((), True), ([KEY], False), (None, False)])
def test_children_of_another_handler_with_the_same_id_stay(wanted, unwanted):
    assert is_unwanted(KEY, child(), RULES._replace(others={'fn': wanted})) is unwanted


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


@pytest.mark.parametrize('handler', ['fn', 'other'])
@pytest.mark.parametrize(('wanted', 'unwanted'), [((), True), (None, False), ([KEY], False)])
def test_children_of_a_kind_that_their_handler_has_left_to_others_can_be_wanted_by_these(handler, wanted, unwanted):
    others = {'third': wanted} if handler == 'fn' else {'other': (), 'third': wanted}
    rules = RULES._replace(others=others, former={handler})
    assert is_unwanted(KEY, child(handler=handler), rules) is unwanted


def test_all_refusals_are_raised_as_one_error():
    refusals = Refusals()
    refusals.check()
    for number in range(12):
        with refusals.collecting(KEY._replace(name=f'child{number}')):
            raise APIForbiddenError("denied", status=403, reason='Forbidden')
    with pytest.raises(DeletionRefusedError, match=r".*child0: denied; .*child9: denied; and 2 more") as caught:
        refusals.check()
    assert (caught.value.status, caught.value.reason) == (403, 'Forbidden')


@pytest.mark.parametrize('error', [APIConnectionError("lost"), APITooManyRequestsError("Too many requests")])
def test_errors_of_the_whole_server_stop_the_pruning_at_once(error):
    with pytest.raises(type(error)), Refusals().collecting(KEY):
        raise error
