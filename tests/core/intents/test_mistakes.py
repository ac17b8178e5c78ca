"""What handlers are said to be given is what they are given; functions are judged by what they can be called with."""
import functools
import logging

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import utcnow
from kopf._core.actions.progression import HandlerState
from kopf._core.intents import causes, handlers, mistakes

OBJECT = {'logger': logging.getLogger(), 'memo': None, 'resource': Resource('kopf.dev', 'v1', 'kopfexamples'),
              'body': Body({}), 'patch': Patch()}
WEBHOOK = {'dryrun': False, 'webhook': None, 'headers': {}, 'sslpeer': {}, 'userinfo': {}, 'warnings': [],
           'operation': 'CREATE', 'subresource': None}


@pytest.mark.parametrize('cls, cause', [
    (handlers.ActivityHandler, causes.ActivityCause(
        logger=logging.getLogger(), memo=None, activity=causes.Activity.STARTUP, settings=kopf.OperatorSettings())),
    (handlers.IndexingHandler, causes.IndexingCause(**OBJECT)),
    (handlers.WatchingHandler, causes.WatchingCause(**OBJECT, event={'type': None, 'object': {}})),
    (handlers.DaemonHandler, causes.DaemonCause(**OBJECT, stopped=None, identity=causes.Identity(None, None, None))),
    (handlers.TimerHandler, causes.DaemonCause(**OBJECT, stopped=None, identity=causes.Identity(None, None, None))),
    (handlers.ChangingHandler, causes.ChangingCause(**OBJECT, reason=causes.Reason.CREATE)),
    (handlers.WebhookHandler, causes.WebhookCause(**OBJECT, **WEBHOOK, reason=None)),
    (handlers.ConversionHandler, causes.ConversionCause(
        **OBJECT, from_version='v1', to_version='v2', headers={}, sslpeer={})),
])
def test_what_is_provided(cls, cause):
    handler = handlers.ResourceHandler(id='x', fn=lambda **_: None)
    provided = next(names for base, names in mistakes.PROVIDED.items() if issubclass(cls, base))
    assert set(cause.kwargs_for(handler, HandlerState(started=utcnow()))) == provided


def plain(spec, **_): ...


def resource_predicate(resource): ...


def open_predicate(resource, **_): ...


@functools.wraps(resource_predicate)
def wrapper(**kwargs): ...


class Callable:
    def __call__(self, **kwargs): ...

    def method(self, name, **kwargs): ...


@pytest.mark.parametrize('fn', [
    plain, lambda **_: None, functools.partial(lambda x, **_: None, 1), wrapper, Callable(), Callable().method, dict])
def test_functions_that_can_be_handlers(fn):
    mistakes.check_handler('create', fn)


@pytest.mark.parametrize('fn', [resource_predicate, Callable.method, 'text', None, lambda spec, /, **_: None])
def test_functions_that_cannot(fn):
    with pytest.raises(TypeError):
        mistakes.check_handler('create', fn)


def test_predicates_are_not_taken_for_handlers():
    assert mistakes.is_bare(plain)
    assert mistakes.is_bare(lambda spec, name, **_: None)
    assert mistakes.is_bare(lambda **_: None)
    assert not mistakes.is_bare(resource_predicate)
    assert not mistakes.is_bare(open_predicate)
    assert not mistakes.is_bare(Callable())
    assert not mistakes.is_bare('kopfexamples')


def test_indices_are_given_to_all():
    registry = kopf.OperatorRegistry()
    kopf.on.create('kopfexamples', registry=registry)(lambda pods, **_: None)
    with pytest.raises(mistakes.DeclarationError, match=r"asks for 'pods'.*no index of this name"):
        mistakes.check_registry(registry)
    kopf.index('pods', id='pods', registry=registry)(lambda **_: None)
    mistakes.check_registry(registry)


def test_optional_arguments_need_not_be_given():
    registry = kopf.OperatorRegistry()
    kopf.on.create('kopfexamples', registry=registry)(lambda extra=None, **_: None)
    mistakes.check_registry(registry)


@pytest.mark.parametrize('options, warned', [
    (({}, {}), True),
    (({'labels': {'a': '1'}}, {'labels': {'a': '2'}}), False),
    (({'id': 'x'}, {}), False),
])
def test_namesakes_are_told_of(options, warned, caplog):
    registry = kopf.OperatorRegistry()
    for chosen in options:
        def fn(**_): ...
        kopf.on.create('kopfexamples', registry=registry, **chosen)(fn)
    assert ("declared twice" in caplog.text) == warned


def test_functions_for_several_reasons_are_no_namesakes(caplog):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    def fn(**_): ...

    @kopf.on.delete('kopfexamples', registry=registry)
    def fn(**_): ...  # noqa: F811
    assert not caplog.text
