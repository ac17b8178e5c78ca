"""Signatures of functions with the options of a typed dict."""

import inspect
from typing import TypedDict

import pytest

from kopf._core.intents.options import TEXTS
from kopf._core.intents.signatures import add_descriptions, list_descriptions, showing_options


class Options(TypedDict, total=False):
    """Some options; one of them is known only by its name."""

    retries: int
    when: 'Unknown'  # noqa: F821
    first: str


@pytest.fixture
def signature():
    @showing_options(Options, retries=3)
    def fn(first, *args, second=2, **options):
        return first, args, second, options

    assert fn('a', second='b', retries=1) == ('a', (), 'b', {'retries': 1})  # it is called as before
    return inspect.signature(fn)


def test_options_are_shown_instead_of_variable_parameters(signature):
    assert list(signature.parameters) == ['first', 'second', 'retries', 'when']


def test_options_are_keywords_with_their_defaults(signature):
    shown = signature.parameters
    assert shown['retries'].kind is shown['when'].kind is inspect.Parameter.KEYWORD_ONLY
    assert (shown['retries'].default, shown['when'].default) == (3, None)


def test_options_have_their_types_even_if_these_are_only_names(signature):
    shown = signature.parameters
    assert (shown['retries'].annotation, shown['when'].annotation) == (int, 'Unknown')


def test_parameters_of_the_function_win_over_options(signature):
    assert signature.parameters['first'].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert signature.parameters['second'].default == 2


DOC = """
    Do it.

    In two paragraphs.

    Args:
        id: another meaning
            in two lines.

    Raises:
        TypeError: if it is wrong.
    """


def test_options_are_described_unless_the_function_does_it_itself():
    assert list_descriptions(add_descriptions("Do it.", ['id'])) == {'id': TEXTS['id']}
    described = add_descriptions(DOC, ['id', 'param'])
    assert list_descriptions(described) == {'id': "another meaning in two lines.", 'param': TEXTS['param']}
    assert described.startswith("Do it.\n\nIn two paragraphs.\n\nArgs:\n    id: ")
    assert described.endswith("\n\nRaises:\n    TypeError: if it is wrong.")


def test_other_sections_stay_behind_the_options():
    described = add_descriptions("Do it.\n\nRaises:\n    TypeError: if it is wrong.", ['id'])
    assert described == f"Do it.\n\nArgs:\n    id: {TEXTS['id']}\n\nRaises:\n    TypeError: if it is wrong."
