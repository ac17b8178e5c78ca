"""
Putting the definitions of custom resources (CRDs) into the cluster before the operator needs them: `ensure_crds`.

A definition is created if it is absent, and patched if it differs from the desired one; otherwise, it is only read.
The list of versions is replaced as a whole. Why not a server-side apply? It would keep the removed fields of a schema
if another client has applied them before. The conversion strategy is not changed unless it is specified, because the
operator sets its own strategy for conversion handlers. But if there are such handlers and no strategy yet, a
placeholder is set together with the versions, so that the API server drops no fields meanwhile.
"""

import asyncio
import functools
import itertools
import logging
import os
import pathlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient, client_var, unfenced_var
from kopf._core.actions.execution import PermanentError
from kopf._core.engines.conversion_strategies import CRDS_PATH, NONE, is_placeholder, is_same
from kopf._core.engines.deferred_work import DeferredWork, deferred_work_var
from kopf._core.intents.registries import registry_var
from kopf._kits.yaml_texts import load_yaml

logger = logging.getLogger(__name__)

Source: TypeAlias = 'str | os.PathLike[str] | Mapping[str, Any] | type[Any] | Iterable[Source]'
"""CRDs: the path of a file or a directory, the text of a file, a dict, a class of a kind, or several of them."""

EnsureFn: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]
"""A coroutine function that creates or updates one CRD, however long that takes."""

DELETION_PATIENCE = 5.0
"""How long the start of an operator waits for a CRD that is being deleted (in seconds)."""

RETRY_DELAYS = (10.0, 20.0, 60.0)
"""The delays after errors of the API when the operator serves already (in seconds)."""

RULE = "{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, create, patch]}"
MERGE_PATCH = 'application/merge-patch+json'
SUFFIXES = ('.yaml', '.yml', '.json')

_KIND, _API_VERSION = 'CustomResourceDefinition', 'apiextensions.k8s.io/v1'
_DEFAULTED_NAMES = ('singular', 'listKind')
_VERBATIM = ('default', 'enum', 'example')  # arbitrary values: empty ones differ from absent ones there
_MAX_DELAY = 1.0
_MAX_DELETION_DELAY = 5.0


class CRDError(PermanentError):
    """Raised if `kopf.ensure_crds` cannot read a CRD, or the API server refuses it or does not permit it."""

    message_code = 'crd-error'


def ensure_crds(*sources: Source, timeout: float | None = 60) -> Awaitable[None]:
    """
    Create or update the CRDs, and wait until the API serves their resources; to be awaited in ``async`` handlers.

    It is meant for startup handlers, and works in all others, too. The operator's own credentials are used. They need
    the permissions to get, create, and patch CRDs. CRDs that do not differ from the desired ones are not written.

    A CRD that is being deleted is created anew when it is gone. Startup handlers wait for that only for 5 seconds, as
    its objects can need this operator: then, the operator starts, and creates the CRD later.

    Args:
        sources: the paths of YAML or JSON files, or of directories of them; texts of YAML (with line breaks); dicts;
            classes that are declared with `kopf.kind`; or lists of all these. All versions of a kind must be given.
        timeout: the limit of time until all of them are served (in seconds); ``None`` means no limit.

    Raises:
        kopf.PermanentError: if a source is not a CRD or is refused, or if the operator is not permitted to do that.
        TimeoutError: if they are not served in time.
    """
    if asyncio.events._get_running_loop() is None:
        raise CRDError(
            "kopf.ensure_crds() has to be awaited, so it cannot be used in functions with 'def'. "
            "Declare the handler with 'async def', and write: await kopf.ensure_crds(...)"
        )
    client = client_var.get(None)
    if client is None:
        raise CRDError(
            "kopf.ensure_crds() works only inside of a running operator, such as in a handler of @kopf.on.startup()."
        )
    return ensure_crds_by(client, sources, timeout)


async def ensure_crds_by(
    client: ApiClient,
    sources: Collection[Source],
    timeout: float | None = 60,
    *,
    ensure_later: EnsureFn | None = None,
) -> None:
    """
    Do as `ensure_crds` does, with the credentials of another client.

    Args:
        client: the client of the API.
        sources: the CRDs.
        timeout: the limit of time until all of them are served (in seconds).
        ensure_later: the function for CRDs that are being deleted while the operator starts, which is called after the
            start; by default, it uses the same client, which must be open then.
    """
    crds = await asyncio.to_thread(lambda: list(read_crds(sources)))  # large files take long
    if not crds:
        raise CRDError("kopf.ensure_crds() has got no CRDs.")
    registry = registry_var.get(None)
    if registry is not None and registry.conversions:
        from kopf._kits.definitions.crd_conversions import add_conversions  # few operators convert objects

        crds = add_conversions(crds, registry)
    await _ensure(client, crds, timeout, ensure_later or functools.partial(_ensure_one, client))


async def _ensure_one(client: ApiClient, crd: Mapping[str, Any]) -> None:
    await ensure_crds_by(client, [crd], None)


async def _ensure(
    client: ApiClient,
    crds: Collection[Mapping[str, Any]],
    timeout: float | None,
    ensure_later: EnsureFn,
) -> None:
    waiting = {crd['metadata']['name']: "it is not applied yet" for crd in crds}
    provisions = [_Provision(client, crd, waiting) for crd in crds]
    # Half of the time is left to the other CRDs.
    patience = DELETION_PATIENCE if timeout is None else min(DELETION_PATIENCE, timeout / 2)
    deadline = asyncio.get_running_loop().time() + patience
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            # All CRDs are applied before the first wait, so that the API server establishes them at the same time.
            applied = [each for each in provisions if await each.apply(deadline, ensure_later)]
            for provision in applied:
                await provision.wait()
    except TimeoutError:
        if not limit.expired():
            raise
        reasons = '; '.join(f"{name}: {reason}" for name, reason in waiting.items())
        raise TimeoutError(f"Not all CRDs are served after {timeout:g} seconds. {reasons}.") from None


async def _keep_trying(ensure_later: EnsureFn, crd: Mapping[str, Any]) -> None:
    """Create the CRD in spite of passing errors of the API; it is run in a task of the operator."""
    # All replicas create CRDs at their start, before any of them is elected.
    unfenced_var.set(True)
    for delay in itertools.chain(RETRY_DELAYS, itertools.repeat(RETRY_DELAYS[-1])):
        try:
            await ensure_later(crd)
            return
        # Why also the latter? API servers that have just started refuse all requests until they have loaded the rules.
        except (errors.APIError, CRDError) as error:
            logger.warning(
                "The CRD %s is not created yet. It is tried again in %g seconds: %s",
                crd['metadata']['name'],
                delay,
                error,
            )
        await asyncio.sleep(delay)


class _Provision:
    """The provisioning of one CRD in the cluster."""

    def __init__(self, client: ApiClient, crd: Mapping[str, Any], waiting: dict[str, str]) -> None:
        self._client = client
        self._crd = crd
        self._name: str = crd['metadata']['name']
        self._waiting = waiting
        self._is_being_deleted = False

    async def apply(self, deadline: float, ensure_later: EnsureFn) -> bool:
        """
        Create or patch the CRD if it differs from the desired one.

        Args:
            deadline: until when to wait in startup handlers if the CRD is being deleted (in the time of the loop).
            ensure_later: the function that creates the CRD after the start if it is not gone by then.

        Returns:
            Whether the CRD is as desired now; otherwise, it is created later.
        """
        delays = _iter_delays(_MAX_DELETION_DELAY)
        while not await self._try_to_apply():
            delay = next(delays)
            deferred_work = deferred_work_var.get(None)
            if self._is_being_deleted and deferred_work is not None and deferred_work.is_possible:
                delay = min(delay, deadline - asyncio.get_running_loop().time())
                if delay <= 0:
                    self._defer(deferred_work, ensure_later)
                    return False
            await asyncio.sleep(delay)
        return True

    async def _try_to_apply(self) -> bool:
        try:
            return await self._write_if_needed()
        except errors.APIConflictError:
            self._waiting[self._name] = "it is changed by another client all the time"
            return False
        except errors.APIForbiddenError as error:
            raise CRDError(
                f"The CRD {self._name} cannot be applied: {error}. The operator needs the permission {RULE}."
            ) from error
        except (errors.APIServerError, errors.APITooManyRequestsError):
            raise
        except errors.APIClientError as error:
            raise CRDError(f"The CRD {self._name} is refused by the API: {error}") from error

    def _defer(self, deferred_work: DeferredWork, ensure_later: EnsureFn) -> None:
        self._waiting.pop(self._name, None)
        deferred_work.add(f'crd:{self._name}', functools.partial(_keep_trying, ensure_later, self._crd))
        logger.warning(
            "The CRD %s is being deleted, and is not gone yet. The operator starts meanwhile, as objects can need it "
            "for their deletion, and creates the CRD when it is gone.",
            self._name,
        )

    async def _write_if_needed(self) -> bool:
        live = await self._read()
        self._is_being_deleted = live is not None and live['metadata'].get('deletionTimestamp') is not None
        if live is None:
            self._waiting[self._name] = "it cannot be created"
            # Drop the status: files from clusters contain it, but users do not own it.
            await self._client.post_json(CRDS_PATH, {key: self._crd[key] for key in self._crd if key != 'status'})
            logger.info("The CRD %s is created.", self._name)
        elif self._is_being_deleted:
            self._waiting[self._name] = "its predecessor is being deleted, together with all the objects"
            return False
        elif changes := _find_changes(self._crd, live):
            # Patch only the compared version: a patch replaces whole lists, such as the versions, and could revert
            # edits of other clients.
            changes.setdefault('metadata', {})['resourceVersion'] = live['metadata']['resourceVersion']
            try:
                await self._client.patch(f'{CRDS_PATH}/{self._name}', changes, MERGE_PATCH)
            except errors.APINotFoundError:  # it was deleted since it was read
                self._waiting[self._name] = "it is deleted by another client all the time"
                return False
            logger.info("The CRD %s is updated.", self._name)
        return True

    async def wait(self) -> None:
        """Wait until the CRD is established, and its resources are discovered."""
        for delay in _iter_delays(_MAX_DELAY):
            live = await self._read()
            reason = "it is gone" if live is None else self._find_obstacle(live)
            if reason is None:
                # Why not only the condition? It becomes true a little before the versions are served.
                reason = await self._find_missing_version()
            if reason is None:
                self._waiting.pop(self._name, None)  # the same CRD can be given twice
                return
            self._waiting[self._name] = reason
            await asyncio.sleep(delay)

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            body: Mapping[str, Any] = await self._client.get_json(f'{CRDS_PATH}/{self._name}')
        except errors.APINotFoundError:
            return None
        return body

    def _find_obstacle(self, live: Mapping[str, Any]) -> str | None:
        conditions = {each['type']: each for each in (live.get('status') or {}).get('conditions') or ()}
        accepted = conditions.get('NamesAccepted') or {}
        if accepted.get('status') == 'False':
            raise CRDError(f"The names of the CRD {self._name} are not accepted: {accepted.get('message')}")
        established = (conditions.get('Established') or {}).get('status') == 'True'
        return None if established else "it is not established"

    async def _find_missing_version(self) -> str | None:
        spec = self._crd['spec']
        for version in spec['versions']:
            if version.get('served'):
                try:
                    found = await self._client.get_json(f"/apis/{spec['group']}/{version['name']}")
                    served = {each.get('name') for each in found.get('resources') or ()}
                except errors.APINotFoundError:
                    served = set()
                except errors.APIForbiddenError:
                    continue  # without the permission, the version is assumed to be served
                if spec['names']['plural'] not in served:
                    return f"its version {version['name']} is not served"
        return None


def _iter_delays(limit: float) -> Iterator[float]:
    delays = (0.05 * 2**number for number in itertools.count())
    return itertools.chain(itertools.takewhile(lambda delay: delay < limit, delays), itertools.repeat(limit))


# Finding differences.


def _find_changes(crd: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from the actual to the desired CRD; empty if they are the same."""
    metadata = {
        key: changed
        for key in ('labels', 'annotations')
        if (changed := _differ(crd['metadata'].get(key) or {}, live['metadata'].get(key) or {}))
    }
    spec: dict[str, Any] = {}
    for key, value in crd['spec'].items():
        current = live['spec'].get(key)
        if key == 'names':
            # A merge patch keeps fields that it does not mention, so former names are removed explicitly.
            gone = {name: None for name in current if name not in value and name not in _DEFAULTED_NAMES}
            if changed := {**gone, **_differ(value, current)}:
                spec[key] = changed
        elif key == 'conversion':
            # A generated strategy has no address yet, so it must not replace the one that an operator has written.
            is_worse = is_placeholder(value or NONE) and (current or NONE)['strategy'] == 'Webhook'
            if not is_worse and not is_same(value or NONE, NONE) and not is_same(value, current or NONE):
                spec[key] = value
        elif _simplify({key: value}) != _simplify({key: current}):
            spec[key] = value
    return {key: changed for key, changed in (('metadata', metadata), ('spec', spec)) if changed}


def _differ(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in wanted.items() if _simplify({key: value}) != _simplify({key: current.get(key)})
    }


def _simplify(value: Any) -> Any:
    """Remove empty values of fields, which the API does not store."""
    if isinstance(value, Mapping):
        return {
            key: each if key in _VERBATIM else _simplify(each)
            for key, each in value.items()
            if key in _VERBATIM or not _is_empty(key, each)
        }
    if isinstance(value, list | tuple):
        return [_simplify(each) for each in value]
    return value


def _is_empty(key: str, value: Any) -> bool:
    return value is None or value is False or value == '' or value == [] or (key == 'priority' and value == 0)


# Reading the sources.


def read_crds(sources: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """
    Yield the CRDs of the sources.

    Raises:
        kopf.PermanentError: if a source cannot be read, or is no CRD.
    """
    classes: list[type[Any]] = []
    yield from _read_all(sources, classes)
    if classes:
        # Why not at the top? Most operators have no models.
        from kopf._core.intents.declared_kinds import get_kind
        from kopf._kits.definitions.crd_documents import make_crds

        try:
            yield from make_crds(dict.fromkeys(map(get_kind, classes)), warn=logger.warning)
        except TypeError as error:
            raise CRDError(str(error)) from error


def _read_all(sources: Iterable[Any], classes: list[type[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the CRDs of the sources, except for those of classes, which are collected in the list."""
    for source in sources:
        if isinstance(source, Mapping):
            yield from _unpack(source, "a dict")
        elif isinstance(source, str) and ('\n' in source or source.lstrip().startswith('{')):
            yield from _parse(source, "a text")
        elif isinstance(source, str | os.PathLike):
            yield from _read_path(pathlib.Path(source))
        elif isinstance(source, type):
            classes.append(source)
        elif isinstance(source, Iterable) and not isinstance(source, bytes | bytearray):
            yield from _read_all(source, classes)
        else:
            raise CRDError(f"kopf.ensure_crds() takes paths, texts, dicts, classes, and lists of them, not {source!r}.")


def _read_path(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    paths = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    for each in paths:
        try:
            text = each.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CRDError(f"The CRDs cannot be read: {error} (in {pathlib.Path.cwd()})") from error
        yield from _parse(text, str(each))


def _parse(text: str, place: str) -> Iterator[dict[str, Any]]:
    import yaml

    try:
        documents = list(load_yaml(text))
    except yaml.YAMLError as error:
        raise CRDError(f"The CRDs in {place} cannot be read: {error}") from error
    for document in documents:
        yield from _unpack(document, place)


def _unpack(document: Any, place: str) -> Iterator[dict[str, Any]]:
    if not isinstance(document, Mapping):
        raise CRDError(f"It is not a CRD, in {place}: {document!r:.100}")
    if document.get('kind') in ('List', f'{_KIND}List'):
        for item in document.get('items') or ():
            yield from _unpack({'kind': _KIND, 'apiVersion': _API_VERSION, **item}, place)
        return
    name = (document.get('metadata') or {}).get('name')
    title = f"{document.get('kind') or 'an object without a kind'}{f' {name!r}' if name else ''}, in {place}"
    if document.get('kind') != _KIND:
        raise CRDError(f"It is not a CRD: {title}.")
    if document.get('apiVersion') != _API_VERSION:
        raise CRDError(f"The apiVersion must be {_API_VERSION}, not {document.get('apiVersion')}: {title}.")
    spec = document.get('spec') or {}
    missing = [
        path
        for path, value in [
            ('metadata.name', name),
            ('spec.group', spec.get('group')),
            ('spec.versions', spec.get('versions')),
            ('spec.names.plural', (spec.get('names') or {}).get('plural')),
        ]
        if not value
    ]
    if missing:
        raise CRDError(f"The CRD has no {missing[0]}: {title}.")
    yield dict(document)
