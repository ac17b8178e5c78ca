"""
The conversion settings of CRDs: defaults and validation of the strategy and the webhook.

The paths of fields in messages are those of the internal form of CRDs, which a real server checks.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from kopf._kits.testing.wire import names, statuses
from kopf._kits.testing.wire.statuses import Cause

FORM = 'desired format: https://host[/path]'
REVIEWS = ('v1', 'v1beta1')
_LABEL = re.compile(r'[a-z]([-a-z0-9]{0,61}[a-z0-9])?')
_LABEL_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def complete(spec: dict[str, Any]) -> None:
    """Fill in the omitted fields of the conversion settings."""
    conversion = spec.setdefault('conversion', {'strategy': 'None'})
    webhook = conversion.get('webhook') if isinstance(conversion, dict) else None
    client = webhook.get('clientConfig') if isinstance(webhook, dict) else None
    if isinstance(client, dict):
        if not client.get('caBundle'):
            client.pop('caBundle', None)
        if isinstance(service := client.get('service'), dict):
            service.setdefault('port', 443)


def problems(conversion: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield all errors of the conversion settings."""
    strategy, webhook = conversion.get('strategy'), conversion.get('webhook') or {}
    place, reviews = 'spec.conversion.webhookClientConfig', 'spec.conversion.conversionReviewVersions'
    if not strategy:
        yield statuses.value_required('spec.conversion.strategy')
    elif strategy == 'Webhook':
        if (client := webhook.get('clientConfig')) is None:
            yield statuses.value_required(place, 'required when strategy is set to Webhook')
        else:
            yield from _client_problems(client, place)
        yield from _review_problems(webhook.get('conversionReviewVersions') or [], reviews)
    else:
        if strategy != 'None':
            yield statuses.value_unsupported('spec.conversion.strategy', f'"{strategy}"', ['"None"', '"Webhook"'])
        why = 'should not be set when strategy is not set to Webhook'
        if webhook.get('clientConfig') is not None:
            yield statuses.value_forbidden(place, why)
        if webhook.get('conversionReviewVersions'):
            yield statuses.value_forbidden(reviews, why)


def _review_problems(versions: list[str], place: str) -> Iterator[Cause]:
    if not versions:
        yield statuses.value_required(place)
        return
    found: set[str] = set()
    for index, version in enumerate(versions):
        if version in found:
            yield statuses.value_invalid(f'{place}[{index}]', f'"{version}"', 'duplicate version')
        elif not _LABEL.fullmatch(version):
            yield statuses.value_invalid(f'{place}[{index}]', f'"{version}"', _LABEL_RULE)
        found.add(version)
    if not found & set(REVIEWS):
        yield statuses.value_invalid(
            place, orjson.dumps(versions).decode(), f'must include at least one of {", ".join(REVIEWS)}'
        )


def _client_problems(client: Mapping[str, Any], place: str) -> Iterator[Cause]:
    url, service = client.get('url'), client.get('service')
    if (url is None) == (service is None):
        yield statuses.value_required(place, 'exactly one of url or service is required')
    elif url is not None:
        yield from _url_problems(url, f'{place}.url')
    elif service is not None:
        yield from _service_problems(service, f'{place}.service')


def _url_problems(url: str, place: str) -> Iterator[Cause]:
    parts = urlsplit(url)
    if parts.scheme != 'https':
        yield statuses.value_invalid(place, f'"{parts.scheme}"', f"'https' is the only allowed URL scheme; {FORM}")
    user, at, host = parts.netloc.rpartition('@')
    if not host:
        yield statuses.value_invalid(place, f'"{host}"', f'host must be specified; {FORM}')
    if at:
        yield statuses.value_invalid(place, f'"{user}"', 'user information is not permitted in the URL')
    if parts.fragment:
        yield statuses.value_invalid(place, f'"{parts.fragment}"', 'fragments are not permitted in the URL')
    if parts.query:
        yield statuses.value_invalid(place, f'"{parts.query}"', 'query parameters are not permitted in the URL')


def _service_problems(service: Mapping[str, Any], place: str) -> Iterator[Cause]:
    for key in ('name', 'namespace'):
        if not service.get(key):
            yield statuses.value_required(f'{place}.{key}')
    if not 1 <= (port := service.get('port', 443)) <= 65535:
        yield statuses.value_invalid(
            f'{place}.port', str(port), 'port is not valid: must be between 1 and 65535, inclusive'
        )
    if (path := service.get('path') or '/') == '/':
        return
    if not path.startswith('/'):
        yield statuses.value_invalid(f'{place}.path', f'"{path}"', "must start with a '/'")
    for index, step in enumerate(path[1:].removesuffix('/').split('/')):
        if not step:
            yield statuses.value_invalid(f'{place}.path', f'"{path}"', f'segment[{index}] may not be empty')
        for problem in names.subdomain_problems(step) if step else ():
            yield statuses.value_invalid(f'{place}.path', f'"{path}"', f'segment[{index}]: {problem}')
