"""The clients that people use beside the framework: each creates, lists, patches, applies, deletes, and watches it."""

import asyncio
import gc
import inspect
import json
import shutil
import subprocess

import pytest
import yaml

KINDS = {
    "custom": ("kopf.dev/v1", "KopfExample", "kopfexamples", "spec"),
    "built-in": ("v1", "ConfigMap", "configmaps", "data"),
}
MERGE = "application/merge-patch+json"
MANAGER = "some-manager"


class Kubernetes:
    """The official one, by its dynamic client."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        import kubernetes
        from kubernetes.dynamic import DynamicClient

        self.client = DynamicClient(kubernetes.config.new_client_from_config(kubeconfig))
        self.resource = self.client.resources.get(api_version=api_version, kind=kind)
        self.namespace = namespace

    def create(self, body):
        return self.resource.create(body=body, namespace=self.namespace).to_dict()

    def list(self):
        return self.resource.get(namespace=self.namespace).to_dict()

    def patch(self, name, patch):
        return self.resource.patch(body=patch, name=name, namespace=self.namespace, content_type=MERGE).to_dict()

    def apply(self, body):
        return self.resource.server_side_apply(
            body=body, name=body["metadata"]["name"], namespace=self.namespace, field_manager=MANAGER
        ).to_dict()

    def delete(self, name):
        self.resource.delete(name=name, namespace=self.namespace)

    def watch(self, version):
        for event in self.resource.watch(namespace=self.namespace, resource_version=version, timeout=10):
            yield event["type"], event["raw_object"]

    def close(self):
        self.client.client.close()


class KubernetesAsyncio:
    """Its asynchronous twin."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        self.kubeconfig, self.namespace, self.api_version, self.kind = kubeconfig, namespace, api_version, kind

    async def open(self):
        import kubernetes_asyncio
        from kubernetes_asyncio.dynamic import DynamicClient

        self.api = await kubernetes_asyncio.config.new_client_from_config(self.kubeconfig)
        self.client = await DynamicClient(self.api)
        self.resource = await self.client.resources.get(api_version=self.api_version, kind=self.kind)

    async def create(self, body):
        return (await self.resource.create(body=body, namespace=self.namespace)).to_dict()

    async def list(self):
        return (await self.resource.get(namespace=self.namespace)).to_dict()

    async def patch(self, name, patch):
        return (
            await self.resource.patch(body=patch, name=name, namespace=self.namespace, content_type=MERGE)
        ).to_dict()

    async def apply(self, body):
        return (
            await self.resource.server_side_apply(
                body=body, name=body["metadata"]["name"], namespace=self.namespace, field_manager=MANAGER
            )
        ).to_dict()

    async def delete(self, name):
        await self.resource.delete(name=name, namespace=self.namespace)

    async def watch(self, version):
        async for event in self.client.watch(
            self.resource, namespace=self.namespace, resource_version=version, timeout=10
        ):
            yield event["type"], event["raw_object"]

    async def close(self):
        await self.api.close()


class Pykube:
    """It knows nothing of applying, but sends what it is given."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        import pykube

        self.pykube, self.namespace = pykube, namespace
        self.api = pykube.HTTPClient(pykube.KubeConfig.from_file(kubeconfig))
        self.cls = pykube.object_factory(self.api, api_version, kind)

    def create(self, body):
        made = self.cls(self.api, {**body, "metadata": {**body["metadata"], "namespace": self.namespace}})
        made.create()
        return made.obj

    def list(self):
        return self.cls.objects(self.api, namespace=self.namespace).response

    def patch(self, name, patch):
        found = self.cls.objects(self.api, namespace=self.namespace).get_by_name(name)
        found.patch(patch)
        return found.obj

    def apply(self, body):
        own = self.cls(self.api, {**body, "metadata": {**body["metadata"], "namespace": self.namespace}})
        response = self.api.patch(
            **own.api_kwargs(),
            params={"fieldManager": MANAGER},
            data=json.dumps(body),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        self.api.raise_for_status(response)
        return response.json()

    def delete(self, name):
        self.cls.objects(self.api, namespace=self.namespace).get_by_name(name).delete()

    def watch(self, version):
        for event in self.cls.objects(self.api, namespace=self.namespace).watch(
            since=version, params={"timeoutSeconds": 10}
        ):
            yield event.type, event.object.obj

    def close(self):
        self.api.session.close()


class Kr8s:
    """Asynchronous, too; applying is done by its way for any request."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self.plural, self.kind, self.api_version = plural, kind, api_version

    async def open(self):
        import kr8s.asyncio
        from kr8s.asyncio.objects import get_class, new_class

        self.api = await kr8s.asyncio.api(kubeconfig=self.kubeconfig, namespace=self.namespace)
        try:
            self.cls = get_class(self.kind, self.api_version, _asyncio=True)
        except KeyError:
            self.cls = new_class(self.kind, self.api_version, namespaced=True)

    async def _object(self, body):
        return await self.cls({**body, "metadata": {**body["metadata"], "namespace": self.namespace}}, api=self.api)

    async def create(self, body):
        made = await self._object(body)
        await made.create()
        return made.to_dict()

    async def list(self):
        items = [item.to_dict() async for item in self.cls.list(namespace=self.namespace, api=self.api)]
        async with self.api.call_api(
            "GET", version=self.api_version, url=self.plural, namespace=self.namespace
        ) as answer:
            return {**answer.json(), "items": items}

    async def patch(self, name, patch):
        found = await self.cls.get(name, namespace=self.namespace, api=self.api)
        await found.patch(patch, type="merge")
        return found.to_dict()

    async def apply(self, body):
        url, headers = f"{self.plural}/{body['metadata']['name']}", {"Content-Type": "application/apply-patch+yaml"}
        async with self.api.call_api(
            "PATCH",
            version=self.api_version,
            url=url,
            namespace=self.namespace,
            headers=headers,
            params={"fieldManager": MANAGER},
            data=json.dumps(body),
        ) as answer:
            return answer.json()

    async def delete(self, name):
        await (await self.cls.get(name, namespace=self.namespace, api=self.api)).delete()

    async def watch(self, version):
        async for type, item in self.api.async_watch(self.cls, namespace=self.namespace, since=version):
            yield type, item.to_dict()

    async def close(self):
        await self.api._session.aclose()  # There is no public way; it would be kept for the next loop.


class Lightkube:
    """Generic resources stand for the kinds of others."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        import lightkube
        from lightkube.generic_resource import create_namespaced_resource
        from lightkube.resources.core_v1 import ConfigMap
        from lightkube.types import PatchType

        config = lightkube.KubeConfig.from_file(kubeconfig)
        self.client = lightkube.Client(config=config, namespace=namespace, field_manager=MANAGER)
        group, _, version = api_version.rpartition("/")
        self.resource = create_namespaced_resource(group, version, kind, plural) if group else ConfigMap
        self.merge = PatchType.MERGE

    def create(self, body):
        return self.client.create(self.resource.from_dict(body)).to_dict()

    def list(self):
        found = self.client.list(self.resource)
        items = [item.to_dict() for item in found]
        return {"items": items, "metadata": {"resourceVersion": found.resourceVersion}}

    def patch(self, name, patch):
        return self.client.patch(self.resource, name, patch, patch_type=self.merge).to_dict()

    def apply(self, body):
        return self.client.apply(self.resource.from_dict(body)).to_dict()

    def delete(self, name):
        self.client.delete(self.resource, name)

    def watch(self, version):
        for type, item in self.client.watch(self.resource, resource_version=version, server_timeout=10):
            yield type, item.to_dict()

    def close(self):
        pass


class Kubectl:
    """By commands."""

    def __init__(self, kubeconfig, namespace, api_version, kind, plural):
        self.base = ["kubectl", "--kubeconfig", kubeconfig, "-n", namespace]
        self.plural = plural

    def _run(self, *args, body=None):
        done = subprocess.run([*self.base, *args], input=body and yaml.safe_dump(body), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, body):
        return json.loads(self._run("create", "-f-", "-o", "json", body=body))

    def list(self):
        return json.loads(self._run("get", "--raw", self._path()))

    def _path(self):
        namespace = self.base[-1]
        root = "/api/v1" if self.plural == "configmaps" else "/apis/kopf.dev/v1"
        return f"{root}/namespaces/{namespace}/{self.plural}"

    def patch(self, name, patch):
        return json.loads(self._run("patch", self.plural, name, "--type=merge", "-p", json.dumps(patch), "-o", "json"))

    def apply(self, body):
        return json.loads(
            self._run("apply", "--server-side", f"--field-manager={MANAGER}", "-f-", "-o", "json", body=body)
        )

    def delete(self, name):
        self._run("delete", self.plural, name)

    def watch(self, version):
        path = f"{self._path()}?watch=true&resourceVersion={version}&timeoutSeconds=10"
        with subprocess.Popen([*self.base, "get", "--raw", path], stdout=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    yield event["type"], event["object"]
            finally:
                process.kill()

    def close(self):
        pass


CLIENTS = {cls.__name__.lower(): cls for cls in (Kubernetes, KubernetesAsyncio, Pykube, Kr8s, Lightkube, Kubectl)}


CASES = [
    pytest.param(
        name, kind, marks=[] if name == "pykube" or (name, kind) == ("kubernetes", "built-in") else [pytest.mark.long]
    )
    for name in CLIENTS
    for kind in KINDS
]
"""Each client with each kind; in each test run, two clients."""


async def done(result):
    return await result if inspect.isawaitable(result) else result


async def seen(events):
    """All events up to the deletion."""
    found = []
    if inspect.isasyncgen(events):
        async for event in events:
            found.append(event)
            if event[0] == "DELETED":
                await events.aclose()
                break
    else:
        for event in events:
            found.append(event)
            if event[0] == "DELETED":
                events.close()
                break
    return found


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("name, kind", CASES)
async def test_all_that_clients_do(cluster, kubeapi, namespace, name, kind, monkeypatch):
    if name == "kubectl" and shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    api_version, kind_name, plural, field = KINDS[kind]
    client = CLIENTS[name](str(cluster.kubeconfig), namespace, api_version, kind_name, plural)

    def body(name, **values):
        return {"apiVersion": api_version, "kind": kind_name, "metadata": {"name": name}, field: values}

    if hasattr(client, "open"):
        await client.open()
    try:
        start = (await done(client.list()))["metadata"]["resourceVersion"]
        created = await done(client.create(body("a", one="1")))
        assert created["metadata"]["uid"] and created[field] == {"one": "1"}
        patched = await done(client.patch("a", {field: {"two": "2"}, "metadata": {"labels": {"x": "y"}}}))
        assert (patched[field], patched["metadata"]["labels"]) == ({"one": "1", "two": "2"}, {"x": "y"})
        applied = await done(client.apply(body("a", three="3")))
        assert applied[field] == {"one": "1", "two": "2", "three": "3"}
        applied = await done(client.apply(body("a", four="4")))
        assert applied[field] == {"one": "1", "two": "2", "four": "4"}  # what is not applied any more, is removed
        await done(client.apply(body("b", five="5")))
        listed = kubeapi.items(api_version, kind_name, namespace)
        assert {item["metadata"]["name"]: item[field] for item in listed if item["metadata"]["name"] in "ab"} == {
            "a": {"one": "1", "two": "2", "four": "4"},
            "b": {"five": "5"},
        }
        await done(client.delete("a"))
        events = [
            (type, item[field]) for type, item in await seen(client.watch(start)) if item["metadata"]["name"] == "a"
        ]
        assert [type for type, _ in events] == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
        assert events[-1][1] == {"one": "1", "two": "2", "four": "4"}
    finally:
        await done(client.close())
        # Connections end a moment later; what the libraries have forgotten must not trouble other tests.
        await asyncio.sleep(0.3)
        gc.collect()
