"""What handlers are said to be given is what they are given; functions are judged by what they can be called with."""

import dataclasses
import functools
import logging
import re
from unittest import mock

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents import causes, handlers, mistakes

OBJECT = {
    'logger': logging.getLogger(),
    'memo': None,
    'resource': Resource('kopf.dev', 'v1', 'kopfexamples'),
    'body': Body({}),
    'patch': Patch(),
}
WEBHOOK = {
    'dryrun': False,
    'webhook': None,
    'headers': {},
    'sslpeer': {},
    'userinfo': {},
    'warnings': [],
    'operation': 'CREATE',
    'subresource': None,
}


@pytest.mark.parametrize(
    'cls, cause',
    [
        (
            handlers.ActivityHandler,
            causes.ActivityCause(
                logger=logging.getLogger(),
                memo=None,
                activity=causes.Activity.STARTUP,
                settings=kopf.OperatorSettings(),
            ),
        ),
        (handlers.IndexingHandler, causes.IndexingCause(**OBJECT)),
        (handlers.WatchingHandler, causes.WatchingCause(**OBJECT, event={'type': None, 'object': {}})),
        (
            handlers.DaemonHandler,
            causes.DaemonCause(**OBJECT, stopped=None, identity=causes.Identity(None, None, None)),
        ),
        (handlers.TimerHandler, causes.DaemonCause(**OBJECT, stopped=None, identity=causes.Identity(None, None, None))),
        (handlers.ChangingHandler, causes.ChangingCause(**OBJECT, reason=causes.Reason.CREATE)),
        (handlers.WebhookHandler, causes.WebhookCause(**OBJECT, **WEBHOOK, reason=None)),
        (
            handlers.ConversionHandler,
            causes.ConversionCause(**OBJECT, from_version='v1', to_version='v2', headers={}, sslpeer={}),
        ),
    ],
)
def test_the_listed_arguments_are_those_provided(cls, cause):
    handler = handlers.ResourceHandler(id='x', fn=lambda children=None, conditions=None, deleting=None, **_: None)
    provided = mistakes.list_arguments(cls)
    assert set(cause.kwargs_for(handler, HandlerState(started=utcnow()))) == provided - {'obj'}


def plain(spec, **_): ...


def resource_predicate(resource): ...


def open_predicate(resource, **_): ...


@functools.wraps(resource_predicate)
def wrapper(**kwargs): ...


class Callable:
    def __call__(self, **kwargs): ...

    def method(self, name, **kwargs): ...


@pytest.mark.parametrize(
    'fn',
    [
        plain,
        lambda: None,
        lambda resource: None,
        mock.Mock(spec=plain),
        lambda **_: None,
        functools.partial(lambda x, **_: None, 1),
        wrapper,
        Callable(),
        Callable().method,
        dict,
    ],
)
def test_proper_functions_are_accepted(fn):
    mistakes.check_handler('create', fn)


@pytest.mark.parametrize('fn', [Callable.method, 'text', None, lambda spec, /, **_: None, lambda spec, /: None])
def test_functions_that_cannot_be_called_are_found(fn):
    with pytest.raises(TypeError):
        mistakes.check_handler('create', fn)


def test_predicates_are_not_taken_for_handlers():
    assert mistakes.is_bare(plain)
    assert mistakes.is_bare(lambda spec, name, **_: None)
    assert mistakes.is_bare(lambda **_: None)
    assert mistakes.is_bare(lambda: None)
    assert mistakes.is_bare(lambda spec: None)
    assert mistakes.is_bare(lambda event: None)
    assert mistakes.is_bare(lambda spec, name: None)
    assert not mistakes.is_bare(lambda *args: None)
    assert not mistakes.is_bare(lambda any_resource, /: None)
    assert not mistakes.is_bare(lambda any_resource=None: None)
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


@pytest.mark.parametrize(
    'options, message',
    [
        (
            {'when': lambda obj: True},
            "when= of Handler 'x' (...) asks for 'obj', which it is not given. The object is in 'body'.",
        ),
        (
            {'when': lambda thing: True},
            "when= of Handler 'x' (...) asks for 'thing', which it is not given. There is no such "
            "argument, and no index of this name. There are: annotations, body, diff, ",
        ),
        (
            {'when': lambda specs, **_: True},
            "when= of Handler 'x' (...) asks for 'specs', ... Did you mean spec? There ",
        ),
        ({'when': kopf.not_(kopf.all_([lambda: 1, lambda specs: 1]))}, "when= of Handler 'x' (...) asks for 'specs', "),
        (
            {'when': lambda retry: True},
            "when= of Handler 'x' (...) asks for 'retry', which it is not given. "
            "It is given only to the handlers themselves, not to their filters.",
        ),
        ({'when': lambda stopped: True}, "It is given only to the handlers themselves, not to their filters."),
        ({'when': lambda deleting: True}, "It is given only to the handlers themselves, not to their filters."),
        ({'when': lambda event: True}, "asks for 'event', which it is not given. It is given to: @kopf.on.event."),
        ({'labels': {'x': lambda value, nosuch: True}}, "labels= of Handler 'x' (...) asks for 'nosuch', "),
        ({'annotations': {'x': lambda value, nosuch: True}}, "annotations= of Handler 'x' (...) asks for 'nosuch', "),
        (
            {'value': lambda value, nosuch: True, 'field': 'spec'},
            "value= of Handler 'x/spec' (...) asks for 'nosuch', ",
        ),
        ({'old': lambda value, nosuch: True, 'field': 'spec'}, "old= of Handler 'x/spec' (...) asks for 'nosuch', "),
        ({'new': lambda value, nosuch: True, 'field': 'spec'}, "new= of Handler 'x/spec' (...) asks for 'nosuch', "),
        (
            {'labels': {'x': lambda name, **_: True}},
            "labels= of Handler 'x' (...) takes its value as 'name', which is the "
            "name of an argument: give it another name.",
        ),
    ],
)
def test_callbacks_that_ask_for_unknown_arguments_are_refused(options, message):
    registry = kopf.OperatorRegistry()
    kopf.on.update('kopfexamples', id='x', registry=registry, **options)(lambda: None)
    pattern = '.*'.join(re.escape(part) for part in message.split('...'))
    with pytest.raises(mistakes.DeclarationError, match=pattern):
        mistakes.check_registry(registry)


@pytest.mark.parametrize(
    'fn, message',
    [
        (
            lambda specs, **_: [],
            "watches= of Reconciler 'x' (...) asks for 'specs', ... Did you mean spec? There are: ",
        ),
        (
            lambda children, **_: [],
            "watches= of Reconciler 'x' (...) asks for 'children', which it is not given. It is called for the watched "
            "objects, not for those of the handler.",
        ),
        (lambda conditions: [], "It is called for the watched objects, not for those of the handler."),
        (lambda reasons: [], "It is called for the watched objects, not for those of the handler."),
        (lambda retry: [], "It is called for the watched objects, not for those of the handler."),
        (lambda event: [], "asks for 'event', which it is not given. It is given to: @kopf.on.event."),
    ],
)
def test_functions_of_watches_that_ask_for_unknown_arguments_are_refused(fn, message):
    registry = kopf.OperatorRegistry()
    kopf.on.reconcile('kopfexamples', id='x', registry=registry, watches={'pods': fn})(lambda: None)
    pattern = '.*'.join(re.escape(part) for part in message.split('...'))
    with pytest.raises(mistakes.DeclarationError, match=pattern):
        mistakes.check_registry(registry)


def test_functions_of_watches_can_ask_for_the_object_if_a_class_names_the_resource():
    registry = kopf.OperatorRegistry()

    @kopf.kind('example.com/v1', registry=registry)
    @dataclasses.dataclass
    class Watched:
        spec: dict[str, str]

    kopf.on.reconcile('kopfexamples', registry=registry, watches={Watched: lambda obj: []})(lambda: None)
    mistakes.check_registry(registry)


def test_functions_of_watches_can_ask_for_what_index_functions_get():
    registry = kopf.OperatorRegistry()
    names = mistakes.list_arguments(handlers.IndexingHandler) - {'retry', 'started', 'runtime', 'obj'}
    fn = eval(f"lambda {', '.join(names)}, pods: []")
    kopf.index('pods', id='pods', registry=registry)(lambda **_: None)
    kopf.on.reconcile('kopfexamples', id='x', registry=registry, watches={'pods': fn})(lambda: None)
    mistakes.check_registry(registry)


@pytest.mark.parametrize(
    'options',
    [
        {'when': lambda spec, pods, extra=1: True},
        {'when': kopf.any_([lambda diff: True])},
        {'labels': {'x': str.isdigit, 'y': bool, 'z': lambda name: True, 'a': lambda body, /, spec: True}},
        {'value': lambda *args, param: True, 'field': 'spec'},
        {'old': lambda body=None, *, spec: True, 'field': 'spec'},
    ],
)
def test_callbacks_can_name_their_arguments(options):
    registry = kopf.OperatorRegistry()
    kopf.index('pods', id='pods', registry=registry)(lambda: None)
    kopf.on.update('kopfexamples', id='x', registry=registry, **options)(lambda: None)
    mistakes.check_registry(registry)


@pytest.mark.parametrize(
    'options, message',
    [
        ({'when': lambda spec, /: True}, "of when= takes 'spec' by its position"),
        ({'labels': {'x': lambda value, spec, /: True}}, "of labels= takes 'spec' by its position"),
        ({'annotations': {'x': lambda **_: True}}, "of annotations= takes no value.*: (value, **_)"),
        ({'value': kopf.not_(lambda *, spec: True), 'field': 'x'}, "of value= takes no value.*: (value, spec)"),
    ],
)
def test_callbacks_that_cannot_be_called_are_refused(options, message):
    with pytest.raises(TypeError, match=message.replace('(', r'\(').replace('**', r'\*\*').replace(')', r'\)')):
        kopf.on.create('kopfexamples', registry=kopf.OperatorRegistry(), **options)


def yielding(**_):
    yield


async def yielding_async(**_):
    yield


@pytest.mark.parametrize(
    'fn, message',
    [
        (yielding, "has a yield in it"),
        (yielding_async, "has a yield in it"),
        (lambda *args: None, r"takes only \*args"),
        (lambda self, **_: None, "is a method"),
        (lambda spec, /, **_: None, "takes 'spec' by its position"),
    ],
)
def test_functions_that_cannot_be_handlers_are_refused(fn, message):
    with pytest.raises(TypeError, match=message):
        kopf.on.create('kopfexamples', registry=kopf.OperatorRegistry())(fn)


@pytest.mark.parametrize('fn', [lambda **_: None, lambda *args, spec: None, lambda spec, name=None: None, lambda: None])
def test_usual_functions_are_declared_without_reading_their_signatures(fn, monkeypatch):
    signature = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(mistakes.inspect, 'signature', signature)
    kopf.on.create('kopfexamples', registry=kopf.OperatorRegistry())(fn)
    assert not signature.called


def test_optional_arguments_need_not_be_given():
    registry = kopf.OperatorRegistry()
    kopf.on.create('kopfexamples', registry=registry)(lambda extra=None: None)
    mistakes.check_registry(registry)


@pytest.mark.parametrize(
    'options, warned',
    [
        (({}, {}), True),
        (({'labels': {'a': '1'}}, {'labels': {'a': '2'}}), False),
        (({'id': 'x'}, {}), False),
    ],
)
def test_namesakes_are_told_of(options, warned, caplog):
    registry = kopf.OperatorRegistry()
    for chosen in options:

        def fn(**_): ...

        kopf.on.create('kopfexamples', registry=registry, **chosen)(fn)
    assert ("declared again by the function around it" in caplog.text) == warned


def test_functions_of_the_same_name_are_namesakes(caplog):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    def fn(**_): ...

    first = fn

    @kopf.on.create('kopfexamples', registry=registry)
    def fn(**_): ...

    assert first is not fn
    assert "declared twice" in caplog.text


def test_functions_for_several_reasons_are_no_namesakes(caplog):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    def fn(**_): ...

    @kopf.on.delete('kopfexamples', registry=registry)
    def fn(**_): ...  # noqa: F811

    assert not caplog.text


@pytest.mark.parametrize(
    'options, warned',
    [
        ({'annotations': {'Example.com/Size': 'x'}}, False),  # accepted by Kubernetes, unlike in labels
        ({'labels': {'Example.com/Size': 'x'}}, True),
        ({'labels': {5: 'x'}}, False),
    ],
)
def test_keys_that_kubernetes_refuses_are_warned_of(caplog, options, warned):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry, **options)
    def fn(**_): ...

    assert ("which no object has" in caplog.text) == warned
