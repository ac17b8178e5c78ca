"""
The default login handlers, which developers can also call from their own login handlers.

Some of them are implemented here. Others run the login of an installed client library, which can support more ways to
log in, and take its credentials. Every function returns `None` if its source is absent,
so that they can be combined with ``or``, and raises `LoginError` if the source exists but is broken.
"""

import contextlib
import importlib.util
import logging
import os
from typing import Any, TypeAlias

from kopf._cogs.clients import kubeconfigs
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount'
"""The directory with the token, the certificates and the namespace of a pod's service account."""

AnyLogger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]


def has_kubeconfig() -> bool:
    """Check whether there is any kubeconfig file."""
    return any(os.path.exists(path) for path in kubeconfigs.list_paths())


def has_service_account() -> bool:
    """Check whether the process runs in a pod with a service account."""
    return os.path.exists(os.path.join(SERVICE_ACCOUNT, 'token'))


def has_pykube() -> bool:
    """Check whether pykube-ng is installed, without importing it."""
    return importlib.util.find_spec('pykube') is not None


def has_client() -> bool:
    """Check whether the official client library is installed, without importing it."""
    return importlib.util.find_spec('kubernetes') is not None


def has_async_client() -> bool:
    """Check whether the asyncio fork of the official client library is installed, without importing it."""
    return importlib.util.find_spec('kubernetes_asyncio') is not None


def explain_absence() -> str:
    """Return a message on the default sources of credentials, for errors when there are none."""
    files = os.pathsep.join(kubeconfigs.list_paths())
    origin = "$KUBECONFIG" if os.environ.get('KUBECONFIG') else "$KUBECONFIG is not set"
    return (
        f"Looked for a kubeconfig in {files} ({origin}), and for a service account in {SERVICE_ACCOUNT}. "
        f"Set $KUBECONFIG, or run in a pod with a service account, or add a handler with @kopf.on.login()."
    )


def check_sources() -> None:
    """
    Check the default sources of credentials, before any client library is used.

    Raises:
        LoginError: if there are none, or if the kubeconfig cannot be used.
    """
    # In a pod, a broken kubeconfig is no reason to fail: the operator can log in without it.
    if has_service_account():
        return
    config = kubeconfigs.load() if has_kubeconfig() else None
    if config is None:
        raise credentials.LoginError(
            f"There are no credentials for a cluster. {explain_absence()} "
            f"To try an operator without a cluster: kopf run --sandbox."
        )
    config.check()


def login_with_kubeconfig(
    *,
    settings: configuration.OperatorSettings,
    **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in with the current context of kubeconfig files; exec plugins are run if it needs them.

    Args:
        settings: the settings, for ``settings.networking.trust_env``.

    Returns:
        The credentials, or `None` if there are no kubeconfig files.

    Raises:
        LoginError: if the files or the current context cannot be used.
    """
    config = kubeconfigs.load()
    return config.resolve(trust_env=settings.networking.trust_env) if config is not None else None


def login_with_service_account(
    *,
    settings: configuration.OperatorSettings,
    **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in as the service account of the pod; its token is read again while it is used.

    Args:
        settings: the settings, for ``settings.networking.trust_env``.

    Returns:
        The credentials, or `None` if the process is not in a pod.

    Raises:
        LoginError: if the files of the service account cannot be read.
    """
    if not has_service_account():
        return None
    host, port = os.environ.get('KUBERNETES_SERVICE_HOST'), os.environ.get('KUBERNETES_SERVICE_PORT')
    address = f"[{host}]" if host and ':' in host else host
    token_path, ca_path = os.path.join(SERVICE_ACCOUNT, 'token'), os.path.join(SERVICE_ACCOUNT, 'ca.crt')
    try:
        with open(token_path, encoding='utf-8') as f:
            token = f.read().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise credentials.LoginError(f"The token of the service account cannot be read: {e}") from e
    namespace: str | None = None
    with (
        contextlib.suppress(FileNotFoundError),
        open(os.path.join(SERVICE_ACCOUNT, 'namespace'), encoding='utf-8') as f,
    ):
        namespace = f.read().strip() or None
    return credentials.ConnectionInfo(
        # Why not always the name? It needs the DNS of the cluster, which not all pods use (``dnsPolicy``).
        server=f"https://{address}:{port or 443}" if address else "https://kubernetes.default.svc",
        priority=20,
        default_namespace=namespace,
        ca_path=ca_path if os.path.exists(ca_path) else None,
        token=token,
        token_path=token_path,
        trust_env=settings.networking.trust_env,
    )


def login_via_pykube(
    *,
    logger: AnyLogger,
    settings: configuration.OperatorSettings,
    **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in by pykube-ng: as a service account, or else with a kubeconfig.

    Args:
        logger: where to tell which way has worked.
        settings: the settings, for ``settings.networking.trust_env``.

    Returns:
        The credentials, or `None` if pykube-ng is not installed.

    Raises:
        LoginError: if pykube-ng finds nothing to log in with.
    """
    try:
        import pykube
    except ImportError:
        return None
    try:
        config = pykube.KubeConfig.from_service_account()
        logger.debug("Pykube is configured in cluster with service account.")
    except (FileNotFoundError, KeyError):
        try:
            config = pykube.KubeConfig.from_file()
            logger.debug("Pykube is configured via kubeconfig file.")
        except (FileNotFoundError, pykube.PyKubeError) as e:
            raise credentials.LoginError(
                f"Cannot authenticate pykube neither in-cluster, nor via kubeconfig. {explain_absence()}"
            ) from e
    try:
        return _convert_pykube_config(config, trust_env=settings.networking.trust_env)
    except (KeyError, pykube.PyKubeError) as e:
        raise credentials.LoginError(f"Pykube cannot use its kubeconfig: {e!r}") from e


def _convert_pykube_config(config: Any, *, trust_env: bool) -> credentials.ConnectionInfo:
    path = str(getattr(config, 'filepath', None) or os.path.expanduser('~/.kube/config'))
    directory = os.path.dirname(os.path.abspath(path))
    # With exec plugins, pykube has no token until its first request, so the same plugin is run below.
    provider = config.user.get('auth-provider', {}).get('config', {})
    ca, cert, pkey = (
        source.get(key)
        for source, key in [
            (config.cluster, 'certificate-authority'),
            (config.user, 'client-certificate'),
            (config.user, 'client-key'),
        ]
    )
    info = credentials.ConnectionInfo(
        server=config.cluster['server'],
        priority=20,
        default_namespace=(config.namespace or '').strip() or None,
        ca_path=ca.filename() if ca else None,
        insecure=config.cluster.get('insecure-skip-tls-verify'),
        username=config.user.get('username'),
        password=config.user.get('password'),
        token=(config.user.get('token') or provider.get('access-token') or '').strip() or None,
        certificate_path=cert.filename() if cert else None,
        private_key_path=pkey.filename() if pkey else None,
        # Pykube itself does not support these.
        proxy_url=config.cluster.get('proxy-url'),
        tls_server_name=config.cluster.get('tls-server-name'),
        token_path=os.path.join(directory, config.user['tokenFile']) if config.user.get('tokenFile') else None,
        trust_env=trust_env,
    )
    spec = config.user.get('exec')
    if spec and not info.as_http_headers():
        from kopf._cogs.clients import execplugins

        return execplugins.execute(spec, info=info, cluster=config.cluster, directory=directory, origin=path)
    return info


def login_via_client(
    *,
    logger: AnyLogger,
    settings: configuration.OperatorSettings,
    **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in by the official client library: as a service account, or else with a kubeconfig.

    Args:
        logger: where to tell which way has worked.
        settings: the settings, for ``settings.networking.trust_env``.

    Returns:
        The credentials, or `None` if the library is not installed.

    Raises:
        LoginError: if the library finds nothing to log in with.
    """
    try:
        import kubernetes.config
    except ImportError:
        return None
    try:
        kubernetes.config.load_incluster_config()
        logger.debug("Client is configured in cluster with service account.")
    except kubernetes.config.ConfigException:
        try:
            kubernetes.config.load_kube_config()
            logger.debug("Client is configured via kubeconfig file.")
        except (kubernetes.config.ConfigException, OSError) as e:
            raise credentials.LoginError(
                f"Cannot authenticate the client library neither in-cluster, nor via kubeconfig. {explain_absence()}"
            ) from e
    config = kubernetes.client.Configuration.get_default_copy()
    # The key of the token depends on the version of the library.
    header = config.get_api_key_with_prefix('BearerToken') or config.get_api_key_with_prefix('authorization')
    return _convert_client_config(config, header, priority=10, trust_env=settings.networking.trust_env)


async def login_via_async_client(
    *,
    logger: AnyLogger,
    settings: configuration.OperatorSettings,
    **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in by the client library for asyncio: as a service account, or else with a kubeconfig.

    Args:
        logger: where to tell which way has worked.
        settings: the settings, for ``settings.networking.trust_env``.

    Returns:
        The credentials, or `None` if the library is not installed.

    Raises:
        LoginError: if the library finds nothing to log in with.
    """
    try:
        import kubernetes_asyncio.config
    except ImportError:
        return None
    try:
        kubernetes_asyncio.config.load_incluster_config()
        logger.debug("Async client is configured in cluster with service account.")
    except kubernetes_asyncio.config.ConfigException:
        try:
            await kubernetes_asyncio.config.load_kube_config()
            logger.debug("Async client is configured via kubeconfig file.")
        except (kubernetes_asyncio.config.ConfigException, OSError) as e:
            raise credentials.LoginError(
                f"Cannot authenticate the async client library neither in-cluster, nor via kubeconfig. "
                f"{explain_absence()}"
            ) from e
    config = kubernetes_asyncio.client.Configuration.get_default_copy()
    header = await config.get_api_key_with_prefix('BearerToken')
    return _convert_client_config(config, header, priority=15, trust_env=settings.networking.trust_env)


def _convert_client_config(
    config: Any,
    header: str | None,
    *,
    priority: int,
    trust_env: bool,
) -> credentials.ConnectionInfo:
    scheme, _, token = (header or '').strip().rpartition(' ')
    return credentials.ConnectionInfo(
        server=config.host,
        priority=priority,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        username=config.username or None,
        password=config.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
        proxy_url=config.proxy or None,
        trust_env=trust_env,
        tls_server_name=getattr(config, 'tls_server_name', None) or None,
    )
