"""
Kubeconfig files: found, merged and resolved into credentials the way kubectl does it.

Why not a client library? It is slow to import, and an operator needs only one context of a kubeconfig. This module
accepts everything that kubectl accepts, with the same meaning. Errors name the file, the place in it, and the remedy,
because new users of the framework often see them first.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from kopf._cogs.structs import credentials

logger = logging.getLogger(__name__)

_PATHS = {  # the fields with paths, which are relative to the directory of their file
    'clusters': ['certificate-authority'],
    'users': ['client-certificate', 'client-key', 'tokenFile'],
    'contexts': [],
}


class _Entry(NamedTuple):
    """A named cluster, user or context, with its file."""

    path: str
    section: str
    name: str
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.section}[{self.name!r}] of {self.path}"

    def get(self, field: str) -> str | None:
        """Return a text field; `None` if it is absent or empty."""
        value = self.data.get(field)
        if value is not None and not isinstance(value, str):
            raise credentials.LoginError(f"Field {field!r} must be a string in {self}. Fix the file.")
        return value or None

    def get_mapping(self, field: str) -> Mapping[str, Any]:
        """Return a nested structure; empty if it is absent."""
        value = self.data.get(field)
        if value is not None and not isinstance(value, Mapping):
            raise credentials.LoginError(f"Field {field!r} must be a mapping in {self}. Fix the file.")
        return value or {}


class Kubeconfig(NamedTuple):
    """
    All kubeconfig files merged: the first file that has a value or a name wins.

    Args:
        paths: the files that were read.
        current_context: the name of the context to use, if there is one.
    """

    paths: list[str]
    current_context: str | None
    entries: Mapping[tuple[str, str], _Entry]

    def resolve(self, *, trust_env: bool = False) -> credentials.ConnectionInfo:
        """
        Return the credentials of the current context; run its exec plugin if there is one.

        Args:
            trust_env: to be passed to the credentials.

        Raises:
            credentials.LoginError: if the files are broken or incomplete, or if the plugin fails.
        """
        context, cluster, user = self.check()
        info = _make_info(context, cluster, user, trust_env=trust_env)
        return info if user is None else _authenticate(info, cluster, user)

    def check(self) -> tuple[_Entry, _Entry, _Entry | None]:
        """
        Return the current context, its cluster and its user, if there is one, without running exec plugins.

        Raises:
            credentials.LoginError: if one of them is not named, or does not exist.
        """
        files = os.pathsep.join(self.paths)
        if not self.current_context:
            raise credentials.LoginError(
                f"The current context is not set in {files}. Set it with: kubectl config use-context NAME"
            )
        context = self.entries.get(('contexts', self.current_context))
        if context is None:
            names = ', '.join(repr(name) for section, name in self.entries if section == 'contexts') or 'none'
            raise credentials.LoginError(
                f"The current context {self.current_context!r} does not exist in {files}; there are: {names}. "
                f"Choose another one with: kubectl config use-context NAME"
            )
        cluster = self._follow(context, 'cluster', 'clusters')
        user = self._follow(context, 'user', 'users') if context.get('user') else None
        return context, cluster, user

    def _follow(self, context: _Entry, field: str, section: str) -> _Entry:
        name = context.get(field)
        if not name:
            raise credentials.LoginError(f"Field {field!r} is not set in {context}. Fix the file.")
        entry = self.entries.get((section, name))
        if entry is None:
            raise credentials.LoginError(f"The {field} {name!r}, named in {context}, does not exist. Fix the file.")
        return entry


def list_paths() -> list[str]:
    """Return the possible paths of kubeconfig files, which may not exist."""
    # Shells expand the home directory, but the other places that set variables do not.
    paths = [os.path.expanduser(path) for path in os.environ.get('KUBECONFIG', '').split(os.pathsep) if path]
    return list(dict.fromkeys(paths)) or [os.path.expanduser('~/.kube/config')]


def load() -> Kubeconfig | None:
    """
    Read and merge all kubeconfig files that exist.

    Returns:
        The configuration, or `None` if there are no files.

    Raises:
        credentials.LoginError: if a file cannot be read, or is not a kubeconfig.
    """
    wanted = list_paths()
    paths = [path for path in wanted if os.path.exists(path)]
    if not paths:
        if os.environ.get('KUBECONFIG'):
            logger.warning(f"None of the files in $KUBECONFIG exists: {os.pathsep.join(wanted)}")
        return None
    entries: dict[tuple[str, str], _Entry] = {}
    current_context: str | None = None
    for path in paths:
        data = _read(path)
        current_context = current_context or data.get('current-context') or None
        for entry in _parse(path, data):
            # As kubectl merges files: the first definition of a name wins as a whole; its fields are not merged with
            # later ones.
            entries.setdefault((entry.section, entry.name), entry)
    return Kubeconfig(paths, current_context, entries)


def _read(path: str) -> Mapping[str, Any]:
    try:
        with open(path, 'rb') as f:
            text = f.read()
    except OSError as e:
        raise credentials.LoginError(f"The kubeconfig cannot be read: {e}") from e
    data = _decode(path, text)
    if data is not None and not isinstance(data, Mapping):
        raise credentials.LoginError(f"The kubeconfig is not a mapping: {path}")
    return data or {}


def _decode(path: str, text: bytes) -> Any:
    if text.startswith(b'{'):  # generated files are often JSON: it is YAML too, but decoded at once
        with contextlib.suppress(ValueError):
            return orjson.loads(text)
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, 'CSafeLoader', yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise credentials.LoginError(f"The kubeconfig is not a YAML file: {path}: {e}") from e


def _parse(path: str, data: Mapping[str, Any]) -> Iterator[_Entry]:
    directory = os.path.dirname(os.path.abspath(path))
    for section, fields in _PATHS.items():
        try:
            items = [(str(item['name']), dict(item.get(section[:-1]) or {})) for item in data.get(section) or ()]
        except (TypeError, ValueError, KeyError, AttributeError) as e:
            raise credentials.LoginError(f"The {section!r} must be a list of names & values in {path}.") from e
        for name, values in items:
            for field in fields:
                if isinstance(values.get(field), str) and values[field]:
                    values[field] = os.path.join(directory, values[field])
            yield _Entry(path, section, name, values)


def _make_info(
    context: _Entry,
    cluster: _Entry,
    user: _Entry | None,
    *,
    trust_env: bool,
) -> credentials.ConnectionInfo:
    server = cluster.get('server')
    if not server:
        raise credentials.LoginError(f"Field 'server' is not set in {cluster}. Fix the file.")
    ca_data = cluster.get('certificate-authority-data')
    user = user if user is not None else _Entry(context.path, 'users', '', {})
    if user.get('as'):
        logger.warning(f"Impersonation is not supported; field 'as' is ignored in {user}.")
    cert_data, pkey_data = user.get('client-certificate-data'), user.get('client-key-data')
    # Why not run the auth providers? Kubectl has dropped most of them; but their last token can still work.
    provider = _Entry(user.path, user.section, user.name, user.get_mapping('auth-provider')).get_mapping('config')
    return credentials.ConnectionInfo(
        server=server,
        priority=10,
        default_namespace=context.get('namespace'),
        ca_data=ca_data,
        # As in kubectl, data win over files. The credentials would refuse to have both.
        ca_path=None if ca_data else cluster.get('certificate-authority'),
        insecure=cluster.data.get('insecure-skip-tls-verify'),
        username=user.get('username'),
        password=user.get('password'),
        token=user.get('token') or provider.get('access-token') or provider.get('id-token'),
        certificate_data=cert_data,
        certificate_path=None if cert_data else user.get('client-certificate'),
        private_key_data=pkey_data,
        private_key_path=None if pkey_data else user.get('client-key'),
        tls_server_name=cluster.get('tls-server-name'),
        proxy_url=cluster.get('proxy-url'),
        trust_env=trust_env,
    )


def _authenticate(
    info: credentials.ConnectionInfo,
    cluster: _Entry,
    user: _Entry,
) -> credentials.ConnectionInfo:
    # As in kubectl, the file wins over the text of a token.
    token_path = user.get('tokenFile')
    if token_path:
        try:
            with open(token_path, encoding='utf-8') as f:
                return dataclasses.replace(info, token=f.read().strip(), token_path=token_path)
        except (OSError, UnicodeDecodeError) as e:
            raise credentials.LoginError(f"The file in field 'tokenFile' of {user} cannot be read: {e}") from e
    spec = user.get_mapping('exec')
    if spec and not info.as_http_headers():
        directory = os.path.dirname(os.path.abspath(user.path))
        from kopf._cogs.clients import execplugins

        return execplugins.execute(spec, info=info, cluster=cluster.data, directory=directory, origin=str(user))
    return info
