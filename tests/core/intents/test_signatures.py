"""Signatures of functions with the options of a typed dict."""

import inspect
from typing import TypedDict

import pytest

from kopf._core.intents.signatures import showing_options


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
