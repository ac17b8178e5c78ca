"""Objects that are delayed after failures of the API or of storages."""

import asyncio
import re
import time

import pytest
from operatorworld import Gate, in_virtual_time

import kopf
from kopf._cogs.clients.errors import APIServerError, APIUnprocessableError
from kopf._cogs.structs.references import Resource
from kopf._core.intents.decisions import Decider
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor import throttling
from kopf._core.reactor.object_records import ObjectRecord


class Outage:
    """Makes methods of storages fail while it lasts."""

    def __init__(self, *methods):
        self.methods = set(methods)
        self.lasts = False
        self.failures = 0

    def storage(self, base):
        def make(name):
            def method(storage, *args, **kwargs):
                if self.lasts:
                    self.failures += 1
                    raise ConnectionError("the database is down")
                return getattr(super(cls, storage), name)(*args, **kwargs)

            return method

        cls = type('Database', (base,), {name: make(name) for name in self.methods if hasattr(base, name)})
        return cls()


DIFFBASE = [('diffbase', method) for method in ('build', 'fetch', 'store')]


PROGRESS = [('progress', method) for method in ('clear', 'fetch', 'store', 'purge', 'flush')]


@pytest.mark.parametrize('option, method', DIFFBASE + PROGRESS)
@in_virtual_time
async def test_an_edit_is_handled_once_when_a_failing_storage_is_back(world, option, method):
    outage = Outage(method)
    if option == 'diffbase':
        world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    else:
        world.settings.persistence.progress_storage = outage.storage(kopf.AnnotationsProgressStorage)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update', does={'done': True})
    world.declare(kopf.on.update, 'retried', does=[kopf.TemporaryError("not yet", delay=0.1)])
    async with world.operator():
        await world.create()
        await world.handled()
        outage.lasts = True
        await world.edit(field='v2')
        await world.until_logged(
            f"settings.persistence.{option}_storage (Database) has failed to "
            f"{method}: ConnectionError: the database is down"
        )
        outage.lasts = False
        await world.handled(field='v2')
        assert (await world.get())['status']['update'] == {'done': True}
        await world.edit(field='v3')
        await world.handled(field='v3')
    assert [call['new']['spec']['field'] for call in world.called('update')] == ['v2', 'v3']
    assert not any('processing has failed' in text for text in world.log.texts)


@pytest.mark.parametrize('handled', ['creation', 'deletion'])
@in_virtual_time
async def test_creations_and_deletions_are_handled_once_when_a_failing_storage_is_back(world, handled):
    outage = Outage('store', 'purge', 'flush')
    world.settings.persistence.progress_storage = outage.storage(kopf.AnnotationsProgressStorage)
    world.declare(kopf.on.create, 'create', does='created')
    world.declare(kopf.on.delete, 'delete', does='deleted')
    async with world.operator():
        outage.lasts = handled == 'creation'
        await world.create()
        if outage.lasts:
            await world.until(lambda: outage.failures > 2)
            outage.lasts = False
        await world.handled()
        assert (await world.get())['status']['create'] == 'created'
        outage.lasts = handled == 'deletion'
        await world.delete()
        if outage.lasts:
            await world.until_called('delete')
            await world.until(lambda: outage.failures > 2)
            outage.lasts = False
        await world.gone()
    assert world.ids == ['create', 'delete']


@in_virtual_time
async def test_a_storage_that_cannot_tell_at_a_glance_if_anything_has_changed_loses_no_edit(world):
    outage = Outage('matches')
    world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create()
        await world.handled()
        outage.lasts = True
        await world.edit(field='v2')
        await world.handled(field='v2')
    assert outage.failures and world.ids == ['create', 'update']


@in_virtual_time
async def test_idle_timers_go_on_when_a_failing_storage_is_back(world):
    outage = Outage('build')
    world.settings.persistence.diffbase_storage = outage.storage(kopf.AnnotationsDiffBaseStorage)
    world.declare(kopf.timer, 'timer', idle=0.2)
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.until_called('timer')
        outage.lasts = True
        await world.edit(field='v2')
        await world.until_logged("has failed to build")
        outage.lasts = False
        await world.until_called('timer', 2)
    assert world.called('timer')[-1]['spec'] == {'field': 'v2'}
    assert not any('processing has failed' in text for text in world.log.texts)


@in_virtual_time
async def test_an_object_with_failing_patches_is_throttled_without_delaying_others(world, caplog):
    world.settings.queueing.error_delays = [0.05, 0.06]
    world.declare(kopf.on.create, 'create', does=None)
    async with world.operator():
        rule = world.sandbox.faults.error(403, times=None, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling for 0.05 seconds due to an unexpected error')
        await world.settled()  # others go on
        await world.until(lambda: sum('Throttling for 0.06 seconds' in text for text in world.log.texts) >= 2)
        world.sandbox.faults.clear()
        await world.edit(field='v2')
        await world.handled(field='v2')
        await world.until_logged('Throttling is over. Switching back to normal operations.')
    assert rule.times is None and len(world.called('create', 'obj')) == 1
    skipped = [record.k8s_skip for record in caplog.records if 'Throttling' in record.getMessage()]
    assert skipped and all(skipped)  # they are not posted as events


class FailingStorage(kopf.ProgressStorage):
    """Fails to store anything."""

    def fetch(self, *, key, body):
        return None

    def purge(self, *, key, body, patch):
        pass

    def store(self, *, key, record, body, patch):
        raise RuntimeError("boo")


@in_virtual_time
async def test_the_same_failure_is_shown_with_its_traceback_once(world, caplog):
    world.settings.queueing.error_delays = [0.01]
    world.settings.persistence.progress_storage = FailingStorage()
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError('boo', delay=0))

    def shown():
        return [record.exc_info is not None for record in caplog.records if 'Throttling' in record.getMessage()]

    async with world.operator():
        await world.create()
        await world.until(lambda: len(shown()) >= 3)
    assert shown()[:3] == [True, False, False]


@in_virtual_time
async def test_edits_hasten_the_next_attempt_but_not_before_a_pause(world, monkeypatch):
    monkeypatch.setattr(throttling, 'RECOVERY_PAUSE', 0.5)
    world.settings.queueing.error_delays = [999]
    world.declare(kopf.on.create, 'create', does={'field': 'x'})
    world.declare(kopf.on.delete, 'delete')
    world.sandbox.faults.error(422, method='PATCH', name='obj', times=1)
    async with world.operator():
        await world.create(finalizers=[world.settings.persistence.finalizer])
        await world.until_logged('Throttling for 999 seconds')
        failed = time.monotonic()
        await world.delete()
        await world.gone()
    assert time.monotonic() - failed > 0.4


@in_virtual_time
async def test_edits_that_have_come_before_the_failure_do_not_hasten_the_next_attempt(world):
    world.settings.queueing.error_delays = [999]

    async def edit(name, **_):
        if name == 'obj':
            await world.edit(field='edited')
            await world.create('later')  # it comes after the edit
            await world.until_called('seen', name='later')

    world.declare(kopf.on.event, 'seen')
    world.declare(kopf.on.create, 'create', does=edit)
    world.sandbox.faults.error(500, method='PATCH', name='obj', times=None)
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 999 seconds')
        await world.settled()
    assert sum('Throttling' in text for text in world.log.texts) == 1


@pytest.fixture
def refusing(world):
    """Have an API that refuses the value 'wrong' in the status, and an operator that waits for an edit then."""
    world.settings.queueing.error_delays = [999]
    is_wrong = re.compile(rb'"[^"\\]*(value|asking)[^"\\]*": ?"wrong"').search
    # Why not 422? In response to the patch of a function, it can mean that the object has changed.
    message = 'admission webhook "x.example.com" denied the request: no'
    world.sandbox.faults.error(
        403, times=None, method='PATCH', condition=lambda request: is_wrong(request.body), message=message
    )


def declare_effect(world, decorator, id, *errors, **options):
    """Declare a handler that cannot change the object: it does not even have access to the patch."""
    errors = [*errors]

    @decorator('kopfexamples', id=id, registry=world.registry, **options)
    async def fn(name, retry, **_):
        world.note(id, name, retry=retry)
        if errors:
            raise errors.pop()


async def resume_wrong(world):
    """Let there be an object to be resumed, with the value that is refused, and a handler that asks for it."""
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create(spec={'field': 'wrong'})
        await world.handled()
    world.declare(kopf.on.resume, 'asking', does=put_value)
    declare_effect(world, kopf.on.resume, 'other')


async def put_value(spec, patch, **_):
    patch.status['value'] = spec.get('field')


async def put_function(spec, patch, **_):
    patch.fns.append(lambda body: body.setdefault('status', {}).update(value=spec.get('field')))


async def return_value(spec, **_):
    return spec.get('field')


async def put_value_in_place(spec, patch, **_):
    patch.setdefault('status', {}).update(value=spec.get('field'))


async def put_unstorable(spec, patch, **_):
    patch.status.update(value=spec.get('field'), unstorable=2**64)


@pytest.mark.parametrize('ask', [put_value, put_function, return_value, put_value_in_place, put_unstorable])
@pytest.mark.parametrize('decorator', [kopf.on.create, kopf.on.update])
@in_virtual_time
async def test_only_handlers_whose_changes_are_refused_begin_anew_after_an_edit(world, refusing, decorator, ask):
    async def note(patch, **_):
        patch.status['noted'] = True

    if decorator is not kopf.on.create:
        world.declare(kopf.on.create, 'create')
    world.declare(decorator, 'first', field='spec.other')
    world.declare(decorator, 'noting', field='spec.field', does=note)
    world.declare(decorator, 'asking', field='spec.field', does=ask)
    declare_effect(world, decorator, 'retried', kopf.TemporaryError("not yet", delay=50), field='spec.other')
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        if decorator is kopf.on.create:
            await world.create(spec={'field': 'wrong', 'other': 1})
        else:
            await world.create()
            await world.handled()
            await world.edit(field='wrong', other=1)
        await world.until_logged('Throttling for 999 seconds')
        world.calls.clear()
        await world.edit(field='right')
        await world.until_called('retried')
    assert world.ids == ['noting', 'asking', 'retried']
    assert [call.kwargs['retry'] for call in world.calls] == [0, 0, 1]


@in_virtual_time
async def test_handlers_that_have_requested_the_same_as_others_begin_anew(world, refusing):
    async def put_both(spec, patch, **_):
        patch.status['value'] = spec['field']
        if spec['field'] == 'wrong':
            patch.status['phase'] = 'Ready'

    async def put_phase(patch, **_):
        patch.status['phase'] = 'Ready'

    world.declare(kopf.on.create, 'both', does=put_both)
    world.declare(kopf.on.create, 'phase', does=put_phase)
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create(spec={'field': 'wrong'})
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        body = await world.handled(field='right')
    assert body['status'] == {'value': 'right', 'phase': 'Ready'}


@in_virtual_time
async def test_sub_handlers_whose_changes_are_not_refused_are_not_called_again(world, refusing):
    errors = [kopf.TemporaryError("not yet", delay=50)]

    async def parent(**_):
        for id, does in [('asking', return_value), ('other', None), ('failing', errors)]:
            world.declare(lambda _, *, registry, id: kopf.subhandler(id=id), id, does=does)

    world.declare(kopf.on.create, 'parent', does=parent)
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create(spec={'field': 'wrong'})
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        await world.until_called('failing', 2)
    assert world.ids == ['parent', 'asking', 'other', 'failing', 'parent', 'asking', 'parent', 'failing']
    assert [call['retry'] for call in world.called('parent')] == [0, 0, 1]


@pytest.mark.parametrize('edit', [{'field': 'old'}, {'field': 'old', 'x': 1}], ids=['the whole update', 'the field'])
@in_virtual_time
async def test_handlers_whose_changes_are_refused_are_told_if_the_edit_is_reverted(world, refusing, edit):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'asking', field='spec.field', does=put_value)
    async with world.operator():
        await world.create(spec={'field': 'old'})
        await world.handled()
        await world.edit(field='wrong')
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(**edit)
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status') == {'value': 'old'})
    assert [call['spec']['field'] for call in world.called('asking')] == ['wrong', 'old']


@in_virtual_time
async def test_handlers_whose_changes_are_refused_in_a_creation_are_told_if_their_field_is_removed(world, refusing):
    world.declare(kopf.on.create, 'create', field='spec.field', does=return_value)
    world.declare(kopf.on.field, 'asking', field='spec.field', does=put_value)
    world.declare(kopf.on.update, 'create', field='spec.field')
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create(spec={'field': 'wrong', 'x': 1})
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field=None)
        await world.handled(x=1)
    assert [(call.id, call.kwargs['spec'].get('field')) for call in world.calls] == [
        ('create', 'wrong'),
        ('asking', 'wrong'),
        ('asking', None),
    ]


@in_virtual_time
async def test_a_deletion_repeats_only_the_field_handlers_whose_changes_are_refused(world, refusing):
    world.declare(kopf.on.field, 'asking', field='spec.field', does=put_value)
    declare_effect(world, kopf.on.field, 'other', field='spec.field')
    world.declare(kopf.on.delete, 'delete')
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create()
        await world.handled()
        world.calls.clear()
        await world.edit(field='wrong')
        await world.until_logged('Throttling for 999 seconds')
        await world.delete()
        await world.until_called('delete')
    assert world.ids == ['asking', 'other', 'asking', 'delete']


@in_virtual_time
async def test_resuming_handlers_whose_changes_are_refused_run_again_beside_an_update(world, refusing):
    await resume_wrong(world)
    world.declare(kopf.on.update, 'update')
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        await world.handled(field='right')
    assert world.ids == ['create', 'asking', 'other', 'asking', 'update']


@in_virtual_time
async def test_changes_of_resuming_handlers_that_are_refused_in_an_update_repeat_these_handlers(world):
    world.settings.queueing.error_delays = [1, 999]
    await resume_wrong(world)
    declare_effect(world, kopf.on.update, 'update', field='spec.x')
    world.sandbox.faults.error(500, times=1, method='PATCH')
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.until_logged('Throttling for 1 seconds')
        world.sandbox.faults.error(422, times=1, method='PATCH', condition=lambda request: b'value' in request.body)
        await world.edit(x=1)
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        await world.handled(field='right')
    assert world.ids == ['create', 'asking', 'other', 'update', 'asking']


@in_virtual_time
async def test_refused_changes_of_raw_events_repeat_no_other_handlers(world, refusing):
    world.declare(kopf.on.event, 'asking', does=put_value)
    declare_effect(world, kopf.on.create, 'create')
    async with world.operator():
        await world.create(spec={'field': 'wrong'})
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        await world.handled(field='right')
    assert len(world.called('create')) == 1


@in_virtual_time
async def test_handlers_whose_changes_are_stored_do_not_run_again_after_later_ones_are_refused(world, refusing):
    world.declare(kopf.on.create, 'stored', does='result')
    world.declare(kopf.on.create, 'asking', does=put_value)
    async with world.operator(lifecycle=kopf.lifecycles.one_by_one):
        await world.create(spec={'field': 'wrong'})
        await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='right')
        await world.handled(field='right')
    assert world.ids == ['stored', 'asking', 'asking']


@in_virtual_time
async def test_edits_of_a_throttled_object_are_handled_after_the_delay(world):
    world.declare(kopf.on.create, 'create', does='result')
    world.declare(kopf.on.update, 'update', does='result')
    async with world.operator():
        await world.create()
        await world.handled()
        world.settings.queueing.error_delays = [0.2]
        world.sandbox.faults.error(500, times=1, verb='patch', name='obj')
        await world.edit(field='v2')
        await world.until_logged('Throttling for 0.2 seconds')
        await world.edit(field='v3')
        body = await world.handled(field='v3')
    assert world.called('update')[-1]['new']['spec'] == {'field': 'v3'}
    assert body['status'] == {'create': 'result', 'update': 'result'}


@in_virtual_time
async def test_a_throttled_object_can_be_deleted_and_created_anew(world):
    world.settings.queueing.error_delays = [0.1]
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        world.sandbox.faults.error(500, times=1, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling')
        await world.delete()
        await world.create(spec={'field': 'new'})
        await world.handled(field='new')
    assert len(world.called('create', 'obj')) == 2


@in_virtual_time
async def test_the_deletion_of_a_throttled_object_is_reported_after_handlers_are_declared(world, monkeypatch):
    monkeypatch.setattr(throttling, 'RECOVERY_PAUSE', 60)
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        world.sandbox.faults.error(500, times=None, verb='patch', name='obj')
        await world.create()
        await world.until_logged('Throttling for 60 seconds')
        await world.delete()
        await world.settled()
        world.declare(kopf.on.event, 'another')
        await world.until(lambda: 'DELETED' in [call['type'] for call in world.called('event', 'obj')])


@pytest.mark.parametrize(
    'status, message, remedy',
    [
        (
            403,
            'kexes "obj" is forbidden: User "op" cannot patch resource "kexes": access denied',
            "Grant the verb patch",
        ),
        (403, 'admission webhook "x.example.com" denied the request: no', "Fix what the handlers put there"),
        (404, 'admission webhook "x.example.com" denied the request: no', "Fix what the handlers put there"),
        (401, 'admission webhook "x.example.com" denied the request: no', "Fix what the handlers put there"),
    ],
)
async def test_refusals_by_rbac_and_denials_by_admission_have_different_remedies(world, status, message, remedy):
    world.declare(kopf.on.create, 'create', does='result')
    world.sandbox.faults.error(status, times=1, verb='patch', name='obj', reason='Forbidden', message=message)
    async with world.operator():
        await world.create()
        await world.until_logged(f"The API refuses to patch the object: {message}. {remedy}")
        await world.handled()
    assert (await world.get())['status'] == {'create': 'result'}
    assert len(world.called('create')) == 1


@pytest.mark.parametrize(
    'managed, is_own', [('example.com', True), ('ple.com', False), ('other.com', False), (None, False)]
)
@pytest.mark.parametrize('decorator', [kopf.on.create, kopf.on.reconcile])
async def test_a_refusal_by_a_webhook_of_the_operator_itself_is_explained(world, decorator, managed, is_own):
    message = 'admission webhook "check-size.example.com" denied the request: too large'
    world.declare(decorator, 'handler', does=lambda patch, **_: patch.status.update(done=True))
    world.sandbox.faults.error(403, times=1, verb='patch', name='obj', reason='Forbidden', message=message)
    world.settings.admission.managed = managed
    async with world.operator():
        await world.create()
        if is_own:
            await world.until_logged(
                f"A webhook of this operator refuses the operator's own patch of the object: {message}. Let its "
                f"handler pass objects if what it checks has not changed"
            )
        else:
            await world.until_logged(f"The API refuses to patch the object: {message}. Fix what the handlers put there")


REFUSED = kopf.Patch({'spec': {'x': 'refused'}})


@pytest.mark.parametrize(
    'known, event, refused, stale, hastened',
    [
        # A deletion is a reason once: when it is seen first, and when the object is gone.
        ({}, ('MODIFIED', {'deleted': True}), None, False, True),
        ({'deleted': True}, ('MODIFIED', {'deleted': True}), None, False, False),
        ({'deleted': True}, ('DELETED', {'deleted': True}), None, False, True),
        (None, ('MODIFIED', {'deleted': True}), None, False, True),
        (None, ('DELETED', {}), None, False, True),
        # An edit is a reason only after a refusal, and if it is an edit by another client.
        ({}, ('MODIFIED', {'spec': {'x': 'edited'}}), None, False, False),
        ({'spec': {'y': 'old'}}, ('MODIFIED', {'spec': {'y': 'edited'}}), REFUSED, False, True),
        ({'spec': {'y': 'old'}}, ('MODIFIED', {'spec': {'y': 'edited'}}), REFUSED, True, False),
        ({}, ('MODIFIED', {'status': {'x': 'edited'}}), REFUSED, False, False),
        ({}, ('MODIFIED', {'spec': {'x': 'refused'}}), REFUSED, False, False),
    ],
)
def test_only_changes_that_can_help_hasten_the_next_attempt(known, event, refused, stale, hastened):
    def make(deleted=False, **fields):
        metadata = {'name': 'obj', 'uid': 'uid', **({'deletionTimestamp': '2030-01-01T00:00:00Z'} if deleted else {})}
        return {'metadata': metadata, **fields}

    settings, registry = kopf.OperatorSettings(), kopf.OperatorRegistry()
    table = HandlerTable.build(registry, Resource('kopf.dev', 'v1', 'kopfexamples'), set())
    throttled = throttling.Throttling(settings, Decider(table, settings.persistence))
    record = ObjectRecord('uid', None, 'obj', initial=False)
    if known is not None:
        record.accept(make(**known))
    if refused is not None:
        record.keep_patch(refused)
    throttled.fail(record, APIUnprocessableError('no', status=422) if refused else APIServerError('no', status=500))
    type, fields = event
    asked = []
    found = throttled.hasten(
        record, {'type': type, 'object': make(**fields)}, check_stale=lambda: asked.append(1) or stale
    )
    assert (found is not None) is hastened
    # The question changes what is expected of the stream, so it is asked only if the answer decides.
    assert bool(asked) is (refused is not None)
    if hastened:
        again = throttled.hasten(record, {'type': type, 'object': make(**fields)}, check_stale=lambda: False)
        assert again is None


def fail(body):
    raise ValueError("boo")


def break_patch(patch, *, by):
    """Make a patch that cannot be applied: because of a function, or of a value that the API refuses."""
    if by == 'function':
        patch.fns.append(fail)
    else:
        patch.metadata.labels['x'] = 'not a valid value!'


@pytest.mark.parametrize('moment', ['while the handler runs', 'in the delay'])
@pytest.mark.parametrize('by', ['function', 'value'])
@in_virtual_time
async def test_a_correction_is_handled_if_a_patch_could_not_be_applied(world, by, moment):
    world.settings.queueing.error_delays = [999]
    gate = Gate()

    async def work(patch, spec, **_):
        if spec['field'] != 'corrected':
            await gate()
            break_patch(patch, by=by)

    world.declare(kopf.on.create, 'create', does=work)
    async with world.operator():
        await world.create()
        await world.until_called('create')
        if moment == 'in the delay':
            gate.open()
            await world.until_logged('Throttling for 999 seconds')
        await world.edit(field='corrected')
        await asyncio.sleep(1)
        gate.open()
        await world.handled(field='corrected')
    assert [call['spec']['field'] for call in world.called('create')] == ['value', 'corrected']


@pytest.mark.parametrize('moment', ['while the handler runs', 'in the delay'])
@pytest.mark.parametrize('by', ['function', 'value'])
@in_virtual_time
async def test_a_deletion_is_handled_if_a_patch_could_not_be_applied(world, by, moment):
    world.settings.queueing.error_delays = [999]
    gate = Gate()

    async def work(patch, **_):
        await gate()
        break_patch(patch, by=by)

    world.declare(kopf.on.create, 'create', does=work)
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await world.create()
        await world.until_called('create')
        if moment == 'in the delay':
            gate.open()
            await world.until_logged('Throttling for 999 seconds')
        await world.delete()
        await asyncio.sleep(1)
        gate.open()
        await world.gone()
    assert world.ids == ['create', 'delete']
