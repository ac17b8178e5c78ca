"""Which namespaces are served, as they come and go; and what remains without the rights to see them."""

import asyncio
import collections
import contextlib
import sys

import pytest
import yaml
from operatorworld import ROOT

import kopf
from kopf._core.reactor import watches


@pytest.fixture
def scoped(world):
    world.declare(kopf.on.event, 'event')

    async def make(*namespaces):
        for namespace in namespaces:
            await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': namespace}})
            await put(namespace)

    async def put(namespace):
        await world.aio.create(
            {
                'apiVersion': 'kopf.dev/v1',
                'kind': 'KopfExample',
                'spec': {},
                'metadata': {'name': f'in-{namespace}', 'namespace': namespace},
            }
        )

    async def served(*namespaces):
        """Wait until exactly the objects of these namespaces have been seen."""
        wanted = {f'in-{namespace}' for namespace in namespaces}
        await world.until(lambda: wanted <= {call.name for call in world.calls})
        assert {call.name for call in world.calls} == wanted

    world.make, world.put, world.served = make, put, served
    return world


def watched(world, resource='kopfexamples'):
    """Return the namespaces that the operator has asked for the objects in."""
    return {
        seen.namespace
        for seen in world.sandbox.requests
        if seen.resource == resource and seen.user_agent.startswith('kopf/')
    }


@pytest.mark.parametrize(
    'patterns, expected',
    [
        (['myapp-*,!*-pr-*,*-pr-123'], {'myapp-live', 'myapp-pr-123'}),
        (['!*-pr-*'], {'myapp-live', 'otherapp-live'}),
        (['otherapp-*', 'myapp-live'], {'myapp-live', 'otherapp-live', 'otherapp-pr-123'}),
        (['myapp-l?ve'], {'myapp-live'}),
        (['myapp-live'], {'myapp-live'}),
    ],
)
async def test_namespaces_are_served_if_they_match_the_patterns(scoped, patterns, expected):
    names = ['myapp-live', 'myapp-pr-456', 'myapp-pr-123', 'otherapp-live', 'otherapp-pr-123']
    await scoped.make(*names[:2])
    async with scoped.operator(namespaces=patterns):
        await scoped.served(*expected & set(names[:2]))
        await scoped.make(*names[2:])
        await scoped.served(*expected)
    assert watched(scoped) & set(names) == expected


@pytest.mark.parametrize('pattern', ['app', 'app*'])
async def test_namespaces_are_served_each_time_they_are_created_anew(scoped, pattern):
    async with scoped.operator(namespaces=[pattern]):
        for _ in range(2):
            await scoped.make('app')
            await scoped.served('app')
            await scoped.aio.delete('namespaces', 'app')
            await scoped.aio.wait_gone('namespaces', 'app')
            scoped.calls.clear()


async def test_named_namespaces_are_served_once_they_exist(scoped):
    await scoped.make('one')
    async with scoped.operator(namespaces=['one', 'two']):
        await scoped.served('one')
        await scoped.until_logged("These namespaces are served as soon as they exist: two.")
        await scoped.make('two')
        await scoped.served('one', 'two')


async def test_a_cluster_wide_operator_does_not_watch_namespaces(scoped):
    await scoped.make('one', 'two')
    async with scoped.operator(clusterwide=True):
        await scoped.served('one', 'two')
    assert watched(scoped) == {''} and not watched(scoped, 'namespaces')


# With many of them.

CORE = str(ROOT / 'kopf' / '_c')
"""The operator's own modules: the core and its cogs, but not the kits."""


@contextlib.contextmanager
def counted_calls():
    """Count the calls of the operator's functions: unlike CPU seconds, they are the same on busy machines."""
    counts = collections.Counter()

    def note(frame, event, arg):
        if event == 'call' and frame.f_code.co_filename.startswith(CORE):
            counts['calls'] += 1

    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)


@pytest.fixture(params=['standalone', pytest.param('peering', marks=pytest.mark.long)])
async def measure(scoped, request):
    """Serve so many namespaces; return the calls of the start, and of 10 events of them with a new namespace."""
    if request.param == 'peering':
        for each in yaml.safe_load_all((ROOT / 'peering.yaml').read_text()):
            if each is not None and each['kind'] == 'CustomResourceDefinition':
                await scoped.aio.apply(each)

    async def measure(total):
        names = [f'of-{total}-{number}' for number in range(total)]
        await scoped.make(*names)
        scoped.calls.clear()
        standalone = request.param == 'standalone'
        with counted_calls() as counts:
            async with scoped.operator(namespaces=[f'of-{total}-*'], standalone=standalone):
                await scoped.served(*names)
                starting = counts['calls']
                for name in names[:10]:
                    await scoped.aio.patch('namespaces', name, {'metadata': {'labels': {'x': 'y'}}})
                await scoped.make(f'of-{total}-new')  # its event comes after those
                await scoped.served(*names, f'of-{total}-new')
                return starting, counts['calls'] - starting

    return measure


async def test_the_work_grows_with_the_number_of_namespaces_and_not_faster(measure):
    (few, few_events), (many, many_events) = await measure(10), await measure(60)
    assert many < 6 * few
    assert many_events < 1.5 * few_events


# With few rights.


def warnings(world, text):
    return [line for line in world.log.texts if text in line]


async def test_named_namespaces_are_served_without_the_right_to_watch_namespaces(scoped):
    await scoped.make('one', 'two-a')
    scoped.sandbox.faults.error(403, times=None, resource='namespaces', user_agent='kopf/', message="not for you")
    async with scoped.operator(namespaces=['one', 'two-*']):
        await scoped.until_logged('Grant the verbs list and watch for namespaces')
        await scoped.served('one')
    assert watched(scoped) == {'one'}
    (line,) = warnings(scoped, 'not for you')
    assert "only these namespaces are served, assuming that they exist: one." in line
    assert (
        len(
            [
                seen
                for seen in scoped.sandbox.requests
                if seen.resource == 'namespaces' and seen.user_agent.startswith('kopf/')
            ]
        )
        <= 2
    )  # a streamed list and a plain one, once


async def test_resources_are_served_without_the_right_to_watch_definitions(scoped):
    await scoped.make('one')
    scoped.sandbox.faults.error(
        403, times=None, resource='customresourcedefinitions', user_agent='kopf/', message="not for you"
    )
    async with scoped.operator(namespaces=['one']):
        await scoped.served('one')
        await scoped.until_logged('Grant the verbs list and watch for customresourcedefinitions.apiextensions.k8s.io')
        await scoped.put('default')
        await scoped.aio.patch('kopfexamples', 'in-one', {'spec': {'x': 'y'}}, namespace='one')
        await scoped.until(lambda: len(scoped.called('event', 'in-one')) == 2)
    assert len(warnings(scoped, 'not for you')) == 1


async def test_refused_watches_are_not_repeated_soon(scoped):
    await scoped.make('one')
    for resource in ['namespaces', 'customresourcedefinitions']:
        scoped.sandbox.faults.error(403, times=None, resource=resource, user_agent='kopf/', message="not for you")
    async with scoped.operator(namespaces=['one']):
        await scoped.served('one')
        await scoped.until(lambda: len(warnings(scoped, 'not for you')) == 2)
        before = len(scoped.sandbox.requests)
        await asyncio.sleep(1.0)
        assert not [seen for seen in list(scoped.sandbox.requests)[before:] if seen.status == 403]


async def test_namespaces_are_served_when_the_right_to_see_them_is_granted(scoped, monkeypatch):
    monkeypatch.setattr(watches, 'FORBIDDEN_BACKOFF', 0.2)
    await scoped.make('one-a')
    scoped.sandbox.faults.error(403, times=None, resource='namespaces', user_agent='kopf/', message="not for you")
    async with scoped.operator(namespaces=['one-*']):
        await scoped.until_logged('Grant the verbs list and watch for namespaces')
        await asyncio.sleep(0.5)
        scoped.sandbox.faults.clear()
        await scoped.served('one-a')
    assert len(warnings(scoped, 'not for you')) == 1


async def test_temporary_failures_to_watch_namespaces_are_retried(scoped):
    await scoped.make('one-a')
    scoped.sandbox.faults.error(500, times=2, resource='namespaces', user_agent='kopf/')
    async with scoped.operator(namespaces=['one-*']):
        await scoped.served('one-a')


async def test_handlers_without_indices_run_while_namespaces_cannot_be_listed(scoped):
    await scoped.make('one')
    scoped.sandbox.faults.error(500, times=None, resource='namespaces', user_agent='kopf/')
    kopf.index('configmaps', registry=scoped.registry)(lambda **_: {})
    seen = asyncio.Event()

    @kopf.on.event('secrets', registry=scoped.registry)
    async def see(name):
        seen.set()

    await scoped.aio.create({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'x', 'namespace': 'one'}})
    async with scoped.operator(namespaces=['one']):
        await seen.wait()


async def test_only_named_namespaces_are_served_if_scanning_is_disabled(scoped):
    await scoped.make('one', 'two-a')
    scoped.settings.scanning.disabled = True
    async with scoped.operator(namespaces=['one', 'two-*']):
        await scoped.served('one')
        await scoped.until_logged("The patterns of namespaces match nothing, as settings.scanning.disabled is set")
    assert not watched(scoped, 'namespaces') and not watched(scoped, 'customresourcedefinitions')
