import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import errors
from kopf._cogs.clients.serverside import ApplyConflictError, ApplyInvalidError, ApplyUnsupportedError, apply_object
from kopf._cogs.structs.references import Resource

DEPLOYMENTS = Resource('apps', 'v1', 'deployments', 'Deployment', namespaced=True)
NAMESPACES = Resource('', 'v1', 'namespaces', 'Namespace', namespaced=False)
PATH = '/apis/apps/v1/namespaces/ns/deployments/web'
DESIRED = {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': 'web'}, 'spec': {'replicas': 3}}
STORED = {**DESIRED, 'metadata': {'name': 'web', 'namespace': 'ns', 'uid': 'uid1', 'resourceVersion': '5'}}


def failure(status, message, *causes, reason='Reason'):
    details = {'causes': [dict(zip(('reason', 'message', 'field'), cause, strict=True)) for cause in causes]}
    data = {'kind': 'Status', 'code': status, 'message': message, 'reason': reason, 'details': details}
    return status, data


@pytest.fixture
def apply(client):
    async def apply(**options):
        arguments = {'resource': DEPLOYMENTS, 'namespace': 'ns', 'name': 'web', 'body': DESIRED}
        return await apply_object(client, **{**arguments, 'field_manager': 'kopf-me', **options})

    return apply


async def test_the_desired_fields_are_sent_under_the_name_of_the_manager(apply, server):
    server.add('PATCH', PATH, STORED)
    assert await apply() == STORED
    [seen] = server.seen
    assert seen.headers['Content-Type'] == 'application/apply-patch+yaml'
    assert json.loads(seen.body) == DESIRED
    assert seen.query == {'fieldManager': 'kopf-me'}


async def test_force_and_dry_run_are_requested_only_if_wanted(apply, server):
    server.add('PATCH', PATH, STORED)
    await apply(force=True, dry_run=True)
    assert server.seen[0].query == {'fieldManager': 'kopf-me', 'force': 'true', 'dryRun': 'All'}


async def test_cluster_scoped_objects_have_no_namespace_in_the_path(apply, server):
    server.add('PATCH', '/api/v1/namespaces/prod', STORED)
    assert await apply(resource=NAMESPACES, namespace=None, name='prod') == STORED


async def test_a_conflict_names_the_other_managers_and_their_fields(apply, server):
    message = 'Apply failed with 3 conflicts: …'
    server.add(
        'PATCH',
        PATH,
        failure(
            409,
            message,
            ('FieldManagerConflict', 'conflict with "hpa" with subresource "scale" using apps/v1', '.spec.replicas'),
            (
                'FieldManagerConflict',
                'conflict with "kubectl \\"x\\"" using apps/v1 at 2026-01-01T00:00:00Z',
                '.spec.paused',
            ),
            ('FieldManagerConflict', 'conflict with "hpa" using apps/v1beta1', '.spec.replicas'),
            ('FieldManagerConflict', 'conflict with "hpa"', '.spec.template.spec.containers[name="c"].image'),
        ),
    )
    with pytest.raises(ApplyConflictError) as e:
        await apply()
    assert e.value.conflicts == {
        'hpa': ['spec.replicas', 'spec.template.spec.containers[name="c"].image'],
        'kubectl "x"': ['spec.paused'],
    }
    text = str(e.value)
    assert "deployments.v1.apps ns/web cannot be applied by the field manager 'kopf-me'" in text
    assert "'hpa' owns spec.replicas, spec.template" in text
    assert 'force=True' in text
    assert '\n' not in text
    assert isinstance(e.value.__cause__, errors.APIConflictError)
    assert (e.value.status, e.value.reason) == (409, 'Reason')


@pytest.mark.parametrize(
    'cause',
    [
        (),
        [('', 'Precondition failed: UID in precondition: a, UID in object meta: b', 'metadata.uid')],
    ],
)
async def test_other_conflicts_stay_as_they_are(apply, server, cause):
    server.add('PATCH', PATH, failure(409, 'the object has been modified', *cause))
    with pytest.raises(errors.APIConflictError, match='the object has been modified') as e:
        await apply()
    assert not isinstance(e.value, ApplyConflictError)


@pytest.mark.parametrize('status', [405, 415])
async def test_servers_without_server_side_apply_are_named(apply, server, status):
    server.add('PATCH', PATH, failure(status, 'the body of the request was in an unknown format'))
    with pytest.raises(ApplyUnsupportedError, match='does not support server-side apply of deployments.v1.apps') as e:
        await apply()
    assert e.value.status == status


@pytest.mark.parametrize(
    'message',
    [
        'Invalid value: {"matchLabels":{"app":"b"}}: field is immutable',
        'Invalid value: "b": cannot change roleRef',
        'Invalid value: "1.1.1.1": may not change once set',
        "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
        'Forbidden: pod updates may not change fields other than `spec.containers[*].image`',
        'Forbidden: field is immutable when `immutable` is set',
    ],
)
async def test_immutable_fields_are_named_with_the_remedy(apply, server, message):
    text = f'Deployment.apps "web" is invalid: spec.selector: {message}'
    cause = ('FieldValueInvalid', message, 'spec.selector')
    server.add('PATCH', PATH, failure(422, text, cause, reason='Invalid'))
    with pytest.raises(ApplyInvalidError, match='spec.selector cannot be changed after the creation') as e:
        await apply()
    assert e.value.immutable_fields == e.value.fields == ['spec.selector']


async def test_invalid_fields_are_named(apply, server):
    causes = [
        ('FieldValueRequired', 'Required value', 'spec.template.spec.containers[0].name'),
        ('FieldValueInvalid', 'Invalid value: -1: must be greater than or equal to 0', 'spec.replicas'),
    ]
    server.add('PATCH', PATH, failure(422, 'Deployment.apps "web" is invalid: […]', *causes))
    with pytest.raises(ApplyInvalidError, match='would be invalid') as e:
        await apply()
    assert e.value.fields == ['spec.template.spec.containers[0].name', 'spec.replicas']
    assert not e.value.immutable_fields


@pytest.mark.parametrize(
    'reasons, fields',
    [
        ('.spec.nope: field not declared in schema', ['spec.nope']),
        (
            'errors:\n  .spec.nope: field not declared in schema\n'
            '  .spec.replicas: expected numeric (int or float), got string',
            ['spec.nope', 'spec.replicas'],
        ),
    ],
)
async def test_unknown_fields_are_a_mistake_and_not_tried_again(apply, server, sleeps, reasons, fields):
    # API servers respond with 500 to that.
    message = f'failed to create typed patch object (ns/web; apps/v1, Kind=Deployment): {reasons}'
    server.add('PATCH', PATH, failure(500, message))
    with pytest.raises(ApplyInvalidError) as e:
        await apply()
    assert e.value.fields == fields
    assert '\n' not in str(e.value)
    assert len(server.seen) == 1
    assert not sleeps


async def test_refusals_without_causes_are_quoted(apply, server):
    server.add('PATCH', PATH, (422, {'kind': 'Status', 'code': 422, 'message': 'the server rejected our request'}))
    with pytest.raises(ApplyInvalidError, match='cannot be applied: the server rejected our request') as e:
        await apply()
    assert e.value.fields == []


async def test_server_errors_are_tried_again(apply, server, sleeps):
    server.add('PATCH', PATH, 500, STORED)
    assert await apply() == STORED
    assert sleeps == [1]


async def test_responses_that_are_no_objects_are_refused(apply, server):
    server.add('PATCH', PATH, ['nope'])
    with pytest.raises(errors.APIServerError, match=r"apply of deployments.v1.apps ns/web is no object: \['nope'\]"):
        await apply()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(['causes', 'field', 'message', 'reason', 'other']), children, max_size=4)
    ),
    max_leaves=20,
)


@given(details=st.dictionaries(st.just('causes'), json_values))
def test_details_of_any_types_are_survived(details):
    conflict = ApplyConflictError('message', status=409, details=details)
    assert all(conflict.conflicts.values())
    invalid = ApplyInvalidError('message', status=422, details=details)
    assert set(invalid.immutable_fields) <= set(invalid.fields)
