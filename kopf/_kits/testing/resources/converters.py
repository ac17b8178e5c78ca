"""
Conversion of custom resources between the version that they are stored in and other versions.

Every object keeps the version in which it was stored, even when its CRD later declares another storage version. Without
a webhook, the conversion changes only the name of the version, and drops fields that the other version does not have.
The webhook gets one object at a time, as on a real server. Conversions for lists and watches are cached, whereas a read
of one object always calls the webhook. Responses are built synchronously, so all objects are converted before
(``prepare``).
"""

import asyncio
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds import metadata
from kopf._kits.testing.kinds.kinds import Body, Conversion, ConversionFactory, Schemas
from kopf._kits.testing.kinds.storage import Record
from kopf._kits.testing.schemas import schemas
from kopf._kits.testing.storing.webhook_calls import CalloutError, Callouts
from kopf._kits.testing.wire import gotext, statuses
from kopf._kits.testing.wire.json_patches import json_type

PATIENCE = 30.0
"""The timeout of a conversion webhook (seconds): CRDs have no field for it."""
AT_ONCE = 8
"""The maximal number of concurrent calls of a webhook."""
GROUP = 'apiextensions.k8s.io'
CHANGEABLE = ('labels', 'annotations')


class RenamingConversion:
    """The strategy ``None``: only the API version differs."""

    def __init__(self, api_version: str, stored: str, schemas_of: Schemas) -> None:
        self._api_version = api_version
        self._stored = stored
        self._schemas = schemas_of

    async def prepare(self, records: Iterable[Record], fresh: bool = False) -> None:
        """Return immediately: renaming needs no preparation."""

    def to_served(self, record: Record) -> Body:
        """Return the object without fields that this version does not have."""
        return _pruned(record.body(), self._schemas[self._api_version])

    async def to_stored(self, body: Body) -> Body:
        """Return the object without fields that the stored version does not have, and with its defaults."""
        stored = {**orjson.loads(orjson.dumps(body)), 'apiVersion': self._stored}
        if self._stored != self._api_version:
            schemas.fill(_pruned(stored, self._schemas[self._stored]), self._schemas[self._stored])
        return stored

    async def convert_back(self, stored: Body) -> Body:
        """Return the object without fields that this version does not have."""
        return _pruned({**stored, 'apiVersion': self._api_version}, self._schemas[self._api_version])


class WebhookConversion:
    """The strategy ``Webhook``."""

    def __init__(
        self,
        api_version: str,
        kind: str,
        stored: str,
        schemas_of: Schemas,
        hook: Mapping[str, Any],
        callouts: Callouts,
        *,
        ready: bool,
    ) -> None:
        self._api_version = api_version
        self._kind = kind
        self._stored = stored
        self._schemas = schemas_of
        self._hook = hook
        self._callouts = callouts
        self._ready = ready
        self._known: weakref.WeakKeyDictionary[Record, bytes] = weakref.WeakKeyDictionary()

    async def prepare(self, records: Iterable[Record], fresh: bool = False) -> None:
        """Call the webhook for objects that are not in the cache."""
        wanted = [
            record for record in records if record.stored != self._api_version and (fresh or record not in self._known)
        ]
        try:
            for start in range(0, len(wanted), AT_ONCE):
                some = wanted[start : start + AT_ONCE]
                results = await asyncio.gather(*[self._fetch(record) for record in some], return_exceptions=True)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
        except statuses.Refusal as refusal:
            if self._ready or fresh:
                raise
            group, _, version = self._api_version.partition('/')
            raise statuses.Refusal(
                429,
                'TooManyRequests',
                f'storage is (re)initializing: failed to list {group}/{version}, Kind={self._kind}: {refusal.message}',
                {'retryAfterSeconds': 30},
                headers={'Retry-After': '30'},
            ) from None
        self._ready = self._ready or not fresh

    def to_served(self, record: Record) -> Body:
        """Return the prepared object."""
        if (known := self._known.get(record)) is None:
            raise statuses.internal(f'the object {record.key} was not converted to {self._api_version}')
        body: Body = orjson.loads(known)
        return body

    async def to_stored(self, body: Body) -> Body:
        """Return the webhook's result with the defaults of the stored version, as they are applied on reading."""
        given: Body = orjson.loads(orjson.dumps(body))
        if self._stored != self._api_version:
            given = await self._convert(given, self._stored)
            schemas.fill(given, self._schemas[self._stored])
        return given

    async def convert_back(self, stored: Body) -> Body:
        """Return the webhook's result."""
        return stored if self._stored == self._api_version else await self._convert(stored, self._api_version)

    async def _fetch(self, record: Record) -> None:
        body = {'apiVersion': record.stored, 'kind': self._kind, **record.body()}
        version = body['metadata'].pop('resourceVersion')  # a real server sets the field only after the conversion
        converted = await self._convert(body, self._api_version)
        converted['metadata']['resourceVersion'] = version
        self._known[record] = orjson.dumps(converted)

    async def _convert(self, body: Body, version: str) -> Body:
        uid = str(uuid.uuid4())
        number = next(item for item in self._hook['conversionReviewVersions'] if item in ('v1', 'v1beta1'))
        group, _, given = body['apiVersion'].partition('/')
        subject = f'conversion webhook for {group}/{given}, Kind={self._kind}'
        review = {
            'kind': 'ConversionReview',
            'apiVersion': f'{GROUP}/{number}',
            'request': {'uid': uid, 'desiredAPIVersion': version, 'objects': [body]},
            'response': {'uid': '', 'convertedObjects': None, 'result': {'metadata': {}}},
        }
        try:
            text = await self._callouts.post(self._hook['clientConfig'], review, PATIENCE)
            response = _response(text, uid, number)
        except (CalloutError, ValueError) as error:
            raise statuses.internal(f'{subject} failed: {error}') from error
        converted = response.get('convertedObjects') or []
        if len(converted) != 1:
            raise statuses.internal(f'{subject} returned {len(converted)} objects, expected 1')
        return _pruned(_checked(body, converted[0], version, subject), self._schemas[version])


def factory(callouts: Callouts) -> ConversionFactory:
    """Return the factory of conversions."""

    def make(crd: Body, api_version: str, schemas_of: Schemas, ready: bool) -> Conversion:
        spec, names = crd['spec'], crd['status']['acceptedNames']
        stored = next(f'{spec["group"]}/{version["name"]}' for version in spec['versions'] if version.get('storage'))
        declared = spec['conversion']
        if declared['strategy'] != 'Webhook':
            return RenamingConversion(api_version, stored, schemas_of)
        return WebhookConversion(
            api_version, names['kind'], stored, schemas_of, declared['webhook'], callouts, ready=ready
        )

    return make


def _response(text: bytes, uid: str, number: str) -> Mapping[str, Any]:
    """
    Return the response in the body of a webhook's answer.

    Raises:
        ValueError: The body has no response, or the response is a failure.
    """
    try:
        answer = orjson.loads(text)
    except ValueError:
        answer = text.decode(errors='replace')
    if not isinstance(answer, dict):
        raise ValueError(
            f'couldn\'t get version/kind; json parse error: json: cannot unmarshal {json_type(answer)} into Go value '
            'of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
            '"json:\\"kind,omitempty\\"" }'
        )
    version, kind = answer.get('apiVersion', ''), answer.get('kind', '')
    other = 'v1beta1' if number == 'v1' else 'v1'
    if kind == 'ConversionReview' and version == f'{GROUP}/{other}':
        raise ValueError(f'converting ({other}.ConversionReview) to ({number}.ConversionReview): unknown conversion')
    if kind and (kind != 'ConversionReview' or version != f'{GROUP}/{number}'):
        raise ValueError(
            f'no kind "{kind}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
        )
    if not kind or not version:
        raise ValueError(
            f'expected webhook response of {GROUP}/{number}, Kind=ConversionReview, got {version}, Kind={kind}'
        )
    response = answer.get('response')
    if not isinstance(response, dict):
        raise ValueError('no response provided')
    if response.get('uid', '') != uid:
        raise ValueError(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    result = response.get('result') or {}
    if (status := result.get('status', '')) != 'Success':
        raise ValueError(result.get('message') or f"response.result.status was '{status}', not 'Success'")
    return response


def _checked(given: Body, converted: Any, version: str, subject: str) -> Body:
    """Return the converted object with its immutable metadata; refuse it if it is another object."""
    if not isinstance(converted, dict):
        raise statuses.internal('unexpected end of JSON input')
    for field, word, wanted in (('apiVersion', 'groupVersion', version), ('kind', 'kind', given['kind'])):
        if (got := converted.get(field, '')) != wanted:
            raise statuses.internal(
                f'{subject} returned invalid object at index 0: invalid {word} (expected {wanted}, received {got})'
            )
    meta = converted.get('metadata')
    meta = meta if isinstance(meta, dict) else {}
    for key, word in (('name', 'name'), ('namespace', 'namespace'), ('uid', 'UID')):
        before, after = given['metadata'].get(key) or '', meta.get(key) or ''
        if before != after:
            raise statuses.internal(
                f'{subject} returned invalid object: must have the same {word}: {before} != {after}'
            )
    if problems := list(_metadata_problems(meta)):
        text = problems[0] if len(problems) == 1 else f'[{", ".join(problems)}]'
        raise statuses.internal(f'{subject} returned invalid metadata: {text}')
    kept = {key: value for key, value in given['metadata'].items() if key not in CHANGEABLE}
    changed = {key: meta[key] for key in CHANGEABLE if meta.get(key)}
    return {**converted, 'metadata': {**kept, **changed}}


def _metadata_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    for key in CHANGEABLE:
        values = meta.get(key) or {}
        if not isinstance(values, dict):
            yield f'metadata.{key} must be a map, but is {gotext.type_name(values)} in converted object'
            return
        for name, value in values.items():
            if not isinstance(value, str):
                yield f'metadata.{key}[{name}] must be a string, but is {gotext.type_name(value)} in converted object'
                return
    for cause in metadata.problems({key: meta[key] for key in CHANGEABLE if key in meta}, custom=True):
        yield f'{cause.field}: {cause.message}'


def _pruned(body: Body, schema: schemas.Schema) -> Body:
    for _ in schemas.prune(body, schema):
        pass
    return body
