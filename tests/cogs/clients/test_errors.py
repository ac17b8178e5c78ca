import datetime
import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import errors


@pytest.mark.parametrize(
    'status, cls',
    [
        (400, errors.APIClientError),
        (401, errors.APIUnauthorizedError),
        (403, errors.APIForbiddenError),
        (404, errors.APINotFoundError),
        (409, errors.APIConflictError),
        (410, errors.APIGoneError),
        (413, errors.APIPayloadTooLargeError),
        (422, errors.APIUnprocessableError),
        (429, errors.APITooManyRequestsError),
        (500, errors.APIServerError),
        (503, errors.APIServerError),
    ],
)
def test_the_class_of_an_error_follows_from_its_status(status, cls):
    body = b'{"kind":"Status","message":"msg","reason":"Why","code":%d,"details":{"kind":"pods"}}' % status
    with pytest.raises(errors.APIError) as e:
        errors.check_response(status, {'X-Header': 'x'}, body)
    assert type(e.value) is cls
    assert (e.value.status, e.value.code, e.value.message, e.value.reason) == (status, status, 'msg', 'Why')
    assert e.value.details == {'kind': 'pods'}
    assert e.value.headers == {'X-Header': 'x'}
    assert str(status) in repr(e.value)
    assert 'msg' in str(e.value)


@pytest.mark.parametrize('status', [200, 201, 204])
def test_successes_are_silent(status):
    errors.check_response(status, {}, b'')


@pytest.mark.parametrize('status', [301, 302, 307])
@pytest.mark.parametrize(
    'headers, message',
    [({'Location': 'https://login'}, "The server redirects to 'https://login'"), ({}, "HTTP 30")],
)
def test_redirects_are_failures(status, headers, message):
    with pytest.raises(errors.APIError, match=message):
        errors.check_response(status, headers, b'{"metadata":{}}')


@pytest.mark.parametrize(
    'body, message',
    [
        (b'', 'HTTP 502'),
        (b'<html>Bad gateway</html>', '<html>Bad gateway</html>'),
        (b'\xff' * 1000, '\ufffd' * 200),
        (b'[]', '[]'),
        (b'{}', 'HTTP 502'),
        (b'{"message":null,"details":null,"code":null}', 'HTTP 502'),
        (b'{"message":"msg","details":[],"code":"x"}', 'msg'),
    ],
)
def test_errors_with_unusual_bodies_have_a_message(body, message):
    error = errors.build_error(502, {}, body)
    assert type(error) is errors.APIServerError
    assert error.message == message
    assert error.details == {}


def test_error_events_of_streams():
    error = errors.build_status_error({'code': 410, 'message': 'too old resource version', 'reason': 'Expired'})
    assert type(error) is errors.APIGoneError
    assert error.status == 410
    assert type(errors.build_status_error({})) is errors.APIError


@pytest.mark.parametrize(
    'headers, details, expected',
    [
        ({}, {}, None),
        ({'Retry-After': '5'}, {}, 5.0),
        ({'Retry-After': '0'}, {}, 0.0),
        ({'Retry-After': '-5'}, {}, 0.0),
        ({'Retry-After': '5'}, {'retryAfterSeconds': 9}, 5.0),
        ({'Retry-After': 'soon'}, {'retryAfterSeconds': 9}, 9.0),
        ({}, {'retryAfterSeconds': 9}, 9.0),
        ({}, {'retryAfterSeconds': 0}, None),
        ({}, {'retryAfterSeconds': 'x'}, None),
    ],
)
def test_the_delay_of_retries_is_parsed(headers, details, expected):
    assert errors.APIError('', headers=headers, details=details).retry_after == expected


@pytest.mark.parametrize('usegmt', [True, False])
def test_retry_after_as_a_date(usegmt):
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    header = email.utils.format_datetime(moment, usegmt=usegmt)
    retry_after = errors.APIError('', headers={'Retry-After': header}).retry_after
    assert retry_after == pytest.approx(100, abs=10)


@given(
    st.integers(400, 599),
    st.binary(max_size=50)
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(['message', 'code', 'reason', 'details', 'retryAfterSeconds', 'causes']), inner
            )
        ),
    ).map(lambda value: repr(value).replace("'", '"').replace('None', 'null').encode('utf-8', errors='replace')),
)
def test_any_body_makes_an_error(status, body):
    error = errors.build_error(status, {}, body)
    assert error.status == status
    assert isinstance(error, errors.APIClientError if status < 500 else errors.APIServerError)
    assert isinstance(error.message, str)
    repr(error), error.retry_after
