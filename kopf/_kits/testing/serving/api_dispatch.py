"""
The API behind the HTTP server: it executes requests, and returns their responses.

`Api` owns all parts of a cluster: the storage, the catalog of kinds, webhooks, and controllers. It handles requests and
responses, but not ports, TLS, users and faults.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import orjson

from kopf._kits.testing.access import permissions, token_requests, users
from kopf._kits.testing.access.access_reviews import Reviews
from kopf._kits.testing.access.roles import Guard
from kopf._kits.testing.access.users import Tokens, User
from kopf._kits.testing.access.write_options import Options, decode_options, report
from kopf._kits.testing.controllers.controller_manager import Controllers
from kopf._kits.testing.kinds.kinds import ABSENT, Body, Catalog, Kind, builtin_kinds
from kopf._kits.testing.kinds.storage import Storage, Table
from kopf._kits.testing.merging import managers, server_side_apply
from kopf._kits.testing.objects import (
    approvals,
    builtins,
    objects,
    patch_results,
    pod_subresources,
    podcalls,
    rest,
    scales,
)
from kopf._kits.testing.objects.admission_webhooks import Webhooks
from kopf._kits.testing.objects.rest import Objects
from kopf._kits.testing.resources import converters, crds
from kopf._kits.testing.schemas import strictness
from kopf._kits.testing.serving import openapi, routes
from kopf._kits.testing.serving.discovery_documents import Discovery
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.serving.routes import Place
from kopf._kits.testing.storing import listing, representations, selectors, sharding, watching
from kopf._kits.testing.storing.states import Row, State
from kopf._kits.testing.storing.webhook_calls import Callouts
from kopf._kits.testing.wire import clientjson, clientyaml, json_patches, protobuf, queries, statuses
from kopf._kits.testing.wire.httpexchanges import Response
from kopf._kits.yaml_texts import dump_yaml

HEALTH = frozenset(
    f'/{name}{check}' for name in ('healthz', 'livez', 'readyz') for check in ('', '/ping', '/log', '/etcd')
)
"""The paths of the health endpoints."""
NAMESPACES = ('default', 'kube-node-lease', 'kube-public', 'kube-system')
ACCEPTED = ('application/json', 'application/yaml')
PATCHES = (rest.JSON_PATCH, rest.MERGE_PATCH)
_DONE = orjson.dumps({'kind': 'Status', 'apiVersion': 'v1', 'metadata': {}, 'status': 'Success', 'code': 201})
_NO_DEFINITIONS = b'\x0a\x032.0\x12\x11\x0a\x0aKubernetes\x12\x03v1.'
"""
An empty OpenAPI v2 document in protobuf: kubectl needs a document in which it can search for list kinds.
"""
VERSION = {
    'major': '1',
    'minor': '36',
    'gitVersion': 'v1.36.0+kopf-sandbox',
    'gitCommit': '',
    'gitTreeState': '',
    'buildDate': '1970-01-01T00:00:00Z',
    'goVersion': '',
    'compiler': '',
    'platform': 'python',
}


class Api:
    """A whole cluster, without the network."""

    def __init__(self, *, history: int, tokens: Tokens, rbac: bool = False, sharding: bool = False) -> None:
        self.storage = Storage(history=history)
        self.catalog = Catalog()
        self.callouts = Callouts(self.storage)
        self.webhooks = Webhooks(self.storage, self.catalog, self.callouts)
        rules = permissions.Rbac(self.storage) if rbac else None
        self.authorizer: permissions.Authorizer = rules or permissions.AllowAll()
        guard = Guard(rules) if rules is not None else None
        self.objects = Objects(self.storage, self.catalog, self.webhooks, guard)
        self._rbac = rbac
        self._sharding = sharding
        self._tokens = tokens
        self._reviews = Reviews(self.authorizer, self.user_of)
        self._discovery = Discovery(self.catalog)
        self._openapi = openapi.OpenApi(self.catalog)
        self._scales = scales.Scales(self.objects)
        self._controllers = Controllers(self.storage, self.catalog, self.objects, converters.factory(self.callouts))
        for kind in builtin_kinds(self._open):
            self.catalog.add(kind)

    async def start(self, state: State | None = None) -> None:
        """Restore the objects of a former sandbox, if any; create the initial objects of every cluster."""
        if state is not None:
            self._resume(state)
            state.follow(self.storage)
        kind = self.catalog.named('namespaces')
        for name in NAMESPACES:
            if kind.store.get('', name) is None:
                await self.objects.create(kind, '', objects.decode({'metadata': {'name': name}}, kind, b''), Options())
        for body in permissions.recorded() if self._rbac else ():
            kind = self.catalog.of_object(body['apiVersion'], body['kind'])
            place, name = body['metadata'].get('namespace', ''), body['metadata']['name']
            if kind.store.get(place, name) is None:
                await self.objects.create(kind, place, objects.decode(body, kind, b''), Options())
        self._controllers.aggregate_roles()

    def user_of(self, token: str) -> User | None:
        """Return the user of a token; None if the token is unknown or expired, or its service account is deleted."""
        user = self._tokens.lookup(token)
        if user is None or not user.uid or (place := users.split_account(user.name)) is None:
            return user
        account = self.storage.table('', 'serviceaccounts').get(*place)
        return user if account is not None and account.uid == user.uid else None

    def _resume(self, state: State) -> None:
        self.storage.version = max(self.storage.version, state.open())
        rows = list(state.rows())
        definitions = self.storage.table(crds.GROUP, crds.PLURAL)
        self._load([row for row in rows if (row.group, row.plural) == definitions.name])
        self._controllers.resume(definitions)
        self._load([row for row in rows if (row.group, row.plural) != definitions.name])
        for table in self.storage:
            table.forget_before(self.storage.version)
            if table is not definitions:
                self._controllers.resume(table)

    def _load(self, rows: Iterable[Row]) -> None:
        for row in rows:
            # Skip kinds that are not served: such rows exist only if the file was edited by hand.
            with contextlib.suppress(KeyError):
                table = self.storage.table(row.group, row.plural)
                self.storage.load(table, orjson.loads(row.body), row.version, row.stored)

    def document(self, method: str, path: str, accept: str, address: str) -> Response:
        """Return the response for a path without objects: health, versions, discovery, OpenAPI."""
        if path in HEALTH:
            return text_response('ok')
        if method != 'GET' and self._is_fixed(path):
            raise statuses.no_method()
        response = self._document(path, accept, address)
        if path == '/openapi/v2' and 'proto-openapi.spec.v2' in accept:
            return raw_response(_NO_DEFINITIONS, media='application/com.github.proto-openapi.spec.v2.v1.0+protobuf')
        if path.startswith('/openapi/v3') and path != '/openapi/v3' or path == '/openapi/v2':
            return response if representations.accepts(accept, 'application/json') else Response(406, b'', [])
        if path.startswith(('/api', '/version')):
            syntax = representations.of_document(accept, fixed=self._is_fixed(path), path=path)
            return _yaml_response(response.body, 200) if syntax == 'yaml' else response
        return response

    def _document(self, path: str, accept: str, address: str) -> Response:
        match path:
            case '/version':
                return json_response(VERSION)
            case '/':
                return json_response({'paths': self._discovery.paths()})
            case '/api' | '/apis':
                body, media = self._discovery.root(path, accept, address)
                return raw_response(body, media=media)
            case '/openapi/v3':
                return raw_response(self._openapi.index())
            case '/openapi/v2':
                return raw_response(self._openapi.legacy())
        if path.startswith(('/openapi/v3/api/', '/openapi/v3/apis/')):
            _, _, rest = path.removeprefix('/openapi/v3/').partition('/')
            group, _, version = rest.rpartition('/')
            try:
                return raw_response(self._openapi.version(group, version))
            except statuses.UnknownPath:
                return Response(404, b'', [])
        head, _, rest = path.removeprefix('/').partition('/')
        group, _, version = rest.partition('/')
        if head == 'apis' and group:
            return raw_response(self._discovery.version(group, version) if version else self._discovery.group(group))
        if head == 'api' and rest:
            return raw_response(self._discovery.version('', rest))
        raise statuses.UnknownPath

    def _is_fixed(self, path: str) -> bool:
        """Check whether the document belongs to the built-in part of a real server, where only GET is allowed."""
        match path.split('/'):
            case ['', 'version'] | ['', 'api'] | ['', 'api', 'v1']:
                return True
            case ['', 'apis', group, version]:
                kinds = self.catalog.resources(group, version)
                return bool(kinds) and not kinds[0].custom
        return False

    def freeze_discovery(self, frozen: bool) -> None:
        """Freeze the discovery, or update it again."""
        self._discovery.frozen = frozen

    def set_availability(self, group: str, available: bool) -> None:
        """Make the group available, or unavailable as if its own server was down."""
        self._discovery.set_availability(group, available)

    def resolve(self, place: Place, seen: SeenRequest, options: Options) -> Kind:
        """Return the kind of a request; raise a 404 or 405 if there is none, or a 503 if it is not available now."""
        self._discovery.check_availability(place.group)
        kind = routes.resolve(self.catalog, place, seen.method)
        if kind.warning:
            options.warnings.append(kind.warning)
        return kind

    def watch(self, kind: Kind, place: Place, seen: SeenRequest, accept: str) -> AsyncIterator[bytes]:
        """Return the stream of a watch."""
        representations.negotiate(accept, seen.query, kind, 'list')  # YAML cannot be streamed; it is refused later.
        options = _list_options(kind, seen, watch=True, shards=self._sharding)
        form, _ = representations.negotiate(accept, seen.query, kind, 'watch')
        return watching.Watch(self.storage, kind, place.namespace, options, form).lines()

    async def act(self, kind: Kind, place: Place, seen: SeenRequest, accept: str, options: Options) -> Response:
        """Execute a request (all verbs but watches), and return its response."""
        queries.check_timeout(seen.query)
        form, syntax = representations.negotiate(accept, seen.query, kind, place.verb)
        if place.verb == 'patch' and place.subresource != 'scale':
            _check_patch_media(seen, kind)
            if not place.name:
                raise statuses.bad_request('name must be provided')
        elif place.verb in ('create', 'update'):
            refused = kind.custom and seen.content_type == protobuf.MEDIA
            _check_media(seen, ACCEPTED if refused else (*ACCEPTED, protobuf.MEDIA))
        _read_options(seen, place.verb, options)
        status = 200
        if kind.table is None or place.subresource not in ('', 'status'):
            status, raw = await self._serve_other(kind, place, seen, form, options)
        else:
            match place.verb:
                case 'get':
                    _check_version(seen)
                    raw = form.object(kind, await self.objects.read(kind, place.namespace, place.name))
                case 'list':
                    listed = _list_options(kind, seen, shards=self._sharding)
                    raw = await listing.answer(self.storage, kind, place.namespace, listed, form)
                case _:
                    status, raw = await self._write(kind, place, seen, options)
                    if form is not representations.PLAIN and (place.verb != 'deletecollection' and not _is_status(raw)):
                        raw = form.raw(kind, raw)
        return raw_response(raw, status) if syntax == 'json' else _yaml_response(raw, status)

    async def _write(self, kind: Kind, place: Place, seen: SeenRequest, options: Options) -> tuple[int, bytes]:
        namespace, name, subresource = place.namespace, place.name, place.subresource
        match place.verb:
            case 'create':
                body = _decode_object(seen, kind, options)
                if kind.plural == approvals.PLURAL:
                    approvals.claim(body, options.user)
                return 201, await self.objects.create(kind, namespace, body, options)
            case 'update':
                try:
                    body = _decode_object(seen, kind, options)
                except statuses.Refusal as refusal:
                    if refusal.code == 422:  # a missing object (404) has priority
                        self.objects.get(kind, namespace, name)
                    raise
                raw, created = await self.objects.replace(kind, namespace, name, body, options, subresource)
                return 201 if created else 200, raw
            case 'patch' if seen.content_type == rest.APPLY_PATCH:
                raw, created = await self.objects.apply(
                    kind, namespace, name, server_side_apply.decode(seen.body), options, subresource
                )
                return 201 if created else 200, raw
            case 'patch':
                if seen.content_type != rest.APPLY_PATCH:
                    self.objects.get(kind, namespace, name)  # As on a real server, 404 precedes errors in the patch.
                patch = _decoded_patch(seen, kind, options)
                raw = await self.objects.patch(
                    kind, namespace, name, patch, seen.content_type, options, subresource, seen.body
                )
                return 200, raw
            case 'delete':
                decode_options(_decoded_options(seen), seen.query, options)
                answer = await self.objects.delete(kind, namespace, name, options)
                return 200, answer if isinstance(answer, bytes) else orjson.dumps(answer)
        selected = _list_options(kind, seen, shards=self._sharding)
        decode_options(_decoded_options(seen), seen.query, options)
        chosen, found = listing.choose(self.storage, kind, namespace, selected)
        gone = await self.objects.delete_all(kind, chosen, options)
        meta = {**({'continue': ''} if kind.custom else {}), **found, 'resourceVersion': str(self.storage.version)}
        head = orjson.dumps({'kind': kind.list_kind, 'apiVersion': kind.api_version, 'metadata': meta})
        return 200, head[:-1] + b',"items":[' + b','.join(gone) + b']}'

    async def _serve_other(
        self,
        kind: Kind,
        place: Place,
        seen: SeenRequest,
        form: representations.Form,
        options: Options,
    ) -> tuple[int, bytes]:
        namespace, name = place.namespace, place.name
        if kind.plural in ABSENT and not kind.custom:
            raise statuses.not_emulated(kind.plural, 'the sandbox has no objects of this kind')
        if kind.table is None:
            asked = _decode_object(seen, kind, options)
            if asked.get('spec'):
                managers.created(asked, server_side_apply.writer_of(kind, self.catalog, options.manager, ''))
            return 201, orjson.dumps(self._reviews.answer(kind, namespace, asked, options.user))
        if kind.conversion is not None:
            await self.objects.read(kind, namespace, name)
        match place.subresource, place.verb:
            case 'scale', _:
                scale = await self._scale(kind, place, seen, options)
                return 200, form.raw(scales.kind_of(kind), orjson.dumps(scale))
            case 'token', _:
                asked = _decode_object(seen, token_requests.TOKEN, options)
                token_requests.check_request(asked, name)
                account = kind.body(self.objects.get(kind, namespace, name))
                answer = token_requests.token_request(namespace, account, asked, self._tokens)
                return 201, orjson.dumps(answer)
            case 'eviction', _:
                pod_subresources.check_eviction(
                    _decode_object(seen, pod_subresources.EVICTION, options), namespace, name, options
                )
                await self.objects.delete(kind, namespace, name, options)
                return 201, _DONE
            case 'binding', _:
                order = _decode_object(seen, pod_subresources.BINDING, options)
                pod_subresources.check_binding(order, namespace, name)
                await self.objects.rewrite(
                    kind, namespace, name, lambda pod: pod_subresources.bind(pod, order), options, 'binding'
                )
                return 201, _DONE
            case 'finalize', 'update':
                body = objects.decode(_decoded(seen, kind), kind, seen.body)
                raw, _ = await self.objects.replace(kind, namespace, name, body, options, place.subresource)
                return 200, raw
            case 'approval' | 'ephemeralcontainers' | 'resize', 'get':
                return 200, kind.raw(self.objects.get(kind, namespace, name))
            case 'approval', 'update':
                body = objects.decode(_decoded(seen, kind), kind, seen.body)
                body = approvals.decide(body, kind.body(self.objects.get(kind, namespace, name)), kind)
                raw, _ = await self.objects.replace(kind, namespace, name, body, options, 'status')
                return 200, raw
            case call, _ if call in podcalls.CALLS:
                podcalls.answer(kind.body(self.objects.get(kind, namespace, name)), call, seen.query)
                return 204, b''
        self.objects.get(kind, namespace, name)
        raise statuses.not_emulated(f'{kind.plural}/{place.subresource}', 'the pods of the sandbox run no containers')

    async def _scale(self, kind: Kind, place: Place, seen: SeenRequest, options: Options) -> Body:
        namespace, name = place.namespace, place.name
        if place.verb == 'get':
            return self._scales.get(kind, namespace, name)
        if place.verb == 'update':
            return await self._scales.replace(kind, namespace, name, _decoded(seen, kind), options)
        if seen.content_type == rest.APPLY_PATCH:
            return await self._scales.apply(kind, namespace, name, server_side_apply.decode(seen.body), options)
        return await self._scales.patch(kind, namespace, name, _scale_patch(seen, kind, options), options)

    def _open(self, group: str, plural: str) -> Table:
        return self.storage.open(group, plural, builtins.fields_of(plural))


def _is_status(raw: bytes) -> bool:
    return raw.startswith(b'{"kind":"Status","apiVersion":"v1"')


def raw_response(body: bytes, status: int = 200, *, media: str = 'application/json') -> Response:
    """Return a response of encoded JSON."""
    return Response(status, body, [('Content-Type', media)])


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON."""
    return Response(status, orjson.dumps(body), [('Content-Type', 'application/json'), *(headers or {}).items()])


def refused(refusal: statuses.Refusal, accept: str) -> Response:
    """Return the response of a refusal."""
    if isinstance(refusal, statuses.UnknownPath):
        return text_response('404 page not found\n', 404)
    if 'yaml' in accept and representations.prefers_yaml(accept):
        response = _yaml_response(orjson.dumps(refusal.as_status()), refusal.code)
        return response._replace(headers=[*response.headers, *refusal.headers.items()])
    return json_response(refusal.as_status(), refusal.code, refusal.headers)


def text_response(text: str, status: int = 200) -> Response:
    """Return a response of plain text."""
    headers = [('Content-Type', 'text/plain; charset=utf-8'), ('X-Content-Type-Options', 'nosniff')]
    return Response(status, text.encode(), headers)


def _yaml_response(raw: bytes, status: int) -> Response:
    text = dump_yaml([orjson.loads(raw)], sort_keys=True, width=80)
    return Response(status, text.encode(), [('Content-Type', 'application/yaml')])


def _known_fields(kind: Kind) -> frozenset[str]:
    return frozenset(kind.selectable) if kind.custom else builtins.selectable(kind)


def _list_options(kind: Kind, seen: SeenRequest, *, watch: bool = False, shards: bool) -> listing.ListOptions:
    try:
        options = listing.list_options(seen.query, _known_fields(kind), watch=watch)
        if kind.custom and not kind.namespaced and 'metadata.namespace' in options.selector.fields:
            raise selectors.UnknownField('metadata.namespace')
        if shards and seen.query.get('shardSelector'):
            options.selector = sharding.Sharded(options.selector, seen.query['shardSelector'])
        return options
    except selectors.UnknownField as error:
        if kind.custom:
            raise
        complaint = builtins.COMPLAINTS.get(kind.plural, builtins.COMPLAINT)
        raise statuses.bad_request(complaint.format(error.field)) from None


def _read_options(seen: SeenRequest, verb: str, options: Options) -> None:
    if verb in queries.OPTIONS:
        queries.check_write(verb, seen.query, applies=seen.content_type == rest.APPLY_PATCH)
        options.dry_run = 'dryRun' in seen.query
        options.field_validation = seen.query.get('fieldValidation') or options.field_validation
        options.manager = managers.manager_name(seen.query.get('fieldManager', ''), seen.user_agent)
        options.force = bool(queries.boolean(seen.query, 'force'))


def _decode_object(seen: SeenRequest, kind: Kind, options: Options) -> Body:
    mistakes: list[str] = []
    body = objects.decode(_decoded(seen, kind), kind, seen.body, mistakes, lenient=options.field_validation == 'Ignore')
    report(mistakes, options, lambda text: patch_results.unhandled(kind, text))
    if kind.custom:
        options.mistakes += strictness.duplicates(seen.body)
    return body


def _decoded(seen: SeenRequest, kind: Kind) -> Any:
    try:
        return _load(seen.body, seen.content_type)
    except protobuf.ProtobufError as error:
        raise statuses.bad_request(
            f'the object provided is unrecognized (must be of type {kind.name}): {error} ({seen.body.hex()[:40]})'
        ) from None
    except clientyaml.YamlError as error:
        raise statuses.bad_request(
            f'the object provided is unrecognized (must be of type {kind.name}): {error} '
            f'({clientjson.excerpt(seen.body)})'
        ) from None
    except clientjson.NumberError as error:
        raise patch_results.unhandled(kind, str(error)) from None
    except ValueError as error:
        raise statuses.bad_request(
            f'the object provided is unrecognized (must be of type {kind.name}): couldn\'t get version/kind; json '
            f'parse error: {error} ({clientjson.excerpt(seen.body)})'
        ) from None


def _decoded_options(seen: SeenRequest) -> Any:
    if not seen.body:
        return None
    _check_media(seen, (*ACCEPTED, protobuf.MEDIA))
    try:
        return _load(seen.body, seen.content_type)
    except (protobuf.ProtobufError, clientyaml.YamlError) as error:
        raise statuses.bad_request(str(error)) from None
    except ValueError as error:
        raise statuses.bad_request(f'couldn\'t get version/kind; json parse error: {error}') from None


def _check_version(seen: SeenRequest) -> None:
    version = seen.query.get('resourceVersion', '')
    if version and not (version.isascii() and version.isdigit()):
        raise statuses.internal(
            f'resourceVersion: Invalid value: {statuses.text(version)}: strconv.ParseUint: '
            f'parsing {statuses.text(version)}: invalid syntax'
        )


def _check_patch_media(seen: SeenRequest, kind: Kind) -> None:
    accepted = (*PATCHES, rest.APPLY_PATCH) if kind.custom else (*PATCHES, rest.STRATEGIC_PATCH, rest.APPLY_PATCH)
    if seen.content_type not in accepted:
        if kind.custom:
            raise statuses.unsupported_media(accepted)
        raise statuses.Refusal(415, 'UnsupportedMediaType', '415: Unsupported Media Type', {})


def _decoded_patch(seen: SeenRequest, kind: Kind, options: Options) -> Any:
    try:
        return clientjson.loads(seen.body)
    except ValueError as error:
        if options.field_validation == 'Ignore' and seen.content_type in PATCHES:
            raise json_patches.unread(None if seen.content_type == rest.MERGE_PATCH else str(error)) from None
        prefix = '' if seen.content_type == rest.STRATEGIC_PATCH else 'error decoding patch: '
        raise statuses.bad_request(f'{prefix}{error}') from None


def _scale_patch(seen: SeenRequest, kind: Kind, options: Options) -> Callable[[Body], Any]:
    """
    Return a function that applies the patch to a scale.

    A strategic merge patch is applied as a merge patch. The two differ only for lists, and a scale has none.
    """
    if seen.content_type == rest.STRATEGIC_PATCH and not kind.custom:
        seen = dataclasses.replace(seen, content_type=rest.MERGE_PATCH)
    patch = _decoded_patch(seen, kind, options)
    if seen.content_type == rest.MERGE_PATCH:
        return lambda scale: json_patches.merge(scale, patch)
    if seen.content_type != rest.JSON_PATCH:
        raise statuses.unsupported_media((*PATCHES, rest.APPLY_PATCH))
    operations = json_patches.check_operations(patch, lenient=options.field_validation == 'Ignore')

    def change(scale: Body) -> Any:
        try:
            return json_patches.apply(scale, operations)
        except json_patches.PatchError:
            raise statuses.rejected() from None

    return change


def _check_media(seen: SeenRequest, accepted: tuple[str, ...]) -> None:
    if seen.content_type not in (*accepted, 'application/octet-stream'):
        raise statuses.unsupported_media(accepted)


def _load(body: bytes, content_type: str) -> Any:
    if content_type == protobuf.MEDIA:
        return protobuf.loads(body)
    return clientyaml.load(body) if content_type == 'application/yaml' else clientjson.loads(body)
