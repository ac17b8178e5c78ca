"""
Lists of the current or a former version, as a whole or in chunks; and the validation of their parameters.

A continue token names the version of the first chunk, so that all chunks together are one consistent list, as long as
this version is in the history.
"""

import base64
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping

import orjson

from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.kinds.storage import Expired, Record, Storage
from kopf._kits.testing.storing.representations import Form
from kopf._kits.testing.storing.selectors import Selector
from kopf._kits.testing.storing.sharding import Sharded
from kopf._kits.testing.wire import clientjson, queries, statuses

TOO_OLD = (
    'The provided continue parameter is too old to display a consistent list result. You can start a new list '
    'without the continue parameter, or use the continue token in this response to retrieve the remainder of '
    'the results. Continuing with the provided token results in an inconsistent list - objects that were '
    'created, modified, or deleted between the time the first chunk was returned and now may show up in the '
    'list.'
)
EXPIRED = 'The resourceVersion for the provided list is too old.'


@dataclasses.dataclass(slots=True)
class ListOptions:
    """The parameters of a list or a watch, checked against each other."""

    selector: Selector
    limit: int = 0
    continued: str = ''
    version: str = ''
    match: str = ''
    initial_events: bool | None = None
    bookmarks: bool = False
    timeout: float = 0


def list_options(params: Mapping[str, str], known: frozenset[str], *, watch: bool) -> ListOptions:
    """Return the decoded parameters; raise a 400 or a 422 as a real server does."""
    queries.integer(params, 'timeoutSeconds')
    queries.integer(params, 'limit')
    options = ListOptions(
        selector=Selector(params.get('labelSelector', ''), params.get('fieldSelector', ''), known=None),
        limit=queries.integer(params, 'limit'),
        continued=params.get('continue', ''),
        version=params.get('resourceVersion', ''),
        match=params.get('resourceVersionMatch', ''),
        initial_events=queries.boolean(params, 'sendInitialEvents'),
        bookmarks=bool(queries.boolean(params, 'allowWatchBookmarks')),
        timeout=queries.integer(params, 'timeoutSeconds'),
    )
    if watch and options.initial_events is None and not options.match and options.version in ('', '0'):
        # Watches without a version always begin with all existing objects.
        options.initial_events, options.match = True, 'NotOlderThan'
    causes = list(_watch_causes(options) if watch else _list_causes(options))
    if causes:
        raise statuses.invalid_options('ListOptions', *causes)
    options.selector.check_fields(known)
    return options


def _watch_causes(options: ListOptions) -> Iterable[statuses.Cause]:
    field, match = 'resourceVersionMatch', options.match
    if options.initial_events is not None and match != 'NotOlderThan':
        yield statuses.value_forbidden(field, 'sendInitialEvents requires setting resourceVersionMatch to NotOlderThan')
    if not match:
        return
    if options.initial_events is None:
        yield statuses.value_forbidden(
            field, 'resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided'
        )
    if match != 'NotOlderThan':
        yield statuses.value_unsupported(field, statuses.text(match), ['"NotOlderThan"'])
    if options.continued:
        yield statuses.value_forbidden(field, 'resourceVersionMatch is forbidden when continue is provided')


def _list_causes(options: ListOptions) -> Iterable[statuses.Cause]:
    field, match = 'resourceVersionMatch', options.match
    if match and not options.version:
        yield statuses.value_forbidden(field, 'resourceVersionMatch is forbidden unless resourceVersion is provided')
    if match and options.continued:
        yield statuses.value_forbidden(field, 'resourceVersionMatch is forbidden when continue is provided')
    if match not in ('', 'Exact', 'NotOlderThan'):
        yield statuses.value_unsupported(field, statuses.text(match), ['"Exact"', '"NotOlderThan"', '""'])
    if match == 'Exact' and options.version == '0':
        yield statuses.value_forbidden(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if options.initial_events is not None:
        yield statuses.value_forbidden('sendInitialEvents', 'sendInitialEvents is forbidden for list')


async def answer(storage: Storage, kind: Kind, namespace: str, options: ListOptions, form: Form) -> bytes:
    """Return the JSON of the list."""
    chosen, meta = choose(storage, kind, namespace, options)
    await kind.ready(*chosen)
    return form.list(kind, chosen, meta)


def choose(
    storage: Storage,
    kind: Kind,
    namespace: str,
    options: ListOptions,
) -> tuple[list[Record], dict[str, object]]:
    """Return the objects of the list, and its metadata."""
    version, start = _decode(options.continued) if options.continued else (_asked(options.version), '')
    if options.continued and options.version not in ('', '0'):
        raise statuses.bad_request('specifying resource version is not allowed when using continue')
    if version > storage.version:
        raise statuses.too_new(version, storage.version, cached=kind.plural != 'events')
    table = kind.store
    past = 0
    if options.continued and version > 0:
        past = version
    elif version and (options.match == 'Exact' or (options.limit > 0 and options.match != 'NotOlderThan')):
        past = version
    limit = 0 if options.version == '0' and not options.match else options.limit
    start = f'{namespace}/{start}' if namespace and start else start
    if past:
        try:
            records = table.records_at(past, namespace, start=start)
        except Expired:
            fresh = _encode(-1, start.removeprefix(f'{namespace}/') if namespace else start)
            refusal = statuses.expired(TOO_OLD if options.continued else EXPIRED)
            raise _with_token(refusal, fresh) if options.continued else refusal from None
    else:
        records = table.records(namespace, start=start)
    meta: dict[str, object] = {'resourceVersion': str(past or storage.version)}
    # As on a real server, lists of custom resources lack this, although the selector is applied to them, too.
    if isinstance(options.selector, Sharded) and not kind.custom:
        meta['shardInfo'] = {'selector': options.selector.shards}
    records = iter(records)
    selected = records if not options.selector else (r for r in records if options.selector.matches(r))
    if limit <= 0:
        chosen = list(selected)
    else:
        chosen = list(itertools.islice(selected, limit))
        if len(chosen) == limit and next(records, None) is not None:
            last = chosen[-1].name if namespace else chosen[-1].key
            meta['continue'] = _encode(past or storage.version, f'{last}\0')
            if not (options.selector.whole if isinstance(options.selector, Sharded) else options.selector):
                meta['remainingItemCount'] = 1 + sum(1 for _ in selected)
    return chosen, meta


def names_of(records: Iterable[Record]) -> list[str]:
    """Return the names of objects, in their order."""
    return [record.name for record in records]


def _encode(version: int, start: str) -> str:
    token = orjson.dumps({'v': 'meta.k8s.io/v1', 'rv': version, 'start': f'/{start}'})
    return base64.urlsafe_b64encode(token).decode().rstrip('=')


def _decode(token: str) -> tuple[int, str]:
    text = b''
    try:
        text = _decode_base64(token)
        decoded = orjson.loads(text)
        version = decoded.get('v', '') if isinstance(decoded, dict) else ''
        if version != 'meta.k8s.io/v1':
            raise ValueError(f'server does not recognize this encoded version {version}')
        return int(decoded['rv']), str(decoded['start']).removeprefix('/')
    except (ValueError, KeyError, TypeError) as error:
        why: object = error
        if isinstance(error, orjson.JSONDecodeError):
            why = clientjson.complaint(text.decode(errors='replace'))
        raise statuses.bad_request(f'invalid continue token: continue key is not valid: {why}') from None


def _decode_base64(token: str) -> bytes:
    wrong = re.search(r'[^A-Za-z0-9_-]', token)
    if wrong is not None or len(token) % 4 == 1:
        place = wrong.start() if wrong is not None else len(token) - 1
        raise ValueError(f'illegal base64 data at input byte {place}')
    return base64.urlsafe_b64decode(token + '=' * (-len(token) % 4))


def _with_token(refusal: statuses.Refusal, token: str) -> statuses.Refusal:
    status = refusal.as_status()
    refusal.as_status = lambda: {**status, 'metadata': {'continue': token}}  # type: ignore[method-assign]
    return refusal


def _asked(version: str) -> int:
    if not version:
        return 0
    if version.isascii() and version.isdigit():
        return int(version)
    raise statuses.bad_request(
        f'invalid resource version: resourceVersion: Invalid value: "{version}": '
        f'strconv.ParseUint: parsing "{version}": invalid syntax'
    )
