"""Operators as a whole: what several of them share in one process."""

import contextlib

import kopf


async def test_two_operators_in_one_process_handle_the_same_object(world):
    async with contextlib.AsyncExitStack() as stack:
        for name in ['one', 'two']:
            registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
            settings.posting.enabled = False
            settings.persistence.finalizer = f'{name}.example.com/finalizer'
            settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f'{name}.example.com')
            settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f'{name}.example.com')
            kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
            world.declare(kopf.on.create, f'{name}-create', does=name, registry=registry)
            world.declare(kopf.on.update, f'{name}-update', does=name, registry=registry)
            await stack.enter_async_context(world.operator(registry=registry, settings=settings))
        await world.create(spec={'field': 'v1'})
        await world.until_called('one-create')
        await world.until_called('two-create')
        await world.edit(field='v2')
        await world.until_called('one-update')
        await world.until_called('two-update')
        await world.aio.wait_for(
            'kopfexamples',
            'obj',
            lambda body: (
                body.get('status')
                == {'one-create': 'one', 'two-create': 'two', 'one-update': 'one', 'two-update': 'two'}
            ),
        )
        count = len(world.patches())
        await world.delete()
        await world.gone()
    assert sorted(world.ids) == ['one-create', 'one-update', 'two-create', 'two-update']
    assert len(world.patches()) == count
