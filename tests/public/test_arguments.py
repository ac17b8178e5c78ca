"""Functions of all kinds take the arguments that they name, and no others, without ``**_``."""

import contextvars
import pathlib
import urllib.request

import pytest
from ports import free_port

import kopf
from kopf._core.intents import handlers
from kopf._core.intents.handlers import KINDS

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'examples'
CRD = EXAMPLES / 'crd.yaml'

HANDLERS = """
import functools
import kopf

def say(what, ok=True):
    print(f'{what}: {"as it should" if ok else "WRONG"}', flush=True)

@kopf.on.login()
def log_in(logger, settings):
    return kopf.login_with_kubeconfig(logger=logger, settings=settings)

@kopf.on.startup()
async def start(settings):
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    say('startup')

@kopf.on.schedule(interval=99)
def repeat(memo, activity):
    say('schedule', activity == 'schedule')

@kopf.on.cleanup()
async def end():
    say('cleanup')

@kopf.index('kopfexamples')
def names(name):
    return {name: 1}

@kopf.on.event('kopfexamples')
def seen(type, names, nosuch=5):
    say('event', 'x' in names and nosuch == 5)

@kopf.on.event('kopfexamples', id='bare')
def bare():
    say('bare')

def with_first(first, name):
    say('partial', (first, name) == (1, 'x'))

kopf.on.event('kopfexamples', id='partial')(functools.partial(with_first, 1))

class Callable:
    def __call__(self, name, retry):
        say('callable', name == 'x' and retry == 0)

    def method(self, *, labels):
        say('method', labels['a'] == '1')

    @staticmethod
    def static(meta, *args):
        say('static', meta['name'] == 'x' and not args)

    @classmethod
    def of_class(cls, uid, **others):
        say('class', len(uid) > 9 and {'name', 'spec', 'event', 'names'} <= set(others) and 'uid' not in others)

kopf.on.event('kopfexamples', id='callable')(Callable())
kopf.on.event('kopfexamples', id='method')(Callable().method)
kopf.on.event('kopfexamples', id='static')(Callable.__dict__['static'])
kopf.on.event('kopfexamples', id='class')(Callable.of_class)

def decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        say('wrapper', 'spec' in kwargs)
        return fn(kwargs['name'])
    return wrapper

@kopf.on.event('kopfexamples', id='decorated')
@decorated
def inner(of_the_wrapper):
    say('inner', of_the_wrapper == 'x')

@kopf.on.create(
    'kopfexamples',
    labels={'a': lambda value: value == '1', 'b': str.isdigit},
    annotations={'c': kopf.all_([lambda value, name: value == '1' and name == 'x', kopf.not_(lambda v: v == '2')])},
    field='spec.size', value=lambda size, *, spec: size == spec['size'],
    when=kopf.any_([lambda: False, lambda meta: 'a' in meta.labels]))
def created(old, new, param):
    say('create', (old, new, param) == (None, 3, None))
    kopf.register(child, param='p')

def child(spec, param):
    say('child', (spec['size'], param) == (3, 'p'))

@kopf.on.field('kopfexamples', field='spec.size', old=lambda old: old == 3, new=lambda new, diff: new == 4 and diff)
async def changed(old, new, diff):
    say('field', (old, new, diff[0].op) == (3, 4, 'change'))

@kopf.daemon('kopfexamples', initial_delay=lambda name: 0 if name == 'x' else 99)
async def accompany(stopped):
    say('daemon')
    await stopped.wait()

@kopf.timer('kopfexamples', interval=99, initial_delay=lambda: 0)
def tick(patch, started, runtime):
    say('timer', runtime.total_seconds() < 9)

@kopf.on.reconcile('kopfexamples', owns=['configmaps'])
async def reconcile(name, spec, children, reasons, nosuch=5):
    say('reconcile', (name, nosuch) == ('x', 5) and spec['size'] in (3, 4) and reasons and not children['configmaps'])

@kopf.on.probe()
def probe(retry):
    say('probe', retry == 0)
"""
EXPECTED = {
    'startup',
    'schedule',
    'event',
    'bare',
    'partial',
    'callable',
    'method',
    'static',
    'class',
    'wrapper',
    'inner',
    'create',
    'child',
    'probe',
    'daemon',
    'timer',
    'field',
    'reconcile',
}
BODY = {
    'apiVersion': 'kopf.dev/v1',
    'kind': 'KopfExample',
    'spec': {'size': 3},
    'metadata': {'name': 'x', 'labels': {'a': '1', 'b': '2'}, 'annotations': {'c': '1'}},
}


@pytest.mark.usefixtures('forked_operators')
def test_functions_of_all_kinds_get_what_they_name(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / 'handlers.py').write_text(HANDLERS)
    kopf_sandbox.apply(CRD)
    kopf_sandbox.create(BODY)
    probes = f'http://127.0.0.1:{free_port()}/healthz'
    with kopf_operator(tmp_path / 'handlers.py', '--liveness', probes) as operator:
        operator.wait_for_output('Creation is processed')
        urllib.request.urlopen(probes).close()
        kopf_sandbox.patch('kopfexamples', 'x', {'spec': {'size': 4}})
        for each in EXPECTED:
            operator.wait_for_output(f'{each}: ')
    assert operator.output.count('cleanup: as it should') == 1
    assert 'WRONG' not in operator.output
    assert 'Traceback' not in operator.output


LIFECYCLE = """
import kopf

def two_at_once(handlers, state, name):
    print(f'picks for {name} of {len(handlers)}', len(state) >= len(handlers), flush=True)
    return handlers[:2]

kopf.set_default_lifecycle(two_at_once)
kopf.on.create('kopfexamples', id='a')(lambda: None)
kopf.on.create('kopfexamples', id='b')(lambda: None)
"""


@pytest.mark.usefixtures('forked_operators')
def test_lifecycles_get_what_they_name(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / 'handlers.py').write_text(LIFECYCLE)
    kopf_sandbox.apply(CRD)
    kopf_sandbox.create(BODY)
    with kopf_operator(tmp_path / 'handlers.py') as operator:
        operator.wait_for_output('picks for x of 2 True')
        operator.wait_for_output('Creation is processed: 2 succeeded')


WEBHOOKS = """
import kopf

@kopf.on.startup()
def configure(settings):
    settings.admission.server = kopf.WebhookServer(port=0)
    settings.admission.managed = 'arguments.kopf.dev'

@kopf.on.validate('kopfexamples', when=lambda operation: operation == 'CREATE')
def check(spec, warnings, dryrun, namespace):
    warnings.append(f'seen in {namespace}')
    if 'size' not in spec:
        raise kopf.AdmissionError('no size')

@kopf.on.mutate('kopfexamples')
def mutate(patch, userinfo):
    patch.metadata.annotations['by'] = userinfo.get('username') or 'unknown'
"""


@pytest.mark.usefixtures('forked_operators')
def test_webhooks_get_what_they_name(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / 'handlers.py').write_text(WEBHOOKS)
    kopf_sandbox.apply(CRD)
    with kopf_operator(tmp_path / 'handlers.py'):
        for resource in ('validatingwebhookconfigurations', 'mutatingwebhookconfigurations'):
            kopf_sandbox.wait_for(resource, 'arguments.kopf.dev', lambda body: body['webhooks'])
        assert 'by' in kopf_sandbox.create(BODY)['metadata']['annotations']
        with pytest.raises(Exception, match='no size'):
            kopf_sandbox.create({**BODY, 'metadata': {'name': 'y'}, 'spec': {}})


CONVERSIONS = """
import kopf

@kopf.on.startup()
def configure(settings):
    settings.admission.server = kopf.WebhookServer(port=0)
    settings.admission.managed = 'arguments.kopf.dev'

@kopf.on.convert('kopfalarms', param='p')
def convert(name, spec, patch, from_version, to_version, param):
    patch.spec['at'] = f"{spec.get('hour')} {from_version}-{to_version} {name} {param}"

kopf.on.event('kopfalarms')(lambda: None)  # an operator is ready when it watches something
"""


@pytest.mark.usefixtures('forked_operators')
def test_conversions_get_what_they_name(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / 'handlers.py').write_text(CONVERSIONS)
    kopf_sandbox.apply(EXAMPLES / '19-conversion' / 'crd.yaml')
    name = 'kopfalarms.kopf.dev'
    with kopf_operator(tmp_path / 'handlers.py'):
        kopf_sandbox.wait_for(
            'customresourcedefinitions', name, lambda body: body['spec']['conversion']['strategy'] == 'Webhook'
        )
        body = {'apiVersion': 'kopf.dev/v2', 'kind': 'KopfAlarm', 'metadata': {'name': 'x'}, 'spec': {'hour': 5}}
        kopf_sandbox.create(body)
        assert kopf_sandbox.get('kopfalarms.v1.kopf.dev', 'x')['spec']['at'] == '5 v2-v1 x p'


def test_handlers_of_all_kinds_are_among_these():
    registry = kopf.OperatorRegistry()

    def declare():
        kopf.set_default_registry(registry)
        for source in (HANDLERS, WEBHOOKS, CONVERSIONS):
            exec(source, {})

    contextvars.copy_context().run(declare)
    declared = list(registry.iter_handlers())
    kinds = {each for each in vars(handlers).values() if isinstance(each, type) and issubclass(each, tuple(KINDS))}
    assert kinds > set(KINDS)
    assert {each.__name__ for each in kinds if not any(isinstance(item, each) for item in declared)} == set()


SUBHANDLERS = """
import kopf

@kopf.on.create('kopfexamples', retries=1)
def created():
    kopf.register(child)

def child(ARGUMENTS):
    pass
"""


@pytest.mark.parametrize(
    'signature, message',
    [
        (
            'specs',
            "asks for 'specs', which it is not given. There is no such argument, and no index of this name. "
            "Did you mean spec?",
        ),
        ('event', "asks for 'event', which it is not given. It is given to: @kopf.on.event."),
    ],
)
@pytest.mark.usefixtures('forked_operators')
def test_sub_handlers_that_ask_for_what_there_is_not(kopf_sandbox, kopf_operator, tmp_path, signature, message):
    (tmp_path / 'handlers.py').write_text(SUBHANDLERS.replace('ARGUMENTS', signature))
    kopf_sandbox.apply(CRD)
    kopf_sandbox.create(BODY)
    with kopf_operator(tmp_path / 'handlers.py') as operator:
        operator.wait_for_output('Creation is processed: 0 succeeded; 1 failed')
    assert message in operator.output
