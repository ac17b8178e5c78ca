"""
Resources of a cluster, and their selectors.

A `Resource` is a fact, discovered in the cluster: one kind in one version of one API group. A `Selector` is an intent,
declared in the code before the discovery: the names, groups, versions, or predicates by which to find resources.
Namespaces are similar: names are facts, patterns are intents.
"""

import dataclasses
import enum
import fnmatch
import functools
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kopf._cogs.helpers.explanations import INTERRUPTIONS, ExplainedError, name_error

NamespaceName = str
"""The name of a specific namespace."""

Namespace = NamespaceName | None
"""A specific namespace, or `None` for the whole cluster (of cluster-scoped objects, too)."""

NamespacePattern = str | re.Pattern[str]
"""A name of a namespace, or globs for such names (see `match_namespace`), or a regular expression for a whole name."""


class SelectorError(ExplainedError):
    """Raised if the user's function that selects resources has failed."""


class Marker(enum.Enum):
    """Special values for the names of resources."""

    EVERYTHING = enum.auto()


EVERYTHING = Marker.EVERYTHING
"""Used in place of a resource's name: all resources (of an API group, or version, or both, or of the whole cluster)."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Resource:
    """
    A kind of resources in a specific version of the API, either custom or built-in.

    The group, the version and the plural name make the URLs of the API, and identify the resource: resources are equal
    if these are equal. The other fields are for selectors, for checks of supported operations, and for information.
    """

    group: str
    """The API group, e.g. ``"kopf.dev"``, ``"apps"``; an empty string for the legacy core API."""

    version: str
    """The API version, e.g. ``"v1"``, ``"v1beta1"``."""

    plural: str
    """The plural name, e.g. ``"pods"``, ``"kopfexamples"``, as in URLs."""

    kind: str | None = None
    """The kind as in YAML manifests, e.g. ``"Pod"``, ``"KopfExample"``."""

    singular: str | None = None
    """The singular name, e.g. ``"pod"``, ``"kopfexample"``."""

    shortcuts: frozenset[str] = frozenset()
    """The short names, e.g. ``{"po"}``, ``{"kex", "kexes"}``."""

    categories: frozenset[str] = frozenset()
    """The categories the resource belongs to, e.g. ``{"all"}``."""

    subresources: frozenset[str] = frozenset()
    """The names of subresources, e.g. ``{"status", "scale"}``."""

    namespaced: bool | None = None
    """The scope of the objects: ``True`` if they belong to namespaces, ``False`` if they are cluster-scoped."""

    preferred: bool = True
    """True if this is the preferred version of the API group, which is used if a selector has no version."""

    verbs: frozenset[str] = frozenset()
    """The operations that the API supports, e.g. ``{"list", "watch", "patch"}``, regardless of RBAC permissions."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resource):
            return NotImplemented
        # Compare the plural name first, because it usually differs.
        return self is other or (
            self.plural == other.plural and self.group == other.group and self.version == other.version
        )

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))

    def is_same(self, other: 'Resource') -> bool:
        """Check whether all fields are equal: not only the identity, but also e.g. the verbs."""
        # Why not `dataclasses.astuple`? It copies all values deeply.
        return self is other or all(getattr(self, name) == getattr(other, name) for name in _RESOURCE_FIELDS)

    def __repr__(self) -> str:
        return f'{self.plural}.{self.version}.{self.group}'.strip('.')

    def __iter__(self) -> Iterator[str]:
        """Iterate over the identity, as in ``group, version, plural = resource``."""
        return iter((self.group, self.version, self.plural))

    def get_url(
        self,
        *,
        server: str | None = None,
        namespace: Namespace = None,
        name: str | None = None,
        subresource: str | None = None,
        params: Mapping[str, str] | None = None,
    ) -> str:
        """
        Build the URL of an object, or of a list of objects if there is no name.

        Args:
            server: the root URL of the API; if absent, only the path is returned.
            namespace: the namespace; if absent, the URL is cluster-wide.
            name: the name of the object.
            subresource: the subresource of the named object; it is not checked to exist.
            params: the query parameters.

        Raises:
            ValueError: if such a URL is impossible: a namespace for a cluster-scoped resource, a name without
                a namespace for a namespaced one, a subresource without a name.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self} are not namespaced, but the namespace {namespace!r} is requested.")
        if namespace is None and name is not None and self.namespaced:
            raise ValueError(f"{self} are namespaced, but {name!r} is requested with no namespace.")
        if subresource is not None and name is None:
            raise ValueError(f"The subresource {subresource!r} of {self} is requested with no name of an object.")
        path = f'/apis/{self.group}/{self.version}' if self.group else f'/api/{self.version}'
        if namespace is not None:
            path += f'/namespaces/{_quote(namespace)}'
        path += f'/{self.plural}'
        if name is not None:
            path += f'/{_quote(name)}'
        if subresource is not None:
            path += f'/{subresource}'
        query = f'?{urllib.parse.urlencode(params)}' if params else ''
        return f'{(server or "").rstrip("/")}{path}{query}'


_RESOURCE_FIELDS = tuple(field.name for field in dataclasses.fields(Resource))


def _quote(name: str) -> str:
    if name.isascii() and name.replace('-', '').replace('.', '').isalnum():  # a fast check, true for nearly all names
        return name
    return urllib.parse.quote(name, safe=':@')  # e.g. "system:node" is a valid name; so is "a#b" in RBAC


ResourceFn = Callable[[Resource], bool]
"""A predicate to select resources."""

_VERSION = re.compile(r'v(\d+)(?:(alpha|beta)(\d+))?')
_NAME_FIELDS = ('kind', 'plural', 'singular', 'shortcut', 'category', 'any_name', 'fn')
_EVENT_GROUPS = frozenset({'', 'events.k8s.io'})


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Selector:
    """
    A declaration that selects resources: by a name of any type, by category, by a predicate, or all of them.

    The name is always the rightmost positional argument. The API group and version go before it: as two strings
    or as one (``"group/version"``), or the group alone, or ``"v1"`` for the legacy core API. The notation of kubectl
    is also accepted: ``"pods.v1"``, ``"deployments.apps"``, ``"deployments.v1.apps"``.
    """

    group: str | None = None
    version: str | None = None
    kind: str | None = None
    plural: str | None = None
    singular: str | None = None
    shortcut: str | None = None
    category: str | None = None
    any_name: str | Marker | None = None
    fn: ResourceFn | None = None

    def __init__(
        self,
        arg1: str | Marker | ResourceFn | None = None,
        arg2: str | Marker | None = None,
        arg3: str | Marker | None = None,
        /,
        *args: None,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
    ) -> None:
        """
        Parse and check the arguments.

        Raises:
            TypeError: if the arguments contradict each other, name no resource, or can never match any resource.
        """
        if args:
            raise TypeError("Too many positional arguments for a resource: at most a group, a version, and a name.")
        parsed = _parse_positionals([arg for arg in (arg1, arg2, arg3) if arg is not None])
        values: dict[str, object] = {
            'group': _agree('group', parsed.group, group),
            'version': _agree('version', parsed.version, version),
            'kind': kind,
            'plural': plural,
            'singular': singular,
            'shortcut': shortcut,
            'category': category,
            'any_name': parsed.name,
            'fn': parsed.fn,
        }
        _check_names({name: values[name] for name in _NAME_FIELDS if values[name] is not None})
        _check_api(values['group'], values['version'])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        texts = [f'{name}={value!r}' for name, value in values.items() if value is not None]
        return f"{self.__class__.__name__}({', '.join(texts)})"

    @property
    def is_specific(self) -> bool:
        """True if it selects one resource, so that several matches are ambiguous; otherwise, it selects all matches."""
        return self.fn is None and self.category is None and self.any_name is not EVERYTHING

    def check(self, resource: Resource) -> bool:
        """
        Check whether the resource matches, regardless of other resources.

        Without a version in the selector, only the preferred versions match; predicates are called for all versions.
        Events match only by their names: handling of any object creates more events, so it would never end.
        """
        if self.group is not None and self.group != resource.group:
            return False
        if self.version is not None and self.version != resource.version:
            return False
        # Predicates get all versions, so that they can choose one. Names mean the preferred version, as in kubectl.
        if self.fn is not None:
            return not _is_event(resource) and self._call(self.fn, resource)
        if self.version is None and not resource.preferred:
            return False
        return self._check_name(resource)

    @staticmethod
    def _call(fn: Callable[[Resource], bool], resource: Resource) -> bool:
        try:
            return bool(fn(resource))
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            code = getattr(fn, '__code__', None)
            place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
            name = getattr(fn, '__name__', None) or repr(fn)
            raise SelectorError(
                f"The function {name!r}{place}, which selects the resources of handlers, failed for {resource}: "
                f"{name_error(error)}. It is called with each kopf.Resource of the cluster."
            ) from error

    def _check_name(self, resource: Resource) -> bool:
        if self.any_name is EVERYTHING:
            return not _is_event(resource)
        if self.any_name is not None:
            names = (resource.kind, resource.plural, resource.singular)
            return self.any_name in names or self.any_name in resource.shortcuts
        if self.category is not None:
            return self.category in resource.categories
        if self.shortcut is not None:
            return self.shortcut in resource.shortcuts
        return (
            (self.kind is None or self.kind == resource.kind)
            and (self.plural is None or self.plural == resource.plural)
            and (self.singular is None or self.singular == resource.singular)
        )

    def select(self, resources: Collection[Resource]) -> frozenset[Resource]:
        """
        Select the matching resources of the existing ones.

        For a specific name, the legacy core API has priority over all other groups, as in kubectl: "pods" are pods,
        not their metrics. If resources of several groups remain, the selector is ambiguous; the caller handles that.
        """
        found = frozenset(resource for resource in resources if self.check(resource))
        # This is only for names: a category or `kopf.EVERYTHING` selects several resources of any groups on purpose.
        if self.is_specific:
            found = frozenset(resource for resource in found if not resource.group) or found
        return found


def _is_event(resource: Resource) -> bool:
    return resource.plural == 'events' and resource.group in _EVENT_GROUPS


class _Positionals(NamedTuple):
    group: str | None = None
    version: str | None = None
    name: str | Marker | None = None
    fn: ResourceFn | None = None


def _parse_positionals(args: Collection[object]) -> _Positionals:
    *api, name = args or [None]
    if callable(name) and not api:
        return _Positionals(fn=name)
    if any(callable(arg) for arg in args):
        raise TypeError("A callable resource selector must be the only positional argument.")
    if EVERYTHING in api:
        raise TypeError("kopf.EVERYTHING replaces the name of a resource, so it must be the last positional argument.")
    if not isinstance(name, str | Marker | None):
        hint = " For several resources, write one decorator above the other." if isinstance(name, list | set) else ''
        raise TypeError(f"Resources are specified by strings, kopf.EVERYTHING, or callables; got {name!r}.{hint}")
    match api:
        case []:
            return _parse_kubectl(name) if isinstance(name, str) else _Positionals(name=name)
        case ['v1']:
            return _Positionals(group='', version='v1', name=name)
        case [str(group_version)]:
            group, slash, version = group_version.partition('/')
            return _Positionals(group=group, version=version if slash else None, name=name)
        case [str(group), str(version)]:
            return _Positionals(group=group, version=version, name=name)
        case _:
            raise TypeError(f"The group and version of a resource must be strings; got {api!r}.")


def _parse_kubectl(spec: str) -> _Positionals:
    if '/' in spec:
        api, _, name = spec.rpartition('/')
        raise TypeError(
            f"No resource can be named {spec!r}. Put its API group and version before the name: ({api!r}, {name!r})."
        )
    name, dot, api = spec.partition('.')
    version, version_dot, group = api.partition('.')
    if not dot:
        return _Positionals(name=name)
    # As in kubectl, a part that looks like a version is one. A group with such a name needs a separate argument.
    if not _VERSION.fullmatch(version):
        return _Positionals(name=name, group=api)
    return _Positionals(name=name, version=version, group=group if version_dot else None)


def _agree(what: str, positional: str | None, keyword: str | None) -> str | None:
    if positional is not None and keyword is not None and positional != keyword:
        raise TypeError(f"The {what} of a resource is specified twice: {positional!r} and {keyword!r}.")
    return keyword if positional is None else positional


def _check_names(names: Mapping[str, object]) -> None:
    if not names:
        raise TypeError("A resource has no name: use any of its names, category=, kopf.EVERYTHING, or a callable.")
    if len(names) > 1:
        texts = ', '.join(repr(value) for value in names.values())
        raise TypeError(f"A resource is specified by several names, only one is needed: {texts}.")
    for field, value in names.items():
        if value == '':
            raise TypeError("The name of a resource must not be an empty string.")
        if field not in ('any_name', 'fn') and not isinstance(value, str):
            raise TypeError(f"{field}= must be a string; got {value!r}. (kopf.EVERYTHING is for positionals only.)")
        if isinstance(value, str) and ('/' in value or '.' in value) and field != 'category':
            raise TypeError(f"No resource can be named {value!r}. Put its API group and version before the name.")


def _check_api(group: object, version: object) -> None:
    for field, value in (('group', group), ('version', version)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"The {field} of a resource must be a string, not {value!r}.")
        if value is not None and '/' in value:
            raise TypeError(f"The {field} of a resource cannot have slashes: {value!r}.")
    if version == '':
        raise TypeError("The version of a resource must not be an empty string.")


def rank_version(version: str) -> tuple[int, int, int]:
    """Return the priority of a version as Kubernetes orders them: v1 is above v1beta2, and that above v1alpha1."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return -1, 0, 0
    major, stage, minor = match.groups()
    return ('alpha', 'beta', None).index(stage), int(major), int(minor or 0)


@functools.lru_cache(maxsize=1024)
def _parse_globs(pattern: str) -> tuple[tuple[bool, re.Pattern[str]], ...]:
    globs = [glob.strip() for glob in pattern.split(',')]
    return tuple((glob.startswith('!'), re.compile(fnmatch.translate(glob.lstrip('!').strip()))) for glob in globs)


def match_namespace(name: NamespaceName, pattern: NamespacePattern) -> bool:
    """
    Check whether the pattern matches the namespace.

    A string pattern is a comma-separated list of globs (``*``, ``?``), possibly negated (``!``). The first glob
    is decisive: a namespace must match it to match at all; if it is negated, all other namespaces match initially.
    Of the other globs, the rightmost one that matches wins. A regular expression must match the whole name.
    """
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    first, *others = _parse_globs(pattern)
    negated, regexp = first
    # A match from the beginning is enough, because translated globs also match the end.
    matched = (regexp.match(name) is not None) is not negated
    if not matched and not negated:
        return False
    for negated, regexp in others:
        if regexp.match(name) is not None:
            matched = not negated
    return matched


def select_specific_namespaces(patterns: Iterable[NamespacePattern]) -> frozenset[NamespaceName]:
    """Return the patterns that are plain names: these can be served without listing the existing namespaces."""
    return frozenset(pattern for pattern in patterns if isinstance(pattern, str) and not set(pattern) & set(',*?!'))


EVENTS = Selector('v1', 'events')
CRDS = Selector('apiextensions.k8s.io', 'customresourcedefinitions')
MUTATING_WEBHOOK = Selector('admissionregistration.k8s.io', 'mutatingwebhookconfigurations')
VALIDATING_WEBHOOK = Selector('admissionregistration.k8s.io', 'validatingwebhookconfigurations')

CLUSTER_PEERINGS = (Selector('kopf.dev/v1', 'clusterkopfpeerings'), Selector('zalando.org/v1', 'clusterkopfpeerings'))
"""The peerings of the whole cluster. The first that exists is used; the second one has the former API group."""

NAMESPACED_PEERINGS = (Selector('kopf.dev/v1', 'kopfpeerings'), Selector('zalando.org/v1', 'kopfpeerings'))
"""The peerings of namespaces, in the same order."""

PEERING_GROUPS = frozenset({'kopf.dev', 'zalando.org'})
"""The API groups of the peering objects."""


_COORDINATING = {(selector.group, selector.any_name) for selector in (*CLUSTER_PEERINGS, *NAMESPACED_PEERINGS)}
_COORDINATING.add(('coordination.k8s.io', 'leases'))


def is_for_coordination(resource: Resource) -> bool:
    """Check whether processes agree by these objects which of them works: Leases and peerings."""
    return (resource.group, resource.plural) in _COORDINATING


def select_peerings(resources: Collection[Resource], *, clusterwide: bool) -> Resource | None:
    """Return the resource of peering objects that exists in the cluster, if any; the newer one if both exist."""
    for selector in CLUSTER_PEERINGS if clusterwide else NAMESPACED_PEERINGS:
        for resource in selector.select(resources):
            return resource
    return None
