"""Admission as users of the cluster see it: the API calls the operator back, over HTTPS that it has to trust."""

import base64
import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import textwrap
import threading

import pytest
from controlplane import ControlPlane
from kubeapi import ApiError, wait
from ports import free_port

from kopf._kits.certificates import build_certificate

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "17-admission" / "example.py"
KIND = "kopf.dev/v1", "KopfExample"
NAME = "kopf-example-1"
GROUP = "admissionregistration.k8s.io/v1"

HEAD = """
    import asyncio, kopf, os, sys

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer(**SERVER)
        settings.admission.managed = os.environ["MANAGED"]
"""


@pytest.fixture
def managed(kubeapi, namespace):
    """Yield the name of the configurations; what is left of them is removed."""
    name = f"{namespace}.kopf.dev"
    yield name
    forget(kubeapi, name)


def forget(kubeapi, name):
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        kubeapi.delete(GROUP, kind, None, name)


@pytest.fixture
def webhooks(kubeapi, managed):
    """Return the webhooks that are configured, by their ids."""

    def webhooks(kind, name=managed):
        found = kubeapi.get(GROUP, f"{kind}WebhookConfiguration", None, name) or {}
        return {item["name"].removesuffix(f".{name}"): item for item in found.get("webhooks", [])}

    return webhooks


@pytest.fixture
def operate(run_operator, managed, tmp_path):
    """Run an operator of this code, and wait until the API is told about it."""

    def operate(code, server="{}", **env):
        path = tmp_path / "operator.py"
        path.write_text(f"import ssl\nSERVER = {server}\n" + textwrap.dedent(HEAD) + textwrap.dedent(code))
        operator = run_operator(path, "--verbose", "--standalone", MANAGED=managed, **env)
        operator.wait_output("Reconfiguring the mutating webhook")
        return operator

    return operate


@pytest.fixture
def create(kubeapi, namespace):
    def create(name="obj", *, query="", metadata=None, **spec):
        return kubeapi.request(
            "POST",
            kubeapi.path(*KIND, namespace) + query,
            {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": name, **(metadata or {})}, "spec": spec},
        )

    return create


@pytest.fixture
def settled(create):
    """Wait until the API asks the operator: it notices new configurations with some delay."""

    def settled(mark, **metadata):
        wait(lambda: mark(create("trial", query="?dryRun=All", metadata=metadata)), "the webhooks to be called")

    return settled


def refusal(function, *args, **kwargs):
    with pytest.raises(ApiError) as error:
        function(*args, **kwargs)
    return error.value.status, str(error.value)


def is_marked(obj):
    return obj["spec"].get("mark") == "yes"


def is_served(create):
    with contextlib.suppress(ApiError):
        return is_marked(create("trial", query="?dryRun=All"))
    return False


MARK = """
    @kopf.on.mutate('kopfexamples', id='mark', operation='CREATE')
    async def mark(patch, **_):
        patch.spec['mark'] = 'yes'
"""


def test_the_example_does_what_its_readme_says(run_operator, kubeapi, namespace, create, webhooks):
    """What README.md of the example says."""
    name = "examples.kopf.dev"
    forget(kubeapi, name)
    operator = run_operator(EXAMPLE, "--standalone")
    wait(lambda: webhooks("Validating", name) and webhooks("Mutating", name), "the configurations")
    wait(lambda: create("trial", query="?dryRun=All")["spec"].get("duration"), "the webhooks to be called")

    def change(**spec):
        return kubeapi.patch(*KIND, namespace, NAME, {"spec": spec})

    def protect(value):
        kubeapi.patch(*KIND, namespace, NAME, {"metadata": {"annotations": {"protected": value}}})

    kubeapi.apply(ROOT / "examples" / "obj.yaml", namespace)
    assert change(duration=None)["spec"]["duration"] == "5m"
    change(items=[])
    assert any("There are no items: nothing will be done for this object." in text for text in kubeapi.warnings)
    status, text = refusal(change, items=["x"] * 11)
    assert status == 422 and "denied the request: There are 11 items; 10 are the most." in text
    status, text = refusal(change, field="other")
    assert status == 403 and "denied the request: The field is immutable: it is 'value'." in text
    protect("yes")
    status, text = refusal(kubeapi.delete, *KIND, namespace, NAME)
    assert status == 403 and f"denied the request: {NAME} is protected. Remove the annotation first." in text
    protect(None)
    kubeapi.delete(*KIND, namespace, NAME)
    found = create("labelled", metadata={"labels": {"untrusted": ""}})
    assert found["metadata"]["annotations"]["examples.kopf.dev/author"]
    assert "annotations" not in create("unlabelled")["metadata"]
    operator.wait_output(r"Created with the duration 5m\.")

    code, _ = operator.stop()
    assert code == 0, operator.output
    assert "Traceback" not in operator.output
    assert not webhooks("Validating", name) and not webhooks("Mutating", name)
    assert "duration" not in create("afterwards")["spec"]
    forget(kubeapi, name)


def test_errors_and_warnings_reach_the_client(operate, settled, create, kubeapi):
    operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples')
    async def validating(spec, warnings, **_):
        warnings.extend(spec.get('warnings', []))
        match spec.get('error'):
            case 'admission': raise kopf.AdmissionError("by admission", code=418)
            case 'permanent': raise kopf.PermanentError("by permanent")
            case 'temporary': raise kopf.TemporaryError("by temporary")
            case 'arbitrary': raise ValueError("by arbitrary")
    """
    )
    settled(is_marked)
    for error, code in [("admission", 418), ("permanent", 500), ("temporary", 500), ("arbitrary", 500)]:
        status, text = refusal(create, error=error)
        assert status == code and f"denied the request: by {error}" in text
    create(warnings=["one", "two"])
    assert [re.sub(r'.*"(.*)"', r"\1", text) for text in kubeapi.warnings] == ["one", "two"]


def test_handlers_get_the_arguments_of_the_review(operate, settled, create, kubeapi, namespace):
    operator = operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples', operation='UPDATE')
    async def updating(old, new, diff, dryrun, userinfo, name, namespace, **_):
        changed = [(str(op), field, old, new) for op, field, old, new in diff if field[0] == 'spec']
        print('UPDATE', dryrun, bool(userinfo['username']), name, old['spec']['x'], new['spec']['x'], changed)
    @kopf.on.validate('kopfexamples', operation='DELETE')
    async def deleting(body, old, new, **_):
        print('DELETE', body['spec']['x'], old['spec']['x'], new)
    """
    )
    settled(is_marked)
    create(x=1)
    path = kubeapi.path(*KIND, namespace, "obj")
    for query, value in [("?dryRun=All", 2), ("", 3)]:
        kubeapi.request("PATCH", path + query, {"spec": {"x": value}}, "application/merge-patch+json")
    kubeapi.delete(*KIND, namespace, "obj")
    operator.wait_output(re.escape("UPDATE True True obj 1 2 [('change', ('spec', 'x'), 1, 2)]"))
    operator.wait_output(re.escape("UPDATE False True obj 1 3 [('change', ('spec', 'x'), 1, 3)]"))
    operator.wait_output(re.escape("DELETE 3 3 None"))


def test_patches_of_webhooks_are_applied(operate, settled, create):
    operate(
        MARK
        + """
    @kopf.on.mutate('kopfexamples', operation='CREATE')
    def changing(spec, patch, **_):
        patch.spec['gone'] = None
        patch.spec['deep'] = {'new': [1, {'a/b~c': 'd'}]}
        patch.meta.labels['kopf.dev/label'] = 'value'
        patch.fns.append(lambda body: body['spec'].setdefault('items', []).append('added'))
    """
    )
    settled(is_marked)
    found = create(gone=1, deep={"kept": 2}, items=["own"])
    assert found["spec"] == {"deep": {"kept": 2, "new": [1, {"a/b~c": "d"}]}, "items": ["own", "added"], "mark": "yes"}
    assert found["metadata"]["labels"] == {"kopf.dev/label": "value"}


def test_connections_to_pods_are_validated(cluster, operate, settled, kubeapi, namespace):
    if not isinstance(cluster, ControlPlane):
        pytest.skip("the sandbox has no pods to connect to")
    operator = operate(
        MARK
        + """
    @kopf.on.validate('pods', operation='CONNECT', subresource='exec')
    def connecting(name, body, operation, subresource, **_):
        raise kopf.AdmissionError(f"no {operation} {subresource} {name} {body['command']}", code=418)
    """
    )
    settled(is_marked)
    path = f"/api/v1/namespaces/{namespace}/pods/pod1/exec?command=sh&stdout=true"
    status, text = wait(lambda: (found := refusal(kubeapi.request, "POST", path))[0] == 418 and found, "the refusal")
    assert "denied the request: no CONNECT exec pod1 ['sh']" in text
    assert "Traceback" not in operator.output


def test_memos_are_shared_with_other_handlers(operate, settled, create, kubeapi, namespace):
    operator = operate(
        MARK
        + """
    @kopf.on.event('kopfexamples')
    async def watching(memo, name, **_):
        memo.seen = 'in an event'
        print('WATCHED', name)
    @kopf.on.validate('kopfexamples')
    async def validating(memo, operation, warnings, **_):
        warnings.append(f"{operation} {memo.get('seen')}")
    """
    )
    settled(is_marked)
    create()
    assert "CREATE None" in kubeapi.warnings[0]
    operator.wait_output("WATCHED obj")
    kubeapi.patch(*KIND, namespace, "obj", {"spec": {"x": 1}})
    assert "UPDATE in an event" in kubeapi.warnings[0]


def test_options_of_handlers_are_in_the_configurations(operate, settled, webhooks, create):
    operator = operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples', persistent=True, ignore_failures=True, side_effects=True, labels={'x': 'y'})
    async def persistent(**_):
        pass
    """
    )
    settled(is_marked)
    found = webhooks("Validating")["persistent"]
    assert found["clientConfig"]["url"].startswith("https://localhost:")
    assert b"BEGIN CERTIFICATE" in base64.b64decode(found["clientConfig"]["caBundle"])
    assert (found["failurePolicy"], found["sideEffects"], found["timeoutSeconds"]) == ("Ignore", "NoneOnDryRun", 30)
    assert webhooks("Mutating").keys() == {"mark"}
    assert operator.stop()[0] == 0
    assert webhooks("Validating").keys() == {"persistent"}
    assert not webhooks("Mutating")
    create("afterwards", metadata={"labels": {"x": "y"}})  # no server answers, which is to be ignored


def test_webhooks_of_the_killed_are_served_by_the_next(operate, create, settled):
    operator = operate(MARK, f"{{'port': {free_port()}}}")  # where no other server listens after it
    settled(is_marked)
    operator.stop(signal.SIGKILL)
    wait(lambda: refusal(create)[0] == 500, "the refusal, as no server answers")
    operate(MARK)
    wait(lambda: is_served(create), "the webhooks to be served")


def test_webhooks_are_registered_for_resources_that_come_later(operate, settled, kubeapi, namespace, webhooks):
    plural = f"lates{namespace[-8:]}"
    operate(
        MARK
        + f"""
    @kopf.on.validate('{plural}')
    async def late(**_):
        raise kopf.AdmissionError("It is late.", code=418)
    """
    )
    assert not webhooks("Validating")
    kubeapi.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.late.kopf.dev"},
            "spec": {
                "group": "late.kopf.dev",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": "Late"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
    )
    try:
        wait(lambda: webhooks("Validating"), "the webhook")
        path = f"/apis/late.kopf.dev/v1/namespaces/{namespace}/{plural}?dryRun=All"
        body = {"apiVersion": "late.kopf.dev/v1", "kind": "Late", "metadata": {"name": "x"}}

        def is_refused():
            try:
                kubeapi.request("POST", path, body)
            except ApiError as error:
                return error.status == 418 and "It is late." in str(error)
            return False

        wait(is_refused, "the refusal")
    finally:
        kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, f"{plural}.late.kopf.dev")


@pytest.mark.parametrize("server", ["{'password': 'secret'}", "{'addr': '127.0.0.1'}", "{'path': '/some/root'}"])
def test_servers_of_all_kinds_are_called(operate, settled, server):
    operate(MARK, server)
    settled(is_marked)


def test_renewed_certificates_are_announced_and_served(operate, settled, create, webhooks, tmp_path):
    def renew():
        certificate, key = build_certificate(["localhost"])
        (tmp_path / "cert.pem").write_bytes(certificate)
        (tmp_path / "key.pem").write_bytes(key)
        return base64.b64encode(certificate).decode()

    renew()
    operate(
        MARK,
        f"""dict(
        certfile={str(tmp_path / 'cert.pem')!r}, pkeyfile={str(tmp_path / 'key.pem')!r}, file_check_interval=0.1)""",
    )
    settled(is_marked)
    bundle = renew()
    wait(lambda: webhooks("Mutating")["mark"]["clientConfig"]["caBundle"] == bundle, "the new bundle")
    wait(lambda: is_served(create), "the webhooks to be served")


def test_slow_handlers_do_not_hold_up_other_reviews(operate, settled, create, kubeapi, managed, webhooks):
    operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples')
    async def validating(name, **_):
        if name == 'slow':
            await asyncio.sleep(20)
    """
    )
    settled(is_marked)
    path = f"/apis/{GROUP}/validatingwebhookconfigurations/{managed}"
    hooks = list(webhooks("Validating").values())
    kubeapi.request(
        "PATCH", path, {"webhooks": [{**hook, "timeoutSeconds": 2} for hook in hooks]}, "application/merge-patch+json"
    )

    def is_shortened():
        status, text = refusal(create, "slow")
        return status == 504 and "denied the request: Webhook 'validating' has not answered within 1.8 seconds" in text

    refused = threading.Event()
    waiting = threading.Thread(target=lambda: wait(is_shortened, "the refusal in time") and refused.set())
    waiting.start()
    create("quick")  # is not held up
    waiting.join()
    assert refused.is_set()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_bad_requests_are_refused(operate, settled, webhooks, tmp_path):
    operator = operate(MARK, f"dict(cadump={str(tmp_path / 'ca.pem')!r})")
    settled(is_marked)
    url = webhooks("Mutating")["mark"]["clientConfig"]["url"]
    for args, code in [
        (["-d", "{bad"], 400),
        (["-d", "{}"], 400),
        (["-X", "GET"], 405),
        (["-d", '{"kind": "AdmissionReview"}'], 400),
    ]:
        output = subprocess.run(
            ["curl", "-sS", "--cacert", tmp_path / "ca.pem", "-w", "\n%{http_code}", url, *args],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert output.endswith(f"\n{code}"), output
    assert "Traceback" not in operator.output


def test_ignored_failures_become_warnings(operate, settled, create, kubeapi):
    operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples', ignore_failures=True, id='tolerant')
    async def validating(spec, **_):
        if spec.get('bad'):
            raise kopf.AdmissionError("It is bad.", code=400)
    """
    )
    settled(is_marked)
    create(bad=True)
    assert "Webhook 'tolerant' has failed, which is ignored: It is bad." in kubeapi.warnings[0]


def test_filters_and_subresources_choose_the_handlers(operate, settled, create, kubeapi, namespace):
    operator = operate(
        MARK
        + """
    async def note(name, operation, subresource, handler, **_):
        print('CALLED', name, handler, operation, subresource)

    def declare(id, *names, **options):
        @kopf.on.validate(*(names or ['kopfexamples']), id=id, **options)
        async def validating(**kwargs):
            await note(handler=id, **kwargs)

    declare('labelled', labels={'x': 'y', 'gone': kopf.ABSENT})
    declare('annotated', annotations={'a': kopf.PRESENT})
    declare('called-back', when=lambda spec, **_: spec.get('x') == 1, operations=['UPDATE', 'DELETE'])
    declare('with-values', field='spec.x', value=lambda value, **_: value == 1, operation='CREATE')
    for subresource in (None, 'status', '*'):
        declare(f'sub-{subresource}', 'apps', 'v1', 'deployments', subresource=subresource,
                side_effects=True, labels={'x': 'y'})
    """
    )
    settled(is_marked)
    create("a", metadata={"labels": {"x": "y"}, "annotations": {"a": ""}}, x=1)
    create("b", metadata={"labels": {"x": "y", "gone": ""}}, x=2)
    kubeapi.patch(*KIND, namespace, "a", {"spec": {"y": 1}})
    kubeapi.patch(*KIND, namespace, "b", {"spec": {"y": 1}})
    labels = {"labels": {"x": "y"}}
    kubeapi.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", **labels},
            "spec": {
                "selector": {"matchLabels": {"x": "y"}},
                "replicas": 0,
                "template": {"metadata": labels, "spec": {"containers": [{"name": "x", "image": "x"}]}},
            },
        },
        namespace,
    )
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/d/status"
    kubeapi.request("PATCH", path, {"status": {"observedGeneration": 1}}, "application/merge-patch+json")
    operator.wait_output("CALLED d sub-status UPDATE status")
    called = {line for line in operator.output.splitlines() if line.startswith("CALLED") and " trial " not in line}
    assert called == {
        "CALLED a labelled CREATE None",
        "CALLED a annotated CREATE None",
        "CALLED a with-values CREATE None",
        "CALLED a labelled UPDATE None",
        "CALLED a annotated UPDATE None",
        "CALLED a called-back UPDATE None",
        "CALLED d sub-None CREATE None",
        "CALLED d sub-* CREATE None",
        "CALLED d sub-status UPDATE status",
        "CALLED d sub-* UPDATE status",
    } | (called & {"CALLED d sub-None UPDATE None", "CALLED d sub-* UPDATE None"})  # by the controllers of the cluster


def test_configurations_are_left_alone_when_other_things_change(operate, settled, kubeapi, managed, namespace):
    name, group = f"others{namespace[-8:]}", "others.kopf.dev"
    operator = operate(
        MARK
        + f"""
    @kopf.on.validate('kopfexamples', id='validating')
    async def validating(**_):
        pass
    @kopf.on.event('{name}')
    async def watching(**_):
        pass
    """
    )
    settled(is_marked)
    kinds = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
    before = [kubeapi.get(GROUP, kind, None, managed)["metadata"]["resourceVersion"] for kind in kinds]
    kubeapi.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{name}.{group}"},
            "spec": {
                "group": group,
                "scope": "Cluster",
                "names": {"plural": name, "kind": f"Other{namespace[-8:]}"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
    )
    for value in ("one", "two"):
        kubeapi.patch(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            None,
            f"{name}.{group}",
            {"metadata": {"labels": {"label": value}}},
        )
    operator.wait_output(f"Starting the watch-stream for {name}")
    kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, f"{name}.{group}")
    settled(is_marked)
    assert [kubeapi.get(GROUP, kind, None, managed)["metadata"]["resourceVersion"] for kind in kinds] == before
    assert operator.output.count("Reconfiguring the") == 2


def test_configurations_of_ones_own(run_operator, kubeapi, managed, create, namespace, tmp_path):
    """All handlers at one address, with a configuration that is not managed: the worst of the errors is told."""
    path = tmp_path / "operator.py"
    path.write_text(
        textwrap.dedent(f"""
    import kopf

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer(cadump={str(tmp_path / 'ca.pem')!r}, path='all')

    @kopf.on.validate('kopfexamples')
    async def arbitrary(spec, **_):
        raise ValueError("by arbitrary")

    @kopf.on.validate('kopfexamples')
    async def permanent(spec, **_):
        if spec['worst'] != 'arbitrary':
            raise kopf.PermanentError("by permanent")

    @kopf.on.validate('kopfexamples')
    async def admission(spec, **_):
        if spec['worst'] == 'admission':
            raise kopf.AdmissionError("by admission", code=418)
    """)
    )
    operator = run_operator(path, "--verbose", "--standalone")
    url = operator.wait_output(r"Webhooks are served at (\S+)")[1]
    wait((tmp_path / "ca.pem").exists, "the CA")
    kubeapi.apply(
        {
            "apiVersion": GROUP,
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": managed},
            "webhooks": [
                {
                    "name": f"all.{managed}",
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "clientConfig": {
                        "url": url,
                        "caBundle": base64.b64encode((tmp_path / "ca.pem").read_bytes()).decode(),
                    },
                    "rules": [
                        {
                            "apiGroups": ["kopf.dev"],
                            "apiVersions": ["v1"],
                            "resources": ["kopfexamples"],
                            "operations": ["*"],
                            "scope": "*",
                        }
                    ],
                }
            ],
        }
    )
    wait(lambda: is_refused(create), "the webhooks to be called")
    for worst, code in [("admission", 418), ("permanent", 500), ("arbitrary", 500)]:
        status, text = refusal(create, worst=worst)
        assert status == code and f"denied the request: by {worst}" in text


def is_refused(create):
    try:
        create("trial", query="?dryRun=All", worst="arbitrary")
    except ApiError as error:
        return "by arbitrary" in str(error)
    return False


@pytest.mark.parametrize(
    "server",
    [
        """
    class Server(kopf.WebhookServer):
        async def __call__(self, fn):
            async for config in super().__call__(fn):
                print('INHERITED')
                yield config
    OWN = Server()
""",
        """
    async def OWN(fn):
        async with kopf.WebhookServer() as server:
            async for config in server(fn):
                print('COMPOSED')
                yield config
""",
        """
    class Server:
        async def __aenter__(self):
            print('ENTERED')
            return await kopf.WebhookServer().__aenter__()
        async def __aexit__(self, *_):
            print('LEFT')
        def __call__(self, fn):
            raise RuntimeError("Another one must be used.")
    OWN = Server()
""",
    ],
    ids=["inherited", "composed", "substituted"],
)
def test_servers_of_ones_own(operate, settled, create, server):
    operator = operate(
        server
        + """
    @kopf.on.startup()
    def use_it(settings, **_):
        settings.admission.server = OWN
    """
        + MARK
    )
    settled(is_marked)
    assert operator.stop()[0] == 0
    assert "Traceback" not in operator.output
    assert re.search("INHERITED|COMPOSED|ENTERED(.|\n)*LEFT", operator.output)


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("openssl"), reason="curl or openssl is not installed")
def test_certificates_of_clients_are_verified(operate, webhooks, create, kubeapi, tmp_path):
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=client.example.com",
            "-keyout",
            tmp_path / "client-key.pem",
            "-out",
            tmp_path / "client.pem",
        ],
        check=True,
        capture_output=True,
    )
    operator = operate(
        MARK
        + """
    @kopf.on.validate('kopfexamples')
    async def validating(sslpeer, headers, **_):
        print('PEER', sslpeer['subject'], headers['X-Own'])
    """,
        f"""dict(
        verify_cafile={str(tmp_path / 'client.pem')!r}, verify_mode=ssl.CERT_REQUIRED,
        cadump={str(tmp_path / 'ca.pem')!r})""",
    )
    url = wait(lambda: webhooks("Validating"), "the webhook")["validating"]["clientConfig"]["url"]
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "uid1",
            "operation": "CREATE",
            "userInfo": {},
            "object": {"metadata": {"name": "x"}, "spec": {}},
            "resource": {"group": "kopf.dev", "version": "v1", "resource": "kopfexamples"},
        },
    }
    (tmp_path / "review.json").write_text(json.dumps(review))

    def call(*args):
        return subprocess.run(
            [
                "curl",
                "-sS",
                "--cacert",
                tmp_path / "ca.pem",
                url,
                "-H",
                "X-Own: yes",
                *args,
                "-d",
                f"@{tmp_path / 'review.json'}",
            ],
            capture_output=True,
            text=True,
        )

    done = call("--cert", tmp_path / "client.pem", "--key", tmp_path / "client-key.pem")
    assert json.loads(done.stdout)["response"] == {"uid": "uid1", "allowed": True}, done
    operator.wait_output(r"PEER .*client\.example\.com.* yes")
    assert call().returncode != 0
    wait(lambda: refusal(create)[0] == 500, "the API to be refused, as it has no certificate")


def test_a_missing_webhook_server_ends_the_operator(run_operator, tmp_path):
    path = tmp_path / "operator.py"
    path.write_text(
        textwrap.dedent("""
        import kopf
        @kopf.on.validate('kopfexamples')
        def validating(**_):
            pass
    """)
    )
    operator = run_operator(path)
    assert operator.process.wait(60) != 0
    assert "settings.admission.server" in operator.output


def test_no_library_for_certificates(run_operator, tmp_path):
    path = tmp_path / "operator.py"
    path.write_text(
        "import sys\nsys.modules['cryptography.x509'] = sys.modules['certbuilder'] = None\nSERVER = {}\n"
        + textwrap.dedent(HEAD)
        + textwrap.dedent(MARK)
    )
    operator = run_operator(path, MANAGED="none.kopf.dev")
    assert operator.process.wait(60) != 0
    assert "pip install 'kopf[dev]>=1.46'" in operator.output
