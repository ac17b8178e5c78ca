"""Lifecycles: the handlers that each of them picks."""

import datetime

import pytest

import kopf
from kopf._core.actions.execution import Handler, Outcome
from kopf._core.actions.handler_states import State
from kopf._core.actions.lifecycles import get_default_lifecycle, set_default_lifecycle

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def fn(**_):
    pass


@pytest.fixture
def handlers():
    return [Handler(id=f'id{number}', fn=fn) for number in range(4)]


@pytest.fixture
def state(handlers):
    state = State()
    state.begin([handler.id for handler in handlers], NOW)
    return state


@pytest.fixture(autouse=True)
def restored():
    yield
    set_default_lifecycle(None)


def pick(lifecycle, handlers, state):
    return list(lifecycle(handlers, state=state, body={}, anything=None))


def test_all_at_once_takes_all_in_their_order(handlers, state):
    assert pick(kopf.lifecycles.all_at_once, handlers, state) == handlers


def test_one_by_one_takes_the_first(handlers, state):
    assert pick(kopf.lifecycles.one_by_one, handlers, state) == handlers[:1]


def test_randomized_takes_one_of_all(handlers, state):
    picked = [pick(kopf.lifecycles.randomized, handlers, state) for _ in range(200)]
    assert all(len(each) == 1 for each in picked)
    assert {each[0] for each in picked} == set(handlers)


def test_shuffled_takes_all_in_any_order(handlers, state):
    picked = [pick(kopf.lifecycles.shuffled, handlers, state) for _ in range(50)]
    assert all(set(each) == set(handlers) and len(each) == len(handlers) for each in picked)
    assert any(each != handlers for each in picked)


def test_asap_takes_the_first_of_equals(handlers, state):
    assert pick(kopf.lifecycles.asap, handlers, state) == handlers[:1]


def test_asap_takes_the_one_with_fewest_attempts(handlers, state):
    for handler, attempts in zip(handlers, [3, 1, 2, 1], strict=True):
        for _ in range(attempts):
            state.note_outcome(handler.id, Outcome(final=False, exception=kopf.TemporaryError('x')), NOW)
    assert pick(kopf.lifecycles.asap, handlers, state) == [handlers[1]]


@pytest.mark.parametrize('name', ['all_at_once', 'one_by_one', 'randomized', 'shuffled', 'asap'])
def test_all_lifecycles_take_nothing_of_nothing(name, state):
    assert pick(getattr(kopf.lifecycles, name), [], state) == []


def test_the_default_lifecycle_is_asap():
    assert get_default_lifecycle() is kopf.lifecycles.asap


def test_the_default_lifecycle_can_be_replaced_and_restored():
    set_default_lifecycle(kopf.lifecycles.shuffled)
    assert get_default_lifecycle() is kopf.lifecycles.shuffled
    set_default_lifecycle(None)
    assert get_default_lifecycle() is kopf.lifecycles.asap


def test_overriding_the_default_is_noticed(caplog):
    set_default_lifecycle(kopf.lifecycles.shuffled)
    assert not caplog.records
    set_default_lifecycle(kopf.lifecycles.randomized)
    assert 'is already set' in caplog.text
