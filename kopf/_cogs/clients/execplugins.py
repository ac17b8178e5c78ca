"""
Exec plugins: programs that provide temporary credentials for users of a kubeconfig.

All large clouds use them. The protocol is that of the API group ``client.authentication.k8s.io``: the request is
passed in an environment variable, and the credentials are returned through the standard output.
Why no cache? The vault runs the login again only if the credentials have expired or were refused.
"""

import base64
import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import credentials

_API_VERSIONS = ['client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1']
_EXTENSION = 'client.authentication.k8s.io/exec'

_TIMEOUT = 60.0
"""The time limit of plugins that are not interactive (in seconds)."""


@dataclasses.dataclass(frozen=True)
class _Plugin:
    """The configuration of a plugin in the kubeconfig; see `execute`."""

    spec: Mapping[str, Any]
    directory: str
    origin: str

    def fail(
        self,
        problem: str,
        cls: type[credentials.LoginError] = credentials.LoginError,
    ) -> credentials.LoginError:
        """Return an error that names the place in the kubeconfig, and the remedy if it is known."""
        hint = self.spec.get('installHint')
        return cls(f"{problem} (field 'exec' in {self.origin}){f'. {hint}' if hint else ''}")

    @property
    def api_version(self) -> str:
        version = self.spec.get('apiVersion')
        if version not in _API_VERSIONS:
            raise self.fail(f"The exec plugin's API version must be one of {_API_VERSIONS}, not {version!r}")
        return str(version)

    @property
    def command(self) -> list[str]:
        command = self.spec.get('command')
        if not command or not isinstance(command, str):
            raise self.fail("The exec plugin has no command")
        # As in kubectl, a plain name is looked up in the PATH, and a path is relative to the kubeconfig.
        if os.path.dirname(command):
            command = os.path.join(self.directory, command)
        return [command, *(str(arg) for arg in self.spec.get('args') or ())]

    def is_interactive(self) -> bool:
        """Check whether the plugin may prompt the user: if the mode permits it, and there is a terminal."""
        mode = self.spec.get('interactiveMode') or 'IfAvailable'
        # Processes without a console have no standard input at all.
        available = sys.stdin is not None and sys.stdin.isatty()
        if mode not in ('Never', 'IfAvailable', 'Always'):
            raise self.fail(f"The exec plugin's interactive mode is unknown: {mode!r}")
        if mode == 'Always' and not available:
            raise self.fail("The exec plugin has to ask for input, but the operator has no terminal")
        return mode != 'Never' and available


def execute(
    spec: Mapping[str, Any],
    *,
    info: credentials.ConnectionInfo,
    cluster: Mapping[str, Any],
    directory: str,
    origin: str,
) -> credentials.ConnectionInfo:
    """
    Run an exec plugin and return the credentials with those of the plugin.

    Args:
        spec: the field ``exec`` of the kubeconfig's user.
        info: the credentials so far: the server and its certificates.
        cluster: the kubeconfig's cluster, for the plugins that request it.
        directory: the directory of relative commands.
        origin: the place of the spec, for error messages.

    Raises:
        credentials.LoginError: if the plugin is absent, fails, or returns no credentials.
    """
    plugin = _Plugin(spec, directory, origin)
    interactive = plugin.is_interactive()
    request = {'apiVersion': plugin.api_version, 'kind': 'ExecCredential', 'spec': {'interactive': interactive}}
    if spec.get('provideClusterInfo'):
        request['spec'] = {'interactive': interactive, 'cluster': _describe_cluster(info, cluster)}
    try:
        extra = {item['name']: item['value'] for item in spec.get('env') or ()}
    except (TypeError, KeyError) as e:
        raise plugin.fail("The exec plugin's environment must be a list of names and values") from e
    output = _run(plugin, {**os.environ, **extra, 'KUBERNETES_EXEC_INFO': json.dumps(request)}, interactive)
    return _parse(plugin, output, info)


def _run(plugin: _Plugin, env: Mapping[str, str], interactive: bool) -> bytes:
    command = plugin.command
    try:
        process = subprocess.run(
            command,
            env=env,
            # Otherwise, a plugin that asks for input nevertheless would wait for ever for the terminal of the
            # operator.
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,  # plugins write questions there
            timeout=None if interactive else _TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise plugin.fail(
            f"The exec plugin {command[0]!r} has not finished in {_TIMEOUT:g} seconds", credentials.PassingLoginError
        ) from e
    except (OSError, ValueError) as e:
        is_absent = isinstance(e, FileNotFoundError) and not plugin.spec.get('installHint')
        remedy = ". Install it, or add its folder to PATH" if is_absent else ''
        raise plugin.fail(f"The exec plugin {command[0]!r} cannot be run: {e}{remedy}") from e
    # This can be temporary, as plugins request credentials over the network. A missing program (above) is not
    # temporary.
    if process.returncode:
        stderr = (process.stderr or b'').decode('utf-8', errors='replace').strip()
        raise plugin.fail(
            f"The exec plugin {command[0]!r} has failed with code {process.returncode}: {stderr}",
            credentials.PassingLoginError,
        )
    return process.stdout


def _parse(plugin: _Plugin, output: bytes, info: credentials.ConnectionInfo) -> credentials.ConnectionInfo:
    name = repr(plugin.command[0])
    try:
        data = json.loads(output)
        kind, version, status = data['kind'], data['apiVersion'], data.get('status') or {}
        token, cert, pkey = (status.get(key) for key in ['token', 'clientCertificateData', 'clientKeyData'])
        moment = status.get('expirationTimestamp')
        expiration = datetime.datetime.fromisoformat(moment) if moment else None
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise plugin.fail(f"The exec plugin {name} has printed no valid ExecCredential: {e!r}") from e
    if kind != 'ExecCredential' or version != plugin.api_version:
        raise plugin.fail(
            f"The exec plugin {name} must print {plugin.api_version} ExecCredential, not {version} {kind}"
        )
    if bool(cert) != bool(pkey):
        raise plugin.fail(f"The exec plugin {name} has given a certificate without its key, or the other way round")
    if not token and not cert:
        raise plugin.fail(f"The exec plugin {name} has given neither a token nor a certificate")
    info = dataclasses.replace(info, expiration=expiration, token=token or info.token)
    if cert:
        info = dataclasses.replace(
            info, certificate_path=None, certificate_data=cert, private_key_path=None, private_key_data=pkey
        )
    return info


def _describe_cluster(info: credentials.ConnectionInfo, cluster: Mapping[str, Any]) -> dict[str, Any]:
    ca_data = info.ca_data
    # The protocol passes the authorities as data only, never by a path.
    if info.ca_path:
        try:
            with open(info.ca_path, 'rb') as f:
                ca_data = base64.b64encode(f.read()).decode('ascii')
        except OSError as e:
            raise credentials.LoginError(f"The certificate authority cannot be read: {e}") from e
    fields = {
        'server': info.server,
        'tls-server-name': info.tls_server_name,
        'insecure-skip-tls-verify': info.insecure,
        'certificate-authority-data': ca_data,
        'proxy-url': info.proxy_url,
        'disable-compression': cluster.get('disable-compression'),
        'config': next(
            (item.get('extension') for item in cluster.get('extensions') or () if item.get('name') == _EXTENSION), None
        ),
    }
    return {key: value for key, value in fields.items() if value}
