"""The options of decorators: signature, help, and the API reference tell the same, from one source."""

import inspect
import pathlib
import pydoc
import re
import sys

import pytest

import kopf
from kopf._core.intents.options import TEXTS
from kopf._core.intents.signatures import list_descriptions

DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'
sys.path.insert(0, str(DOCS / '_ext'))

from decorator_options import list_decorators, list_options, spell_type  # noqa: E402

DECORATORS = list_decorators()


def list_keywords(fn):
    return [name for name, each in inspect.signature(fn).parameters.items() if each.kind is each.KEYWORD_ONLY]


def test_all_decorators_are_listed():
    names = {fn.__name__ for fn in DECORATORS}
    assert {'create', 'daemon', 'index', 'reconcile', 'schedule', 'startup', 'subhandler', 'timer', 'validate'} <= names
    assert all(getattr(kopf, name) in DECORATORS for name in ('daemon', 'index', 'register', 'subhandler', 'timer'))


@pytest.mark.parametrize('fn', DECORATORS, ids=lambda fn: fn.__name__)
def test_each_parameter_has_one_description(fn):
    assert sorted(list_descriptions(fn.__doc__)) == sorted(inspect.signature(fn).parameters)
    for name, text in list_descriptions(fn.__doc__).items():
        assert text.endswith('.') and text[0].islower(), (name, text)


@pytest.mark.parametrize('fn', DECORATORS, ids=lambda fn: fn.__name__)
def test_help_shows_each_option_with_its_type_its_default_and_its_meaning(fn):
    shown = ' '.join(pydoc.plain(pydoc.render_doc(fn)).split())
    for name, text in list_descriptions(fn.__doc__).items():
        default = inspect.signature(fn).parameters[name].default
        assert re.search(rf'\b{name}: [^=]*' + ('' if default is inspect.Parameter.empty else '='), shown), name
        assert f'{name}: {text}' in shown


@pytest.mark.parametrize('fn', DECORATORS, ids=lambda fn: fn.__name__)
def test_times_have_their_unit(fn):
    for name, type, _, meaning in list_options(fn):
        if 'float' in type:
            assert 'in seconds' in meaning, name


@pytest.mark.parametrize('fn', DECORATORS, ids=lambda fn: fn.__name__)
def test_the_reference_has_the_options_of_the_signature(fn):
    rows = {name: (type, default) for name, type, default, _ in list_options(fn)}
    assert list(rows) == list_keywords(fn)
    for name, each in inspect.signature(fn).parameters.items():
        if name in rows:
            shown = 'required' if each.default is each.empty else '' if each.default is None else repr(each.default)
            assert rows[name][1] == shown and rows[name][0]


def test_the_page_of_the_reference_has_the_tables():
    assert '.. decorator-tables::' in (DOCS / 'reference' / 'handlers.rst').read_text()


def test_all_descriptions_are_of_parameters():
    assert set(TEXTS) <= {name for fn in DECORATORS for name in inspect.signature(fn).parameters}


def test_a_decorator_can_describe_options_itself():
    assert list_descriptions(kopf.on.reconcile.__doc__)['timeout'] != TEXTS['timeout']
    assert list_descriptions(kopf.on.create.__doc__)['timeout'] == TEXTS['timeout']


@pytest.mark.parametrize(
    'hint, text',
    [
        (float | None, 'float'),
        ('OperatorRegistry | None', 'OperatorRegistry'),
        (kopf.FieldSpec, 'str | tuple[str, ...] | list[str]'),
        (kopf.ErrorsMode | None, 'ErrorsMode'),
    ],
)
def test_types_are_spelled_as_users_write_them(hint, text):
    assert spell_type(hint) == text
