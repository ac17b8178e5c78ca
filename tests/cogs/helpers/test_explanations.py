"""Texts of errors: the type is named, unless the text was written for users."""

import pytest

from kopf._cogs.helpers.explanations import ExplainedError, name_error, quote_error
from kopf._cogs.structs.bodies import Body


@pytest.mark.parametrize(
    'error, text',
    [
        (KeyError('field'), "KeyError: 'field'"),
        (ValueError('It is wrong.'), "ValueError: It is wrong."),
        (ValueError(), "ValueError()"),
        (ValueError(None), "ValueError()"),
    ],
)
def test_errors_are_named_with_their_texts_if_there_are_any(error, text):
    assert name_error(error) == text


@pytest.mark.parametrize('mapping', [{}, Body({})], ids=['dict', 'body'])
def test_attributes_of_mappings_are_explained(mapping):
    with pytest.raises(AttributeError) as caught:
        mapping.field  # noqa: B018
    assert name_error(caught.value).count("it is a mapping, use ['field'] or .get('field')") == 1


def test_private_attributes_of_mappings_are_not_explained():
    with pytest.raises(AttributeError) as caught:
        {}._field  # noqa: B018
    assert "mapping" not in name_error(caught.value)


@pytest.mark.parametrize(
    'error, text',
    [
        (ExplainedError("Do this instead."), "Do this instead."),
        (ValueError("It is wrong."), "It is wrong."),
        (RuntimeError("It is late."), "It is late."),
        (Exception("It is gone."), "It is gone."),
        (Exception(), "Exception()"),
        (KeyError('field'), "KeyError: 'field'"),
        (OSError("No disk."), "OSError: No disk."),
    ],
)
def test_only_texts_for_users_are_quoted_without_the_type(error, text):
    assert quote_error(error) == text
