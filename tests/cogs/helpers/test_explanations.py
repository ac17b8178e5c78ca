"""Texts of errors: the type is named, unless the text was written for users."""

import asyncio
import json

import pytest
import yaml

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


async def run_a_loop_in_a_loop():
    work = asyncio.sleep(0)
    try:
        asyncio.run(work)
    finally:
        work.close()


async def use_a_coroutine():
    work = asyncio.sleep(0)
    try:
        work['field']
    finally:
        work.close()


async def seek_a_loop_in_a_thread():
    await asyncio.to_thread(asyncio.get_event_loop)


async def encode_a_body():
    json.dumps(Body({'spec': {}}))


async def encode_labels():
    json.dumps(Body({}).metadata.labels)


async def write_a_spec_as_yaml():
    yaml.safe_dump(Body({'spec': {}}).spec)


@pytest.mark.parametrize(
    'mistake, text',
    [
        (run_a_loop_in_a_loop, ": an async function is in the event loop already, so write await instead"),
        (use_a_coroutine, ": write await before the call that has returned it"),
        (seek_a_loop_in_a_thread, "so write async def and await, or asyncio.run(...)"),
        (encode_a_body, ": it is a view of a dict, so write dict(...)"),
        (encode_labels, ": it is a view of a dict, so write dict(...)"),
        (write_a_spec_as_yaml, ": write dict(...) for a view of a dict"),
    ],
)
async def test_frequent_errors_of_python_get_a_remedy(mistake, text):
    with pytest.raises(Exception) as caught:
        await mistake()
    assert name_error(caught.value).endswith(text)


def test_other_errors_of_python_get_none():
    with pytest.raises(TypeError) as caught:
        json.dumps({'items': {1}})
    assert name_error(caught.value) == "TypeError: Object of type set is not JSON serializable"


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
