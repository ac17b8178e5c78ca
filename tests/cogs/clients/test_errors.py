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


USER = 'User "system:serviceaccount:default:op"'


@pytest.mark.parametrize(
    'status, message, is_by_admission',
    [
        # Authorizers, also with reasons of their own; and proxies before the API server.
        (403, f'kopfexamples.kopf.dev "x" is forbidden: {USER} cannot patch resource "kopfexamples"', False),
        (403, f'pods "x" is forbidden: {USER} cannot patch resource "pods" in the namespace "n": access denied', False),
        (403, f'pods "x" is forbidden: {USER} cannot patch resource "pods": admission webhook "y" denied it', False),
        (403, f'forbidden: {USER} cannot get path "/version"', False),
        (403, 'Access denied', False),
        (403, 'the admission desk is closed', False),
        # Webhooks and policies choose the status.
        (403, 'admission webhook "x.example.com" denied the request: no way', True),
        (400, 'admission webhook "x.example.com" denied the request without explanation', True),
        (422, 'admission webhook "x.example.com" denied the request: is forbidden: User "x" cannot', True),
        (403, "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", True),
        (422, "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", True),
        # Plugins of the API server.
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged', True),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', True),
        (422, 'Pod "x" is invalid: spec: Forbidden: pod updates may not change fields', False),
    ],
)
def test_denials_by_admission_differ_from_missing_rights(status, message, is_by_admission):
    reason = {403: 'Forbidden', 422: 'Invalid'}.get(status)
    error = errors.build_status_error({'message': message, 'reason': reason}, status=status)
    assert error.is_by_admission is is_by_admission


@pytest.mark.parametrize('status', [401, 404, 409, 410])
@pytest.mark.parametrize(
    'message',
    [
        'admission webhook "x.example.com" denied the request: no way',
        "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no way",
    ],
)
def test_denials_with_the_status_of_other_failures_are_not_taken_for_these(status, message):
    error = errors.build_status_error({'message': message}, status=status)
    assert type(error) is errors.APIForbiddenError and error.status == status and error.is_by_admission
