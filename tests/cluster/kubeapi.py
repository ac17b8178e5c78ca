"""A small synchronous client of the Kubernetes API, for tests and for the demo.

It shares nothing with the framework's own client but the login, so that a mistake there
is not made twice and cannot hide. Objects are plain dicts.
"""

import concurrent.futures
import contextlib
import functools
import http.client
import json
import os
import pathlib
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from keptconnections import KeptConnections

T = TypeVar("T")
Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API has refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def wait(predicate: Callable[[], T], what: str, *, timeout: float = 60) -> T:
    """Poll until the predicate returns something true, and return that; TimeoutError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(0.05)
    return value


class KubeApi:
    """The API of the cluster that $KUBECONFIG names when this is made."""

    def __init__(self) -> None:
        import kopf

        connection = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
        if connection is None:
            raise RuntimeError("KUBECONFIG names no cluster")
        self.kubeconfig = pathlib.Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
        self._server = connection.server.rstrip("/")
        self._headers = connection.as_http_headers()
        proxies = {"http": connection.proxy_url, "https": connection.proxy_url} if connection.proxy_url else {}
        self._context = connection.as_ssl_context()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=self._context)
        )
        self._connections = KeptConnections(self._server, self._context, connection.proxy_url)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}
        self.warnings: list[str] = []
        """What the API has warned about in its last answer."""

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Object:
        """Send a request, return the decoded answer; ApiError if it is refused, and not only for a while."""
        for _ in range(50):
            try:
                return self._request(method, path, body, content_type)
            except ApiError as error:
                if error.status != 429:  # e.g. when another version of a kind has just appeared
                    raise
            time.sleep(0.2)
        return self._request(method, path, body, content_type)

    def read(self, path: str) -> str:
        """Return the text of an endpoint that has no objects, such as that of the metrics."""
        request = urllib.request.Request(self._server + path, headers=self._headers)
        with self._opener.open(request, timeout=60) as response:
            return str(response.read().decode())

    def _request(self, method: str, path: str, body: Any, content_type: str) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": "application/json", **({"Content-Type": content_type} if data else {})}
        answer = self._connections.request(method, path, data, headers)
        if answer.status < 300:
            self.warnings = answer.headers.get_all("Warning") or []
            decoded: Object = json.loads(answer.text)
            return decoded
        try:
            text = json.loads(answer.text)["message"]
        except (ValueError, KeyError, TypeError):
            text = answer.text
        raise ApiError(answer.status, text)

    def open(self, path: str) -> http.client.HTTPResponse:
        """Send a request for a stream, such as a watch; return the response, to be read line by line."""
        response = self._opener.open(urllib.request.Request(self._server + path, headers=self._headers))
        assert isinstance(response, http.client.HTTPResponse)
        return response

    def path(self, api_version: str, kind: str, namespace: str | None = None, name: str = "") -> str:
        """Return the URL path of an object, or of a list; cluster-scoped kinds ignore the namespace."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if (api_version, kind) not in self._plurals:
            for item in self.request("GET", root)["resources"]:
                if "/" not in item["name"]:
                    self._plurals[api_version, item["kind"]] = item["name"], item["namespaced"]
        plural, namespaced = self._plurals[api_version, kind]
        middle = f"/namespaces/{namespace or 'default'}" if namespaced else ""
        return f"{root}{middle}/{plural}" + (f"/{name}" if name else "")

    def apply(self, source: pathlib.Path | str | Object, namespace: str | None = None) -> list[Object]:
        """Create or update what a YAML file, a YAML text or an object says; wait until CRDs among it are served."""
        applied = []
        for item in documents(source):
            namespace_of_item = item["metadata"].get("namespace") or namespace
            path = self.path(item["apiVersion"], item["kind"], namespace_of_item)
            try:
                applied.append(self.request("POST", path, item))
            except ApiError as error:
                if error.status != 409:
                    raise
                applied.append(self.request("PATCH", f"{path}/{item['metadata']['name']}", item, MERGE_PATCH))
            if item["kind"] == "CustomResourceDefinition":
                self._wait_served(item)
        return applied

    def create_many(self, bodies: Sequence[Object], namespace: str, *, connections: int = 4) -> None:
        """Create thousands of objects of one kind, over connections that are kept."""
        path = self.path(bodies[0]["apiVersion"], bodies[0]["kind"], namespace)
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            parts = [bodies[number::connections] for number in range(connections)]
            for _ in pool.map(functools.partial(self._create_all, path), parts):
                pass

    def _create_all(self, path: str, bodies: Sequence[Object]) -> None:
        server = urllib.parse.urlsplit(self._server)
        secure = server.scheme == "https"
        connection = (
            http.client.HTTPSConnection(server.netloc, context=self._context, timeout=60)
            if secure
            else http.client.HTTPConnection(server.netloc, timeout=60)
        )
        with contextlib.closing(connection):
            for body in bodies:
                connection.request("POST", path, json.dumps(body), self._headers | {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode(errors="replace")
                if response.status >= 300:
                    raise ApiError(response.status, text)

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        """Return the object, or None if there is none."""
        try:
            return self.request("GET", self.path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def items(self, api_version: str, kind: str, namespace: str | None = None) -> list[Object]:
        """All objects of a kind in a namespace."""
        found: list[Object] = self.request("GET", self.path(api_version, kind, namespace))["items"]
        return found

    def patch(self, api_version: str, kind: str, namespace: str | None, name: str, patch: Object) -> Object:
        """Merge a patch into the object."""
        return self.request("PATCH", self.path(api_version, kind, namespace, name), patch, MERGE_PATCH)

    def delete(self, api_version: str, kind: str, namespace: str | None, name: str) -> None:
        """Delete the object, if it is there."""
        try:
            self.request("DELETE", self.path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise

    def _wait_served(self, crd: Object) -> None:
        kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
        for version in crd["spec"]["versions"]:
            if not version["served"]:
                continue
            wait(functools.partial(self._is_served, f"{group}/{version['name']}", kind), f"{kind} to be served")

    def _is_served(self, api_version: str, kind: str) -> bool:
        # A kind is first unknown, then known to discovery, and its storage comes last.
        try:
            self.items(api_version, kind)
        except KeyError:
            return False
        except ApiError as error:
            if error.status not in (404, 429, 503):
                raise
            return False
        return True


def make_kubeconfig(api: KubeApi, account: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a kubeconfig with a token of this service account, which is in the namespace of the same name."""
    import yaml

    path = f"/api/v1/namespaces/{account}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = wait(lambda: api.request("POST", path, body), "a token")["status"]["token"]
    config = yaml.safe_load(api.kubeconfig.read_text())
    context = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
    config["users"] = [{"name": context["user"], "user": {"token": token}}]
    target = folder / "kubeconfig"
    target.write_text(yaml.safe_dump(config))
    return target


def documents(source: pathlib.Path | str | Object) -> Iterator[Object]:
    """Yield the objects of a YAML file, of a YAML text, or the object itself."""
    import yaml

    if isinstance(source, dict):
        yield source
        return
    text = source.read_text() if isinstance(source, pathlib.Path) else source
    yield from (item for item in yaml.safe_load_all(text) if item)
