"""Children of the handled object: what is set, what is left alone, and in objects of which libraries."""

import collections
import copy
import types
from collections.abc import Iterator
from typing import Any

import pytest

import kopf
from kopf._core.actions.execution import cause_var

OWNER = kopf.Body(
    {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {'name': 'parent', 'uid': 'uid1', 'namespace': 'ns1', 'labels': {'a': '1', 'b': '2'}},
    }
)
REFERENCE = {
    'controller': True,
    'blockOwnerDeletion': True,
    'apiVersion': 'kopf.dev/v1',
    'kind': 'KopfExample',
    'name': 'parent',
    'uid': 'uid1',
}
CLUSTER_OWNER = kopf.Body({'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': 'node', 'uid': 'uid2'}})


@pytest.fixture
def handling() -> Iterator[None]:
    """Do as in a handler of the owner."""
    token = cause_var.set(types.SimpleNamespace(body=OWNER))
    yield
    cause_var.reset(token)


# Owners.


def test_owner_of_the_current_handler(handling: None) -> None:
    explicit: dict[str, Any] = {}
    implicit: dict[str, Any] = {}
    kopf.adopt(explicit, OWNER)
    kopf.adopt(implicit)
    assert (
        implicit
        == explicit
        == {
            'metadata': {
                'ownerReferences': [REFERENCE],
                'generateName': 'parent-',
                'namespace': 'ns1',
                'labels': {'a': '1', 'b': '2'},
            }
        }
    )


@pytest.mark.parametrize(
    'fn',
    [
        kopf.adopt,
        kopf.append_owner_reference,
        kopf.remove_owner_reference,
        kopf.label,
        kopf.harmonize_naming,
        kopf.adjust_namespace,
    ],
)
def test_no_owner_outside_of_handlers(fn: Any) -> None:
    obj: dict[str, Any] = {}
    with pytest.raises(LookupError):
        fn(obj)
    assert obj == {}


@pytest.mark.parametrize('fn', [kopf.adopt, kopf.label, kopf.harmonize_naming, kopf.adjust_namespace])
def test_no_owner_in_handlers_of_the_operator(fn: Any) -> None:
    token = cause_var.set(types.SimpleNamespace())  # as of a startup handler
    try:
        with pytest.raises(LookupError):
            fn({})
    finally:
        cause_var.reset(token)


def test_owner_must_be_a_mapping() -> None:
    with pytest.raises(TypeError, match='owner'):
        kopf.adopt({}, 'parent')  # type: ignore[arg-type]


def test_owner_reference_is_added_once() -> None:
    obj: dict[str, Any] = {'metadata': {'ownerReferences': [{'uid': 'other'}]}}
    kopf.append_owner_reference(obj, OWNER)
    kopf.append_owner_reference(obj, OWNER, controller=False)
    assert obj['metadata']['ownerReferences'] == [{'uid': 'other'}, REFERENCE]


@pytest.mark.parametrize(
    'flags, expected',
    [
        ({}, {'controller': True, 'blockOwnerDeletion': True}),
        ({'controller': False, 'block_owner_deletion': False}, {'controller': False, 'blockOwnerDeletion': False}),
        ({'controller': None, 'block_owner_deletion': None}, {}),
    ],
)
def test_flags_of_owner_references_can_be_chosen(flags: Any, expected: Any) -> None:
    obj: dict[str, Any] = {}
    kopf.append_owner_reference(obj, OWNER, **flags)
    (reference,) = obj['metadata']['ownerReferences']
    assert {key: reference[key] for key in reference if key in ('controller', 'blockOwnerDeletion')} == expected


def test_owner_reference_is_removed() -> None:
    obj: dict[str, Any] = {'metadata': {'ownerReferences': [{'uid': 'other'}, {'uid': 'uid1', 'name': 'whatever'}]}}
    kopf.remove_owner_reference(obj, OWNER)
    assert obj['metadata']['ownerReferences'] == [{'uid': 'other'}]
    kopf.remove_owner_reference(obj, OWNER)
    assert obj['metadata']['ownerReferences'] == [{'uid': 'other'}]


def test_owner_without_uid_cannot_be_removed() -> None:
    with pytest.raises(LookupError, match='uid'):
        kopf.remove_owner_reference({}, kopf.Body({'metadata': {'name': 'x'}}))


def test_references_do_not_share_their_dicts() -> None:
    objs: list[dict[str, Any]] = [{}, {}]
    kopf.append_owner_reference(objs, OWNER)
    first, second = (obj['metadata']['ownerReferences'][0] for obj in objs)
    assert first == second and first is not second


# Names.


@pytest.mark.parametrize(
    'meta, options, expected',
    [
        ({}, {}, {'generateName': 'n-'}),
        ({}, {'strict': True}, {'name': 'n'}),
        ({'name': 'x'}, {}, {'name': 'x'}),
        ({'name': 'x'}, {'strict': True}, {'name': 'x'}),
        ({'name': 'x'}, {'forced': True}, {'generateName': 'n-'}),
        ({'name': 'x'}, {'forced': True, 'strict': True}, {'name': 'n'}),
        ({'generateName': 'g-'}, {}, {'generateName': 'g-'}),
        ({'generateName': 'g-'}, {'strict': True}, {'generateName': 'g-'}),
        ({'generateName': 'g-'}, {'forced': True}, {'generateName': 'n-'}),
        ({'generateName': 'g-'}, {'forced': True, 'strict': True}, {'name': 'n'}),
        ({'name': None, 'generateName': None}, {'strict': True}, {'name': 'n'}),
    ],
)
def test_existing_names_are_kept_unless_forced(meta: Any, options: Any, expected: Any) -> None:
    obj = {'metadata': copy.deepcopy(meta)}
    kopf.harmonize_naming(obj, 'n', **options)
    assert obj == {'metadata': expected}


def test_name_of_the_current_object(handling: None) -> None:
    obj: dict[str, Any] = {}
    kopf.harmonize_naming(obj, strict=True)
    assert obj == {'metadata': {'name': 'parent'}}


# Namespaces.


@pytest.mark.parametrize(
    'meta, forced, expected',
    [
        ({}, False, {'namespace': 'n'}),
        ({'namespace': None}, False, {'namespace': 'n'}),
        ({'namespace': 'x'}, False, {'namespace': 'x'}),
        ({'namespace': 'x'}, True, {'namespace': 'n'}),
    ],
)
def test_existing_namespaces_are_kept_unless_forced(meta: Any, forced: bool, expected: Any) -> None:
    obj = {'metadata': copy.deepcopy(meta)}
    kopf.adjust_namespace(obj, 'n', forced=forced)
    assert obj == {'metadata': expected}


def test_namespace_of_the_current_object(handling: None) -> None:
    obj: dict[str, Any] = {}
    kopf.adjust_namespace(obj)
    assert obj == {'metadata': {'namespace': 'ns1'}}


def test_cluster_scoped_owners_leave_the_namespace_alone() -> None:
    obj: dict[str, Any] = {'metadata': {'namespace': 'x'}}
    kopf.adopt(obj, CLUSTER_OWNER)
    assert obj['metadata']['namespace'] == 'x'


# Labels.


@pytest.mark.parametrize(
    'meta, forced, expected',
    [
        ({}, False, {'a': 'new', 'c': '3'}),
        ({'labels': None}, False, {'a': 'new', 'c': '3'}),
        ({'labels': {'a': 'old', 'x': 'y'}}, False, {'a': 'old', 'c': '3', 'x': 'y'}),
        ({'labels': {'a': 'old', 'x': 'y'}}, True, {'a': 'new', 'c': '3', 'x': 'y'}),
    ],
)
def test_existing_labels_are_kept_unless_forced(meta: Any, forced: bool, expected: Any) -> None:
    obj = {'metadata': copy.deepcopy(meta)}
    kopf.label(obj, {'a': 'new', 'c': '3'}, forced=forced)
    assert obj['metadata']['labels'] == expected


def test_labels_of_the_current_object(handling: None) -> None:
    objs: list[dict[str, Any]] = [{}, {}, {}]
    kopf.label(objs[0])
    kopf.label(objs[1], None)
    kopf.label(objs[2], {})
    assert [obj['metadata']['labels'] for obj in objs] == [{'a': '1', 'b': '2'}, {'a': '1', 'b': '2'}, {}]


def test_old_name_of_forced() -> None:
    obj = {'metadata': {'labels': {'a': 'old'}}}
    with pytest.warns(DeprecationWarning, match='forced'):
        kopf.label(obj, {'a': 'new'}, force=True)
    assert obj['metadata']['labels'] == {'a': 'new'}


@pytest.mark.parametrize(
    'nested',
    [
        'spec.template',
        ['spec.template'],
        [('spec', 'template')],
        [['spec', 'template']],
        ['spec.template', 'spec.absent', 'absent.template', 'spec.null.template'],
        iter(['spec.template']),
    ],
)
def test_nested_templates_are_labelled(nested: Any) -> None:
    obj: dict[str, Any] = {'spec': {'template': {}, 'null': None}}
    other: dict[str, Any] = {}
    kopf.label([obj, other], {'a': '1'}, nested=nested)
    assert obj == {
        'metadata': {'labels': {'a': '1'}},
        'spec': {'template': {'metadata': {'labels': {'a': '1'}}}, 'null': None},
    }
    assert other == {'metadata': {'labels': {'a': '1'}}}


def test_nested_lists_of_templates_are_labelled() -> None:
    obj: dict[str, Any] = {'spec': {'volumeClaimTemplates': [{}, {}]}}
    kopf.label(obj, {'a': '1'}, nested='spec.volumeClaimTemplates')
    assert obj['spec']['volumeClaimTemplates'] == [{'metadata': {'labels': {'a': '1'}}}] * 2


def test_nested_fields_of_scalars_are_refused() -> None:
    with pytest.raises(TypeError, match="'template'"):
        kopf.label({'spec': 'text'}, {'a': '1'}, nested='spec.template')


def test_adoption_labels_the_templates_only() -> None:
    obj: dict[str, Any] = {'spec': {'template': {}}}
    kopf.adopt(obj, OWNER, nested='spec.template')
    assert obj['spec']['template'] == {'metadata': {'labels': {'a': '1', 'b': '2'}}}


# Kinds of objects and of collections.


def test_forced_and_strict_adoption() -> None:
    obj = {'metadata': {'name': 'x', 'namespace': 'y', 'labels': {'a': 'z'}}}
    kopf.adopt(obj, OWNER, forced=True, strict=True)
    assert obj == {
        'metadata': {
            'name': 'parent',
            'namespace': 'ns1',
            'labels': {'a': '1', 'b': '2'},
            'ownerReferences': [REFERENCE],
        }
    }


@pytest.mark.parametrize(
    'collect',
    [
        lambda objs: objs,
        tuple,
        iter,
        lambda objs: (obj for obj in objs),
        lambda objs: [objs[:1], [objs[1:]]],
        lambda objs: dict(enumerate(objs)).values(),
    ],
)
def test_collections_are_adopted_as_single_objects_are(collect: Any) -> None:
    objs: list[dict[str, Any]] = [{}, {}]
    single: dict[str, Any] = {}
    kopf.adopt(single, OWNER)
    kopf.adopt(collect(objs), OWNER)
    assert objs == [single, single]


def test_any_mutable_mapping_can_be_adopted() -> None:
    obj: Any = collections.UserDict()
    kopf.adopt(obj, OWNER)
    assert obj['metadata']['ownerReferences'] == [REFERENCE]


@pytest.mark.parametrize('obj', ['text', ['text'], b'bytes', 123, object(), types.MappingProxyType({}), [{}, 123]])
def test_unsupported_objects_are_refused(obj: Any) -> None:
    with pytest.raises(TypeError, match='not supported'):
        kopf.adopt(obj, OWNER)


def test_metadata_of_wrong_types() -> None:
    with pytest.raises(TypeError, match='metadata'):
        kopf.adopt({'metadata': 'text'}, OWNER)


@pytest.fixture(params=['kubernetes', 'kubernetes_asyncio'])
def client(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f'{request.param}.client')


def test_models_of_the_official_clients(client: Any) -> None:
    pod = client.V1Pod()
    kopf.adopt(pod, OWNER, strict=True)
    assert isinstance(pod.metadata, client.V1ObjectMeta)
    assert isinstance(pod.metadata.owner_references[0], client.V1OwnerReference)
    serialized = client.ApiClient.sanitize_for_serialization(client.ApiClient.__new__(client.ApiClient), pod)
    assert serialized == {
        'metadata': {
            'name': 'parent',
            'namespace': 'ns1',
            'labels': {'a': '1', 'b': '2'},
            'ownerReferences': [REFERENCE],
        }
    }

    kopf.append_owner_reference(pod, OWNER)
    assert len(pod.metadata.owner_references) == 1
    kopf.remove_owner_reference(pod, OWNER)
    assert pod.metadata.owner_references == []


def test_existing_values_in_models_of_the_official_clients(client: Any) -> None:
    meta = client.V1ObjectMeta(name='x', namespace='y', labels={'a': 'z'})
    pod = client.V1Pod(metadata=meta)
    kopf.adopt(pod, OWNER)
    assert (meta.name, meta.generate_name, meta.namespace, meta.labels) == ('x', None, 'y', {'a': 'z', 'b': '2'})
    kopf.adopt(pod, OWNER, forced=True)
    assert (meta.name, meta.generate_name, meta.namespace, meta.labels) == (
        None,
        'parent-',
        'ns1',
        {'a': '1', 'b': '2'},
    )


@pytest.mark.parametrize('nested', ['spec.jobTemplate', 'spec.job_template'])
def test_nested_templates_in_models_of_the_official_clients(client: Any, nested: str) -> None:
    spec = client.V1CronJobSpec(schedule='* * * * *', job_template=client.V1JobTemplateSpec())
    kopf.label(client.V1CronJob(spec=spec), {'a': '1'}, nested=nested)
    assert spec.job_template.metadata.labels == {'a': '1'}


def test_objects_of_pykube_can_be_adopted() -> None:
    pykube = pytest.importorskip('pykube')
    pod = pykube.objects.Pod(None, {'spec': {'template': {}}})
    expected: dict[str, Any] = {'spec': {'template': {}}}
    kopf.adopt(pod, OWNER, nested='spec.template')
    kopf.adopt(expected, OWNER, nested='spec.template')
    assert pod.obj == expected


@pytest.mark.parametrize('module', ['kr8s.objects', 'kr8s.asyncio.objects'])
def test_objects_of_kr8s_can_be_adopted(module: str) -> None:
    pod = pytest.importorskip(module).Pod({'metadata': {'name': 'x'}, 'spec': {'template': {}}}, api=object())
    kopf.adopt(pod, OWNER, nested='spec.template')
    expected: dict[str, Any] = {'metadata': {'name': 'x'}, 'spec': {'template': {}}}
    kopf.adopt(expected, OWNER, nested='spec.template')
    assert {key: pod.raw[key] for key in expected} == expected


def test_models_of_lightkube_can_be_adopted() -> None:
    pytest.importorskip('lightkube')
    from lightkube.models.apps_v1 import DeploymentSpec
    from lightkube.models.core_v1 import PodTemplateSpec
    from lightkube.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference
    from lightkube.resources.apps_v1 import Deployment

    spec = DeploymentSpec(selector=LabelSelector(), template=PodTemplateSpec())
    deployment = Deployment(spec=spec)
    kopf.adopt(deployment, OWNER, strict=True, nested='spec.template')
    assert isinstance(deployment.metadata, ObjectMeta)
    assert isinstance(deployment.metadata.ownerReferences[0], OwnerReference)
    assert deployment.to_dict()['metadata'] == {
        'name': 'parent',
        'namespace': 'ns1',
        'labels': {'a': '1', 'b': '2'},
        'ownerReferences': [REFERENCE],
    }
    assert spec.template.metadata.labels == {'a': '1', 'b': '2'}
    kopf.remove_owner_reference(deployment, OWNER)
    assert deployment.metadata.ownerReferences == []


def test_generic_resources_of_lightkube() -> None:
    generic = pytest.importorskip('lightkube.generic_resource')
    resource = generic.create_namespaced_resource('example.com', 'v1', 'Child', 'children')
    obj = resource()
    kopf.adopt(obj, OWNER, strict=True)
    assert obj['metadata']['name'] == 'parent'
    assert obj['metadata']['ownerReferences'] == [REFERENCE]


def test_labels_must_be_strings():
    with pytest.raises(TypeError, match=r"The value of the label 'size' must be a string, not 5: use str\(\)"):
        kopf.label({}, {'size': 5})
