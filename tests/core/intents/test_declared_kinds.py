"""Kinds that are declared as classes: their names, their conflicts, and the handlers that use them."""

import dataclasses
import itertools
import timeit
from typing import Any

import msgspec
import pydantic
import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.references import Resource
from kopf._core.intents.declared_kinds import get_kind, pluralize

RESOURCE = Resource('example.com', 'v1', 'webapps', kind='WebApp', preferred=True, namespaced=True)


class Spec(pydantic.BaseModel):
    replicas: int = 1


class Status(pydantic.BaseModel):
    ready: int | None = None


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


def declare(registry, *args, cls=None, **options):
    class WebApp(pydantic.BaseModel):
        spec: Spec
        status: Status | None = None

    return kopf.kind(*(args or ('example.com/v1',)), registry=registry, **options)(cls or WebApp)


def make_body(version='1', **parts) -> Any:
    metadata = {'name': 'a', 'namespace': 'ns', 'uid': 'u', 'resourceVersion': version}
    return Body({'apiVersion': 'example.com/v1', 'kind': 'WebApp', 'metadata': metadata, **parts})


def test_names_are_derived_from_the_class(registry):
    kind = get_kind(declare(registry))
    assert (kind.group, kind.version, kind.kind, kind.plural, kind.singular) == (
        'example.com',
        'v1',
        'WebApp',
        'webapps',
        'webapp',
    )
    assert registry.kinds == [kind]
    assert kind.selector.check(RESOURCE)


@pytest.mark.parametrize(
    'kind, plural',
    [
        ('WebApp', 'webapps'),
        ('Policy', 'policies'),
        ('Gateway', 'gateways'),
        ('Ingress', 'ingresses'),
        ('Proxy', 'proxies'),
        ('Switch', 'switches'),
        ('Box', 'boxes'),
        ('Brush', 'brushes'),
        ('Bookshelf', 'bookshelves'),
        ('Leaf', 'leaves'),
        ('Knife', 'knives'),
        ('Handoff', 'handoffs'),
        ('Proof', 'proofs'),
        ('Golf', 'golfs'),
        ('Safe', 'safes'),
    ],
)
def test_plurals_follow_the_usual_rules(kind, plural):
    assert pluralize(kind) == plural


@pytest.mark.parametrize('version', ['v1', 'example/v1', 'example.com', 'example.com/1', 'Example.com/v1', ''])
def test_an_api_version_without_a_group_or_a_version_is_refused(registry, version):
    with pytest.raises(ValueError, match='is no API version of a custom resource'):
        declare(registry, version)


@pytest.mark.parametrize(
    'options, message',
    [
        ({'plural': 'WebApps'}, "plural='WebApps' is not a name"),
        ({'scope': 'Global'}, "scope= must be 'Namespaced' or 'Cluster', not 'Global'"),
        ({'columns': {'Size': 'spec.size'}}, "must be a path that begins with a dot"),
        ({'rules': 'self.x'}, r"rules= must be a list, even if there is only one: \['self.x'\]"),
        ({'rules': [('self.x',)]}, "must be a CEL expression, a pair"),
        ({'columns': {'Size': 5}}, "must be a path that begins with a dot"),
        ({'columns': ['.spec.size']}, "columns= must be a mapping"),
        ({'columns': {'Size': {'path': '.spec.size', 'prio': 1}}}, "has no 'prio'. Did you mean 'priority'?"),
        ({'rules': [{'rule': 'true', 'mesage': 'no'}]}, "rules= has no 'mesage'. Did you mean 'message'?"),
        ({'short_names': ['WA']}, "short_names='WA' is not a name that the API accepts"),
        ({'categories': [5]}, "categories=5 is not a name that the API accepts"),
        ({'short_names': 'wa'}, "short_names= must be a list"),
    ],
)
def test_wrong_options_are_named(registry, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        declare(registry, **options)


def test_a_class_of_no_library_is_refused(registry):
    class Plain:
        spec: Spec

    with pytest.raises(kopf.ModelError, match=r"Plain.* is no model. Derive the class from pydantic.BaseModel"):
        declare(registry, cls=Plain)


def test_two_classes_of_one_version_are_refused_with_both_names(registry):
    declare(registry)

    class Other(pydantic.BaseModel):
        spec: Spec

    with pytest.raises(kopf.ModelError, match=r"declared by two classes: .*WebApp and .*Other\. Remove one"):
        declare(registry, 'example.com/v1', 'WebApp', cls=Other)


def test_versions_of_one_kind_must_share_their_names(registry):
    declare(registry)

    class Other(pydantic.BaseModel):
        spec: Spec

    with pytest.raises(kopf.ModelError, match=r"differ in scope=: 'Namespaced' and 'Cluster'"):
        declare(registry, 'example.com/v2', 'WebApp', cls=Other, scope='Cluster')


def test_the_same_class_imported_again_replaces_its_declaration(registry):
    declare(registry)
    newer = declare(registry)
    assert [kind.cls for kind in registry.kinds] == [newer]


def test_registries_are_extended_by_kinds(registry):
    declare(registry)
    other = kopf.OperatorRegistry()
    other.extend(registry)
    other.extend(registry)
    assert other.kinds == registry.kinds


def test_the_same_version_of_an_object_is_validated_only_once(registry):
    kind = get_kind(declare(registry))
    first = kind.load(make_body(spec={'replicas': 3}))
    assert kind.load(make_body(spec={'replicas': 3})) is first
    assert kind.load(make_body('2', spec={'replicas': 4})).spec.replicas == 4


def test_an_object_that_is_not_stored_yet_is_not_mistaken_for_the_stored_one(registry):
    kind = get_kind(declare(registry))
    first = kind.load(make_body(spec={'replicas': 3}))
    assert kind.load(make_body(spec={'replicas': 4}), stored=False).spec.replicas == 4
    assert kind.load(make_body(spec={'replicas': 3})) is first


def test_a_wrong_object_is_a_permanent_error_that_names_the_object_and_the_field(registry):
    kind = get_kind(declare(registry))
    with pytest.raises(kopf.InvalidObjectError, match=r"WebApp 'a' does not conform to the class .*WebApp: spec.rep"):
        kind.load(make_body(spec={'replicas': 'x'}))
    assert issubclass(kopf.InvalidObjectError, kopf.PermanentError)


def test_classes_may_forbid_unknown_fields(registry):
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        spec: dict[str, int]

    kind = get_kind(declare(registry, cls=Strict))
    assert kind.load(make_body(spec={'a': 1})).spec == {'a': 1}
    with pytest.raises(kopf.InvalidObjectError, match='status'):
        kind.load(make_body('2', spec={'a': 1}, status={}))


def test_a_dataclass_can_have_the_metadata(registry):
    @dataclasses.dataclass
    class Named:
        metadata: dict[str, str]

    kind = get_kind(declare(registry, cls=Named))
    assert kind.load(make_body()).metadata['name'] == 'a'


@pytest.mark.parametrize(
    'decorator',
    [
        kopf.on.create,
        kopf.on.update,
        kopf.on.delete,
        kopf.on.resume,
        kopf.on.event,
        kopf.on.reconcile,
        kopf.on.validate,
        kopf.on.mutate,
        kopf.daemon,
        kopf.timer,
        kopf.index,
    ],
)
def test_every_decorator_takes_the_class(registry, decorator):
    cls = declare(registry)
    options = {'interval': 1} if decorator is kopf.timer else {}

    @decorator(cls, registry=registry, **options)
    def fn(spec, obj, **_):
        pass

    [handler] = registry.iter_resource_handlers()
    assert handler.selector.check(RESOURCE)
    assert handler.model is get_kind(cls)
    assert set(handler.extras) == {'spec', 'obj'}


def test_owned_resources_can_be_named_by_classes(registry):
    cls = declare(registry)

    @kopf.on.reconcile('others', owns=[cls], watches={cls: lambda **_: []}, registry=registry)
    def fn(**_):
        pass

    [handler] = registry.iter_resource_handlers()
    assert [source.selector.check(RESOURCE) for source in handler.sources] == [True, True]


def test_a_class_without_a_declaration_names_no_resource(registry):
    with pytest.raises(TypeError, match=r"@kopf.on.create: The class Spec names no resource. Decorate it with @kopf.k"):
        kopf.on.create(Spec, registry=registry)


def test_a_class_leaves_nothing_to_specify(registry):
    with pytest.raises(TypeError, match='names the resource completely'):
        kopf.on.create(declare(registry), version='v2', registry=registry)


def test_classes_of_two_kinds_cannot_be_converted(registry):
    class Other(pydantic.BaseModel):
        spec: Spec

    other = declare(registry, 'example.com/v1', cls=Other)
    with pytest.raises(TypeError, match='are not versions of one kind'):
        kopf.on.convert(declare(registry), other, registry=registry)


def test_conversions_name_the_versions_by_classes(registry):
    class Newer(pydantic.BaseModel):
        spec: Spec

    older, newer = declare(registry), declare(registry, 'example.com/v2', 'WebApp', cls=Newer)

    @kopf.on.convert(older, newer, registry=registry)
    def upgrade(obj, **_):
        pass

    [handler] = registry.conversions
    assert handler.converts('v1', 'v2')
    assert not handler.converts('v2', 'v1')
    assert handler.model is get_kind(older)
    with pytest.raises(TypeError, match='to_version= is known already'):
        kopf.on.convert(older, newer, to_version='v2', registry=registry)


def test_handlers_without_a_class_cannot_ask_for_the_object(registry):
    from kopf._core.intents.mistakes import DeclarationError, check_registry

    @kopf.on.create('webapps', registry=registry)
    def fn(obj, **_):
        pass

    with pytest.raises(
        DeclarationError, match=r"asks for 'obj'.*The object is in 'body'.*resource is named by a class"
    ):
        check_registry(registry)


HANDLERS = """
import logging
import pydantic, kopf

class Spec(pydantic.BaseModel):
    replicas: int = 1

class Status(pydantic.BaseModel):
    ready: int | None = None
    note: str | None = None

@kopf.kind('example.com/v1')
class WebApp(pydantic.BaseModel):
    spec: Spec
    status: Status | None = None

@kopf.on.create(WebApp)
def create_fn(spec, obj, status, patch, body, **kwargs):
    assert type(spec) is Spec and type(obj) is WebApp and status is None
    assert 'spec' not in kwargs and body['spec']['replicas'] == spec.replicas
    patch.status = Status(ready=spec.replicas, note='created')

@kopf.on.update(WebApp, field='spec')
def update_fn(spec, status, patch, **_):
    patch.status = Status(ready=spec.replicas)
    @kopf.subhandler()
    def inner(spec, **_):
        logging.getLogger('test').warning('inner: %r', spec)

@kopf.on.event(WebApp, when=lambda spec, **_: spec['replicas'] == 5)
def event_fn(spec, **_):
    logging.getLogger('test').warning('event: %r', spec)
"""


@pytest.mark.kopf_sandbox(virtual_time=True)
@pytest.mark.usefixtures('forked_operators')
def test_handlers_get_objects_of_the_class_and_can_assign_them(kopf_sandbox, kopf_operator, tmp_path):
    path = tmp_path / 'app.py'
    path.write_text(HANDLERS)
    with kopf_operator(path) as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 3})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: body['status']['note'] == 'created')
        kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': 5}})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: body['status']['ready'] == 5)
        body = kopf_sandbox.get('webapps', 'a')
    assert 'note' not in body['status']
    assert 'inner: Spec(replicas=5)' in operator.output
    assert 'event: Spec(replicas=5)' in operator.output
    assert 'event: Spec(replicas=3)' not in operator.output


DELAYED = """
import logging
import pydantic, kopf

class Spec(pydantic.BaseModel):
    replicas: int = 1

@kopf.kind('example.com/v1')
class WebApp(pydantic.BaseModel):
    spec: Spec

def delay(spec, obj, status, meta, body, **_):
    logging.getLogger('test').warning('delay: %r %r %r %s', spec, obj, status, body['spec']['replicas'])
    return spec.replicas

@kopf.timer(WebApp, interval=1000, initial_delay=delay)
def timer_fn(patch, **_):
    patch.meta.annotations['timer'] = 'called'

@kopf.timer(WebApp, interval=1000, initial_delay=lambda obj: obj.spec.replicas)
def other_fn(patch, **_):
    patch.meta.annotations['other'] = 'called'

@kopf.timer('webapps', interval=1000, initial_delay=lambda spec: spec['replicas'])
def plain_fn(patch, **_):
    patch.meta.annotations['plain'] = 'called'
"""


@pytest.mark.kopf_sandbox(virtual_time=True)
@pytest.mark.usefixtures('forked_operators')
def test_functions_of_initial_delays_get_objects_of_the_class(kopf_sandbox, kopf_operator, tmp_path):
    path = tmp_path / 'app.py'
    path.write_text(DELAYED)
    with kopf_operator(path) as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 3})
        called = {'timer', 'other', 'plain'}
        kopf_sandbox.wait_for('webapps', 'a', lambda body: called <= {*(body['metadata'].get('annotations') or ())})
    assert 'delay: Spec(replicas=3) WebApp(spec=Spec(replicas=3)) None 3' in operator.output
    assert 'begins at once' not in operator.output


BROKEN = """
import pydantic, kopf

class Spec(pydantic.BaseModel):
    replicas: int

@kopf.kind('example.com/v1')
class WebApp(pydantic.BaseModel):
    spec: Spec

    @pydantic.model_validator(mode='after')
    def check(self):
        if self.spec.replicas == 13:
            raise ValueError('13 is unlucky')
        return self

@kopf.on.create(WebApp)
@kopf.on.update(WebApp)
def handle(spec, patch, **_):
    patch.metadata.annotations['handled'] = str(spec.replicas)
"""


@pytest.mark.kopf_sandbox(virtual_time=True)
@pytest.mark.usefixtures('forked_operators')
def test_an_object_that_does_not_conform_fails_until_it_changes_and_others_go_on(kopf_sandbox, kopf_operator, tmp_path):
    path = tmp_path / 'app.py'
    path.write_text(BROKEN)
    with kopf_operator(path) as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 13})
        kopf_sandbox.create('webapps', 'b', spec={'replicas': 3})
        kopf_sandbox.wait_for('webapps', 'b', lambda body: body['metadata']['annotations']['handled'] == '3')
        kopf_sandbox.rest()
        assert operator.output.count("WebApp 'a' does not conform") == 1
        assert 'Value error, 13 is unlucky' in operator.output
        kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': 4}})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: body['metadata']['annotations']['handled'] == '4')


@dataclasses.dataclass
class DataSpec:
    replicas: int = 1
    image: str | None = None
    ports: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class DataApp:
    spec: DataSpec


class StructSpec(msgspec.Struct):
    replicas: int = 1
    image: str | None = None
    ports: list[int] = []


class StructApp(msgspec.Struct):
    spec: StructSpec


class ModelSpec(pydantic.BaseModel):
    replicas: int = 1
    image: str | None = None
    ports: list[int] = []


class ModelApp(pydantic.BaseModel):
    spec: ModelSpec


VERSIONS = itertools.count(1)


def make_loading(kind):
    # Versions that were validated before would be found in the cache.
    bodies = [
        make_body(str(next(VERSIONS)), spec={'replicas': 3, 'image': 'x', 'ports': [80, 443]}) for _ in range(100)
    ]

    def load():
        for body in bodies:
            kind.pick(kind.load(body), 'spec')

    return load


@pytest.mark.parametrize('cls', [DataApp, StructApp, ModelApp])
def test_an_object_of_a_class_costs_a_call_at_most_30_microseconds(registry, cls):
    kind = get_kind(declare(registry, 'example.com/v1', 'WebApp', cls=cls))
    # The shortest of many times, each with new versions: other processes make the rest of them longer.
    shortest = min(timeit.timeit(make_loading(kind), number=1) for _ in range(50))
    assert shortest / 100 < 30e-6


def test_fields_that_the_class_does_not_know_are_carried_over(registry):
    kind = get_kind(declare(registry))
    conditions = [{'type': 'Ready', 'status': 'True'}]
    body = {'spec': {'replicas': 1, 'alien': 'x'}, 'status': {'ready': 1, 'conditions': conditions}, 'extra': {'a': 1}}
    assert kind.carry_over(body, {'spec': {'size': 'S'}}) == {
        'spec': {'size': 'S', 'alien': 'x'},
        'status': {'conditions': conditions},
        'extra': {'a': 1},
    }


def test_nothing_that_is_converted_is_overwritten(registry):
    kind = get_kind(declare(registry))
    converted = {'spec': 'text', 'status': {'conditions': []}, 'extra': 2}
    body = {'spec': {'alien': 'x'}, 'status': {'conditions': [1]}, 'extra': 1}
    before = {**converted, 'status': {'conditions': []}}
    assert kind.carry_over(body, converted) == before
    assert converted == before


@pytest.mark.parametrize('library', ['pydantic', 'msgspec'])
def test_classes_that_forbid_other_fields_do_not_forbid_the_conditions_of_their_kind(registry, library):
    if library == 'pydantic':

        class Strict(pydantic.BaseModel, extra='forbid'):
            ready: int | None = None

        class WebApp(pydantic.BaseModel, extra='forbid'):
            spec: Spec
            status: Strict | None = None
    else:

        class Strict(msgspec.Struct, forbid_unknown_fields=True):
            ready: int | None = None

        class WebApp(msgspec.Struct, forbid_unknown_fields=True):
            spec: dict[str, int]
            status: Strict | None = None

    kind = get_kind(kopf.kind('example.com/v1', conditions=True, registry=registry)(WebApp))
    body = make_body(spec={}, status={'ready': 2, 'conditions': []})
    assert kind.load(body).status.ready == 2


def test_a_class_that_has_the_conditions_gets_them(registry):
    class Full(pydantic.BaseModel):
        conditions: list[dict[str, Any]] = []

    class WebApp(pydantic.BaseModel):
        spec: Spec
        status: Full

    kind = get_kind(kopf.kind('example.com/v1', conditions=True, registry=registry)(WebApp))
    body = make_body(spec={}, status={'conditions': [{'type': 'Ready'}]})
    assert kind.load(body).status.conditions == [{'type': 'Ready'}]


@pytest.mark.parametrize(
    'scale, text',
    [
        ({'specReplicas': '.spec.replicas'}, "scale= has no 'specReplicas'. Did you mean 'specReplicasPath'?"),
        ({'x': '.spec.replicas'}, "scale= has no 'x'. There are: specReplicasPath, statusReplicasPath, labelSelector"),
        ({'specReplicasPath': '.spec.replicas'}, "scale= has no 'statusReplicasPath', which the API requires"),
        ({'specReplicasPath': 'spec.replicas'}, "'spec.replicas'} must be a path that begins with a dot"),
        ('.spec.replicas', "scale= must be a mapping of paths, not '.spec.replicas'"),
    ],
)
def test_mistakes_in_the_scale_are_told_of(registry, scale, text):
    with pytest.raises((TypeError, ValueError)) as error:
        declare(registry, scale=scale)
    assert text in str(error.value)


def test_a_status_that_is_always_none_is_no_field(registry):
    class WebApp(pydantic.BaseModel):
        spec: Spec
        status: None = None

    kind = get_kind(kopf.kind('example.com/v1', conditions=True, registry=registry)(WebApp))
    assert kind.load(make_body(spec={}, status={'conditions': []})).status is None
