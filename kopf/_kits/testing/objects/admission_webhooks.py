"""
Admission webhooks: their configurations, and their calls.

Mutating webhooks are called one after another by name, each with the result of the previous ones; validating ones are
called concurrently. The configurations are read from the storage at every request, so that they take effect at once.

A webhook with the match policy ``Equivalent`` may have rules for other versions of the resource only. Then, it gets the
object in the first of these versions, and its patch is converted back.
"""

import asyncio
import base64
import binascii
import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds.kinds import Body, Catalog, Kind
from kopf._kits.testing.kinds.storage import Storage
from kopf._kits.testing.objects.rest import Review
from kopf._kits.testing.storing.selectors import label_selector
from kopf._kits.testing.storing.webhook_calls import CalloutError, Callouts
from kopf._kits.testing.wire import json_patches, statuses

GROUP = 'admissionregistration.k8s.io'
MUTATING, VALIDATING = 'mutatingwebhookconfigurations', 'validatingwebhookconfigurations'


class Webhooks:
    """All configured webhooks."""

    def __init__(self, storage: Storage, catalog: Catalog, callouts: Callouts) -> None:
        self._storage = storage
        self._catalog = catalog
        self._callouts = callouts

    def concerns(self, kind: Kind, operation: str, subresource: str) -> bool:
        """Check whether any webhook could be called. This must be fast, because every write calls it."""
        # Never call webhooks for their own configurations: otherwise, a broken webhook could not be removed.
        if kind.group == GROUP:
            return False
        return any(len(self._storage.table(GROUP, plural)) for plural in (MUTATING, VALIDATING))

    async def mutate(self, review: Review) -> Body | None:
        """Return the object with the changes of all mutating webhooks."""
        for webhook, seen in self._matching(MUTATING, review):
            shown = await _show(review, seen)
            response = await self._call(webhook, shown, review.kind)
            if response is not None and response.get('patch'):
                review.body = await _converted(_patched(webhook, shown.body, response), seen, review.kind)
        return review.body

    async def validate(self, review: Review) -> None:
        """Call all validating webhooks; raise the refusal of the first one by their order, not by time."""
        calls = [
            self._call(webhook, await _show(review, seen), review.kind)
            for webhook, seen in self._matching(VALIDATING, review)
        ]
        # Why wait for all of them? Otherwise, the response would depend on which webhook is the fastest.
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _matching(self, plural: str, review: Review) -> Iterator[tuple[Mapping[str, Any], Kind]]:
        """Return the webhooks to call, each with the version of the resource that it gets."""
        for record in self._storage.table(GROUP, plural).records():
            for webhook in record.body().get('webhooks') or ():
                if self._selects(webhook, review) and (seen := self._find_version(webhook, review)) is not None:
                    yield webhook, seen

    def _selects(self, webhook: Mapping[str, Any], review: Review) -> bool:
        if selector := webhook.get('objectSelector'):
            chosen = label_selector(selector)
            # Call the webhook if it selects the old or the new state, so that the removal of a label does not evade it.
            bodies = [body for body in (review.body, review.old) if body is not None]
            if not any(chosen(body['metadata'].get('labels') or {}) for body in bodies):
                return False
        if (selector := webhook.get('namespaceSelector')) and review.namespace:
            namespace = self._storage.table('', 'namespaces').get('', review.namespace)
            if not label_selector(selector)(namespace.labels if namespace is not None else {}):
                return False
        return True

    def _find_version(self, webhook: Mapping[str, Any], review: Review) -> Kind | None:
        """Return the version to send: the requested one if a rule matches it, or else an equivalent one, if any."""
        versions = [review.kind]
        if webhook.get('matchPolicy', 'Equivalent') == 'Equivalent' and review.kind.table is not None:
            versions += [kind for kind in self._catalog if kind.table is review.kind.table and kind is not review.kind]
        rules = webhook.get('rules') or ()
        return next((kind for kind in versions if any(_rule_matches(rule, kind, review) for rule in rules)), None)

    async def _call(self, webhook: Mapping[str, Any], review: Review, requested: Kind) -> Mapping[str, Any] | None:
        name = webhook['name']
        if review.options.dry_run and webhook.get('sideEffects') not in ('None', 'NoneOnDryRun'):
            raise statuses.bad_request(f'admission webhook "{name}" does not support dry run')
        request = _request(review, requested)
        try:
            answer = await self._post(webhook, request)
            response = _response(answer, request['uid'])
        except Exception as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            calling = 'failed to call webhook: ' if isinstance(error, CalloutError) else ''
            message = f'failed calling webhook "{name}": {calling}{error}'
            if webhook.get('failurePolicy', 'Fail') == 'Ignore':
                return None
            raise statuses.Refusal(
                500, 'InternalError', f'Internal error occurred: {message}', {'causes': [{'message': message}]}
            ) from error
        review.options.warnings += response.get('warnings') or ()
        if not response.get('allowed'):
            raise _denial(name, response)
        return response

    async def _post(self, webhook: Mapping[str, Any], request: Mapping[str, Any]) -> Any:
        client, seconds = webhook['clientConfig'], webhook.get('timeoutSeconds', 10)
        version = 'v1' if 'v1' in webhook['admissionReviewVersions'] else 'v1beta1'
        review = {'kind': 'AdmissionReview', 'apiVersion': f'admission.k8s.io/{version}', 'request': request}
        return orjson.loads(await self._callouts.post(client, review, seconds))


def _rule_matches(rule: Mapping[str, Any], kind: Kind, review: Review) -> bool:
    return (
        _listed(review.operation, rule.get('operations'))
        and rule.get('scope', '*') in ('*', 'Namespaced' if kind.namespaced else 'Cluster')
        and _listed(kind.group, rule.get('apiGroups'))
        and _listed(kind.version, rule.get('apiVersions'))
        and any(_resource_matches(pattern, kind.plural, review.subresource) for pattern in rule.get('resources') or ())
    )


async def _converted(body: Body | None, given: Kind, wanted: Kind) -> Body | None:
    """Return the object converted to another version of the same resource, with the stored version in between."""
    if body is None or given is wanted:
        return body
    stored = await given.stored(body)
    if wanted.conversion is not None:
        return await wanted.conversion.convert_back(stored)
    converted = stored if wanted.to_served is None else wanted.to_served(stored)
    return {**converted, 'apiVersion': wanted.api_version, 'kind': wanted.name}


async def _show(review: Review, kind: Kind) -> Review:
    """Return the review with its objects in this version."""
    if kind is review.kind:
        return review
    body, old = [await _converted(each, review.kind, kind) for each in (review.body, review.old)]
    return dataclasses.replace(review, kind=kind, body=body, old=old)


def _request(review: Review, requested: Kind) -> dict[str, Any]:
    user = review.options.user
    options = {'CREATE': 'CreateOptions', 'UPDATE': 'UpdateOptions', 'DELETE': 'DeleteOptions'}[review.operation]
    request: dict[str, Any] = {
        'uid': str(uuid.uuid4()),
        'kind': _group_kind(review.kind),
        'resource': _group_resource(review.kind),
        'requestKind': _group_kind(requested),
        'requestResource': _group_resource(requested),
        'name': review.name,
        'operation': review.operation,
        'userInfo': {'username': user.name, 'groups': list(user.groups)},
        'object': review.body,
        'oldObject': review.old,
        'dryRun': review.options.dry_run,
        'options': {'kind': options, 'apiVersion': 'meta.k8s.io/v1'},
    }
    if review.namespace:
        request['namespace'] = review.namespace
    if review.subresource:
        request['subResource'] = request['requestSubResource'] = review.subresource
    return request


def _group_kind(kind: Kind) -> dict[str, str]:
    return {'group': kind.group, 'version': kind.version, 'kind': kind.name}


def _group_resource(kind: Kind) -> dict[str, str]:
    return {'group': kind.group, 'version': kind.version, 'resource': kind.plural}


def _response(answer: Any, uid: str) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping) or not isinstance(response := answer.get('response'), Mapping):
        raise ValueError('webhook response was absent')
    if answer.get('kind') != 'AdmissionReview':
        raise ValueError(
            f'received invalid webhook response: expected webhook response of admission.k8s.io/v1, '
            f'Kind=AdmissionReview, got {answer.get("apiVersion", "")}, Kind={answer.get("kind", "")}'
        )
    if response.get('uid') != uid:
        raise ValueError(
            f'received invalid webhook response: expected response.uid="{uid}", got "{response.get("uid", "")}"'
        )
    return response


def _patched(webhook: Mapping[str, Any], body: Body | None, response: Mapping[str, Any]) -> Body:
    try:
        operations = orjson.loads(base64.b64decode(response['patch']))
        result: Body = json_patches.apply(body, operations)
        return result
    except (json_patches.PatchError, ValueError, binascii.Error) as error:
        message = f'admission webhook "{webhook["name"]}" attempted to apply a broken patch: {error}'
        raise statuses.Refusal(
            500, 'InternalError', f'Internal error occurred: {message}', {'causes': [{'message': message}]}
        ) from error


def _denial(name: str, response: Mapping[str, Any]) -> statuses.Refusal:
    status = response.get('status') or {}
    reason = status.get('reason') or ''
    message = f'admission webhook "{name}" denied the request'
    if text := status.get('message') or reason:
        message = f'{message}: {text}'
    else:
        message = f'{message} without explanation'
    code = status.get('code') or 0
    refusal = statuses.Refusal(
        code if code >= 400 else 403, reason if code else reason or 'Forbidden', message, status.get('details')
    )
    return refusal


def _listed(word: str, patterns: Any) -> bool:
    return bool(patterns) and ('*' in patterns or word in patterns)


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    resource, slash, sub = pattern.partition('/')
    if pattern == '*/*':
        return True
    if resource not in ('*', plural):
        return False
    return sub in ('*', subresource) if slash else not subresource
