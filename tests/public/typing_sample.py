"""An operator that uses the public names in annotations, and every decorator: only for type checkers."""

# pyright: strict
import asyncio
import dataclasses
import datetime
import functools
import pathlib
from collections.abc import AsyncIterator, Collection
from typing import Any, TypedDict

import kopf

# Arguments.


@kopf.on.startup(id='x', errors=kopf.ErrorsMode.PERMANENT, timeout=1, retries=2, backoff=3.5, param=None)
def startup(
    settings: kopf.OperatorSettings, memo: kopf.Memo, logger: kopf.Logger, by_name: kopf.Index[str, int], **_: Any
) -> None:
    settings.posting.enabled = False
    settings.persistence.progress_storage = kopf.MultiProgressStorage(
        [
            kopf.AnnotationsProgressStorage(prefix='example.com'),
            kopf.StatusProgressStorage(),
            kopf.SmartProgressStorage(),
        ]
    )
    settings.persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
        [kopf.AnnotationsDiffBaseStorage(prefix='example.com'), kopf.StatusDiffBaseStorage(field='status.x')]
    )
    memo.counter = memo.get('counter', 0) + 1
    logger.info("%r", by_name)


@kopf.on.startup()
async def define() -> None:
    try:
        applied: kopf.RawBody = await kopf.apply({'apiVersion': 'v1'}, namespace='ns', field_manager='me', force=True)
        await kopf.seen(applied, deleted=True)
    except kopf.ApplyConflictError as error:
        print([field for fields in error.conflicts.values() for field in fields])
    except kopf.ApplyInvalidError as error:
        print(error.fields, error.immutable_fields)
    except kopf.ApplyUnsupportedError:
        pass
    await kopf.ensure_crds('crd.yaml', pathlib.Path('crds'), {'kind': 'List'}, [['a.yaml'], {}], timeout=9.5)


@kopf.on.cleanup()
async def cleanup(logger: kopf.Logger, **_: Any) -> None:
    logger.info("done")


@kopf.on.login(retries=3)
def login(settings: kopf.OperatorSettings, **kwargs: Any) -> kopf.ConnectionInfo | None:
    expiration = datetime.datetime.now(datetime.UTC)
    return kopf.ConnectionInfo(server='https://localhost', token='token', expiration=expiration)


@kopf.on.login()
def fallback(logger: kopf.Logger, settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)


@kopf.on.schedule(interval=600, initial_delay=1.5, sharp=True, retries=3)
async def repeat(memo: kopf.Memo, logger: kopf.Logger) -> None:
    logger.info("%r", memo)


@kopf.on.probe(id='now')
def probe(**_: Any) -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def is_good(value: str | None, spec: kopf.Spec, **_: Any) -> bool:
    return value == spec.get('good')


def is_ready(status: kopf.Status, **_: Any) -> bool:
    return bool(status.get('ready'))


def is_ours(name: str | None, **_: Any) -> bool:
    return name == 'ours'


@kopf.on.event('pods', label_selector='app=x')
@kopf.on.field('pods', field='spec.x', label_selector='app=x')
@kopf.timer('pods', interval=1, label_selector='app=x')
@kopf.on.event('', 'v1', 'pods', labels={'a': 'b', 'c': kopf.PRESENT, 'd': kopf.ABSENT, 'e': is_good})
@kopf.on.event(kopf.EVERYTHING)
@kopf.on.event(lambda resource: resource.group == 'example.com')
@kopf.on.event(category='all', annotations={'a': 'b'}, when=kopf.all_([is_ready, kopf.not_(is_ours)]))
@kopf.on.event('pods', when=kopf.any_([is_ready, is_ours]))
@kopf.on.event('pods', when=kopf.none_([is_ours, kopf.all_([is_ready, is_ours])]))
def on_event(
    event: kopf.RawEvent,
    type: kopf.RawEventType,
    name: str | None,
    namespace: str | None,
    labels: kopf.Labels,
    annotations: kopf.Annotations,
    resource: kopf.Resource,
    **_: Any,
) -> None:
    raw: kopf.RawBody = event['object']
    print(raw, type, name, namespace, labels.get('a', '').upper(), annotations['a'].upper(), resource.plural)


@kopf.on.resume('kopfexamples', deleted=True)
@kopf.on.create('kopf.dev', 'v1', 'kopfexamples', id='y', param={'x': 1}, field='spec.x', value=kopf.PRESENT)
@kopf.on.update('kopf.dev/v1', 'kopfexamples', field=('spec', 'x'), old='x', new=kopf.ABSENT)
@kopf.on.delete('kopfexamples', optional=True)
@kopf.on.field('kopfexamples', field='spec.items')
async def on_change(
    body: kopf.Body,
    meta: kopf.Meta,
    spec: kopf.Spec,
    status: kopf.Status,
    patch: kopf.Patch,
    diff: kopf.Diff,
    old: kopf.BodyEssence | None,
    new: kopf.BodyEssence | None,
    reason: kopf.Reason,
    uid: str,
    retry: int,
    started: datetime.datetime,
    runtime: datetime.timedelta,
    memo: kopf.Memo,
    logger: kopf.Logger,
    param: Any,
    by_name: kopf.Index[str, int],
    **kwargs: Any,
) -> dict[str, int]:
    for operation, field, before, after in diff:
        print(operation is kopf.DiffOperation.ADD, field[0], before, after)
    item: kopf.DiffItem = diff[0]
    when: str | None = body.metadata.creation_timestamp
    logger.info("%r %r %r", item.op, when, meta.name)
    store: kopf.Store[int] = by_name['x']
    total = sum(value for value in store)
    patch.status['total'] = total
    patch.spec['x'] = spec.get('x', 1)
    patch.metadata.labels['x'] = 'y'
    patch.meta.annotations['x'] = None
    kopf.event(body, type='Normal', reason='Reason', message='message')
    kopf.info(body, reason='Reason', message='message')
    kopf.warn([body], reason='Reason', message='message')
    kopf.exception(body, reason='Reason', message='message')
    if retry > 3:
        raise kopf.PermanentError("no")
    if runtime.total_seconds() > 3:
        raise kopf.TemporaryError("not yet", delay=3)
    kopf.register(on_sub, id='z')
    await kopf.execute()
    await kopf.execute(fns=[on_sub])
    await kopf.execute(fns={'a': on_sub}, lifecycle=kopf.lifecycles.one_by_one)
    return {'total': total}


def on_sub(**_: Any) -> None:
    @kopf.subhandler(id='x', field='spec.x', old=1)
    async def nested(spec: kopf.Spec, **_: Any) -> str:
        return str(spec['x'])


def users_of(namespace: str, labels: kopf.Labels, **_: Any) -> list[tuple[str, str]]:
    return [(namespace, labels['user'])]


WATCHED = {'configmaps': users_of}


@kopf.on.reconcile(
    'kopfexamples',
    owns=['pods', ('apps', 'v1', 'deployments')],
    watches=WATCHED,
    interval=600,
    timeout=60,
    concurrency=10,
    backoff=(1, 60),
    retries=5,
    conditions=True,
    labels={'a': 'b'},
)
async def reconcile(
    spec: kopf.Spec,
    patch: kopf.Patch,
    reasons: frozenset[str],
    children: kopf.AsyncChildren,
    conditions: kopf.Conditions,
    **_: Any,
) -> kopf.Again | None:
    known: kopf.Condition | None = conditions.get('Ready')
    conditions['Ready'] = kopf.Condition(None if known is None else known.status, 'Reason', "The message.")
    if not children:
        raise kopf.NotReadyError("nothing is there yet", delay=5)
    child: kopf.Body = await children.apply({}, ready=True)
    patch.status['children'] = [each.metadata.name for each in children['deployments']] + [child.metadata.name]
    patch.status['reasons'] = sorted(reasons)
    return kopf.Again(after=30) if 'again' not in reasons else None


@kopf.on.reconcile('kopfexamples', owns=['pods'], prune=False)
def reconcile_in_thread(children: kopf.SyncChildren, **_: Any) -> None:
    child: kopf.Body = children.apply({}, ready=lambda body: body.status.get('ready'), replace=True)
    print(child.metadata.name)


@kopf.index('pods', labels={'a': 'b'}, errors=kopf.ErrorsMode.TEMPORARY)
async def by_name(name: str, spec: kopf.Spec, **_: Any) -> dict[str, int]:
    return {name: len(spec)}


def get_delay(**_: Any) -> float:
    return 1.0


@kopf.daemon('kopfexamples', initial_delay=get_delay, cancellation_backoff=1, cancellation_timeout=2)
async def daemon(stopped: kopf.AsyncDaemonStopperChecker, **_: Any) -> None:
    while not await stopped.wait(1):
        print(stopped.is_set())


@kopf.daemon('kopfexamples', errors=kopf.ErrorsMode.TEMPORARY, cancellation_polling=1)
def sync_daemon(stopped: kopf.SyncDaemonStopperChecker, logger: kopf.ObjectLogger, **_: Any) -> None:
    while not stopped.wait(timeout=1):
        print(stopped.is_set())
    logger.info("%s", is_deleted(stopped))


@kopf.daemon('kopfexamples', id='any')
async def any_daemon(stopped: kopf.DaemonStopped, **_: Any) -> None:
    while not stopped:
        await stopped.wait(1)


@kopf.on.create('kopfexamples')
async def install(deleting: kopf.AsyncDeletionFlag, **_: Any) -> None:
    while not await deleting.wait(1):
        print(deleting.is_set())


@kopf.on.create('kopfexamples')
def sync_install(deleting: kopf.SyncDeletionFlag, **_: Any) -> None:
    while not deleting.wait(timeout=1):
        print(bool(deleting), is_unneeded(deleting))


def is_unneeded(deleting: kopf.DeletionFlag) -> bool:
    return deleting.is_set()


def is_deleted(stopped: kopf.DaemonStopped) -> bool:
    reason: kopf.DaemonStoppingReason | None = stopped.reason
    return reason is not None and kopf.DaemonStoppingReason.RESOURCE_DELETED in reason


@kopf.timer('kopfexamples', interval=1, sharp=True, idle=3, initial_delay=4)
def timer(by_name: kopf.Index[str, int], **_: Any) -> None:
    for key, store in by_name.items():
        print(key.upper(), [value + 1 for value in store], len(store), 1 in store)


@kopf.on.validate('kopfexamples', operations=['CREATE', 'UPDATE'], ignore_failures=True)
def validate(
    headers: kopf.Headers,
    sslpeer: kopf.SSLPeer,
    userinfo: kopf.UserInfo,
    operation: kopf.Operation,
    dryrun: bool,
    warnings: list[str],
    **_: Any,
) -> None:
    warnings.append("be careful")
    raise kopf.AdmissionError("no", code=409)


@kopf.on.mutate('kopfexamples', operation='CREATE', persistent=True, side_effects=False, subresource='*')
async def mutate(patch: kopf.Patch, **_: Any) -> None:
    patch.spec['x'] = 1
    fn: kopf.PatchFn = add_item
    patch.fns.append(fn)


def add_item(body: kopf.RawBody) -> None:
    body.setdefault('spec', {})['x'] = 'y'


@kopf.on.convert('kopf.dev', 'kopfexamples', from_version='v1', to_version=['v2', 'v3'], persistent=False)
async def convert(body: kopf.Body, from_version: str, to_version: str, **_: Any) -> dict[str, Any]:
    return {**body, 'spec': {'from': from_version, 'to': to_version}}


@kopf.on.startup()
def serve_webhooks(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.admission.server = kopf.WebhookService(name='svc', namespace='ns', extra_sans=['svc.example.com'])


@kopf.on.create('kopfexamples')
def create_children(owner: kopf.Body, **_: Any) -> None:
    single: dict[str, Any] = {}
    several: list[dict[str, Any]] = [{}, {}]
    kopf.adopt(single)
    kopf.adopt(several, owner, strict=True, forced=True, nested='spec.template')
    kopf.label(single, {'a': 'b', 'c': None}, nested=['spec.template', ('spec', 'template')])
    kopf.harmonize_naming(several, 'name', strict=True)
    kopf.adjust_namespace(several, 'ns', forced=True)
    kopf.append_owner_reference((single, single), owner, controller=False, block_owner_deletion=None)
    kopf.remove_owner_reference(iter(several), owner)
    owner_reference: kopf.OwnerReference = kopf.build_owner_reference(owner)
    object_reference: kopf.ObjectReference = kopf.build_object_reference(owner)
    print(owner_reference, object_reference)


@kopf.on.login()
async def piggyback(**kwargs: Any) -> kopf.ConnectionInfo | kopf.AiohttpSession | None:
    try:
        return (
            kopf.login_via_pykube(**kwargs)
            or kopf.login_via_client(**kwargs)
            or await kopf.login_via_async_client(**kwargs)
        )
    except kopf.LoginError:
        return None


@kopf.on.field('kopfexamples', field='spec.x', when=kopf.any_([is_ready, kopf.none_([is_ready])]), retries=3, timeout=9)
def on_field(logger: kopf.LocalObjectLogger, **_: Any) -> None:
    try:
        logger.info("%s of %s", find('spec.x'), kopf.__version__)
    except (kopf.HandlerRetriesError, kopf.HandlerTimeoutError) as error:
        raise kopf.PermanentError("no") from error


def find(field: kopf.FieldSpec) -> kopf.FieldPath:
    return tuple(field.split('.')) if isinstance(field, str) else tuple(field or ())


@kopf.on.startup()
def choose_server(settings: kopf.OperatorSettings, param: Any, **_: Any) -> None:
    servers: list[kopf.WebhookServerProtocol] = [
        kopf.WebhookServer(addr='0.0.0.0', port=54321, host='host', extra_sans=['x'], path='/path'),
        kopf.WebhookK3dServer(port=54321),
        kopf.WebhookMinikubeServer(port=54321),
        kopf.WebhookDockerDesktopServer(port=54321),
        kopf.WebhookNgrokTunnel(token='x'),
        kopf.WebhookAutoServer(),
        kopf.WebhookAutoTunnel(),
        kopf.WebhookService(name='hooks', namespace='default'),
    ]
    settings.admission.server = servers[param]
    settings.admission.managed = 'auto.kopf.dev'


# Embedding and extending.


class Storage(kopf.ProgressStorage):
    def fetch(self, *, key: kopf.HandlerId, body: kopf.Body) -> kopf.ProgressRecord | None:
        return None

    def store(self, *, key: kopf.HandlerId, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        patch.status[key] = record

    def purge(self, *, key: kopf.HandlerId, body: kopf.Body, patch: kopf.Patch) -> None: ...

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: str | None) -> None: ...

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class DiffBase(kopf.DiffBaseStorage):
    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        patch.metadata.annotations['x'] = str(essence)


async def serve(fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
    service: kopf.WebhookClientConfigService = {'name': 'x', 'namespace': 'y', 'path': None, 'port': 443}
    yield kopf.WebhookClientConfig(url='https://localhost', service=service)


server: kopf.WebhookServerProtocol = serve


async def embed() -> None:
    registry = kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    assert kopf.get_default_registry() is registry
    kopf.set_default_lifecycle(kopf.lifecycles.all_at_once)
    kopf.set_default_lifecycle(kopf.get_default_lifecycle())
    kopf.configure(verbose=True, log_format=kopf.LogFormat.JSON)
    flag = asyncio.Event()
    await kopf.operator(registry=registry, clusterwide=True, stop_flag=flag, memo=kopf.Memo(), priority=1)
    await kopf.operator(clusterwide=True, instruments=[kopf.Instrument()])
    tasks: Collection[asyncio.Task[None]] = await kopf.spawn_tasks(namespaces=['a', 'b-*'], standalone=True)
    await kopf.run_tasks(tasks)


def main() -> None:
    kopf.run(namespace='default', liveness_endpoint='http://localhost:8080/healthz')


# Kinds as classes.


@dataclasses.dataclass
class AppSpec:
    replicas: int = 1


@dataclasses.dataclass
class AppStatus:
    ready: int | None = None


@kopf.kind('example.com/v1', plural='apps', columns={'Replicas': '.spec.replicas'}, rules=[('self.spec', 'none')])
@dataclasses.dataclass
class App:
    spec: AppSpec
    status: AppStatus | None = None


@kopf.kind('example.com/v2', 'App', storage=True)
@dataclasses.dataclass
class NewApp:
    spec: AppSpec


def find_apps(namespace: str | None, spec: AppSpec, **_: Any) -> list[tuple[str | None, str]]:
    return [(namespace, str(spec.replicas))]


@kopf.on.create(App)
@kopf.on.reconcile(App, owns=[NewApp, 'pods'])
@kopf.on.reconcile(App, id='a', watches={NewApp: find_apps})
@kopf.on.reconcile(App, id='b', watches={NewApp: find_apps, 'pods': find_apps, ('apps', 'deployments'): find_apps})
def typed(spec: AppSpec, obj: App, status: AppStatus | None, patch: kopf.Patch[App], **_: Any) -> None:
    patch.status = AppStatus(ready=spec.replicas + obj.spec.replicas)
    patch.status['ready'] = 0 if status is None else status.ready


@kopf.on.event(App)
@kopf.on.update(App, field='spec.replicas', old=1)
@kopf.on.resume(App, deleted=True)
@kopf.on.delete(App, optional=True)
@kopf.on.field(App, field='spec.replicas')
@kopf.on.validate(App, operation='CREATE')
@kopf.on.mutate(App)
@kopf.timer(App, interval=1)
@kopf.daemon(App)
async def typed_by_name(name: str, memo: kopf.Memo, logger: kopf.Logger, spec: AppSpec, **kwargs: Any) -> None:
    logger.info("%s has %r, %r, %r", name, spec.replicas, memo, kwargs)


@kopf.index(App, id='by_size')
def by_size(spec: AppSpec, **_: Any) -> dict[int, str]:
    return {spec.replicas: 'x'}


@kopf.on.create(App)
def typed_with_indices(
    spec: AppSpec, by_name: kopf.Index[str, int], by_size: kopf.Index[int, str], obj: App, **_: Any
) -> None:
    print(spec.replicas, by_name, by_size, obj.status)


@kopf.on.create(App)
async def typed_by_index(by_name: kopf.Index[str, int], patch: kopf.Patch[App], **_: object) -> None:
    print(by_name, patch)


@kopf.on.update(App)
def typed_with_an_index_elsewhere(
    *, name: str, by_name: kopf.Index[str, int] | None = None, spec: AppSpec, **_: Any
) -> None:
    print(name, by_name, spec.replicas)


@kopf.kind('example.com/v1')
@dataclasses.dataclass
class Stateless:
    spec: AppSpec
    status: None = None


@kopf.on.create(Stateless)
def typed_without_any_status(spec: AppSpec, status: None, patch: kopf.Patch[Stateless], **_: Any) -> None:
    print(spec, status, patch)


@kopf.on.create(NewApp)
def typed_without_status(spec: AppSpec, obj: NewApp, status: Any, **_: Any) -> None:
    print(spec.replicas, obj, status)


class Methods:
    def __init__(self) -> None:
        kopf.on.create(App)(self.typed)
        kopf.on.create('apps')(self.untyped)
        kopf.on.create(App)(functools.partial(self.typed, more=1))

    async def typed(self, spec: AppSpec, more: int = 0, **_: Any) -> None: ...

    async def untyped(self, spec: dict[str, Any], name: str, **_: object) -> None: ...


class Stored(TypedDict):
    spec: dict[str, str]


@kopf.on.create(Stored)  # its fields are no attributes, so nothing is known of the spec
def typed_dict(spec: dict[str, str], **_: Any) -> None:
    print(spec['field'])


# Handlers as they are found in other operators: with annotations that are not quite right.


class OwnMemo(kopf.Memo):
    counter: int


NAMES = ['kopf.dev', 'v1', 'kopfexamples']
OPTIONS: dict[str, Any] = {'retries': 3}


@kopf.on.create(*NAMES, **OPTIONS)
@kopf.on.update('kopf.dev', 'v1', 'kopfexamples')
def inexact(
    spec: dict[str, Any], name: str, namespace: str, memo: OwnMemo, body: dict[str, Any], **kwargs: object
) -> dict[str, str]:
    return {name: namespace}


for decorator in (kopf.on.create, kopf.on.resume):
    decorator('kopfexamples')(inexact)
on_pods = functools.partial(kopf.on.create, 'pods')
print(inexact({}, 'name', 'namespace', OwnMemo(), {})['name'])


@on_pods(id='partial')  # mypy takes the first overload of a partial, so the function must accept all arguments
async def partial(name: str, **_: Any) -> None:
    print(name)


@kopf.on.event(group='example.com', plural='apps')
async def without_others(name: str) -> None:
    print(name)


@kopf.on.convert(App, NewApp)
def upgrade(obj: App, **_: Any) -> NewApp:
    return NewApp(obj.spec)


@kopf.on.startup()
async def define_apps() -> None:
    try:
        await kopf.ensure_crds(App, NewApp)
    except (kopf.ModelError, kopf.InvalidObjectError):
        pass
