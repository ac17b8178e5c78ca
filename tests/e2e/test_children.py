"""Children of objects, applied by an operator in its own process: at rest, edited and deleted by others, pruned."""

import time

import pytest
from kubeapi import wait

KEX = "kopf.dev/v1", "KopfExample"

OPERATOR = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.applying.operator = 'e2e'
"""

HOSTILE = (
    OPERATOR
    + """
LABELS = {'app': 'x', 'empty': ''}

def deployment(name):
    main = {
        'name': 'main',
        'image': 'example',
        'command': [],
        'args': ['b', 'a'],
        'env': [{'name': 'EMPTY', 'value': ''}, {'name': 'B', 'value': '1'}, {'name': 'A', 'value': '0'}],
        'ports': [{'containerPort': 80}, {'containerPort': 53, 'protocol': 'UDP'}],
        'resources': {'requests': {'cpu': '1000m', 'memory': '1024Mi'}, 'limits': {'cpu': 2, 'memory': '2048Mi'}},
        'securityContext': {'privileged': False, 'runAsUser': 0},
        'terminationMessagePath': '',
    }
    spec = {'containers': [main], 'restartPolicy': 'Always', 'hostNetwork': False, 'nodeSelector': {}}
    return {
        'apiVersion': 'apps/v1',
        'kind': 'Deployment',
        'metadata': {'name': name, 'creationTimestamp': None, 'annotations': {'zero': '0', 'empty': ''}},
        'spec': {
            'replicas': 0,
            'minReadySeconds': 0,
            'paused': False,
            'selector': {'matchLabels': LABELS},
            'template': {'metadata': {'creationTimestamp': None, 'labels': LABELS}, 'spec': spec},
        },
    }

def service(name):
    ports = [{'name': 'b', 'port': 81}, {'name': 'a', 'port': 80, 'targetPort': 8080}]
    return {
        'apiVersion': 'v1',
        'kind': 'Service',
        'metadata': {'name': name, 'labels': {'empty': ''}},
        'spec': {'ports': ports, 'selector': LABELS, 'sessionAffinity': None},
    }

def settings(name):
    data = {'empty': '', 'zero': '0', 'null': 'null', 'lines': 'a\\n\\n b '}
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data, 'immutable': None}

def secret(name):
    data = {'data': {'b': 'eA=='}, 'stringData': {'a': '0'}}
    return {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name}, **data}

MAKERS = [deployment, service, settings, secret]

@kopf.on.reconcile('kopfexamples', owns=['deployments', 'services', 'configmaps', 'secrets'], backoff=(0.1, 1))
async def reconcile(name, spec, children, **_):
    for make in MAKERS:
        await children.apply(make(name))
    print(f"{name} is reconciled for {spec['value']}.", flush=True)
"""
)
CHILDREN = [("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "ConfigMap"), ("v1", "Secret")]

WANTED = (
    OPERATOR
    + """
@kopf.on.reconcile('kopfexamples', owns=['configmaps'], backoff=(0.1, 1))
def reconcile(name, spec, children, **_):
    for number in range(spec['count']):
        obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{number}'}}
        children.apply({**obj, 'data': {'value': spec['value']}})
    print(f"{name} is reconciled for {spec['value']}.", flush=True)
"""
)


@pytest.fixture
def run(run_operator, tmp_path):
    """Run an operator with this code; its log tells each request for a child."""

    def run(code, **env):
        path = tmp_path / "handlers.py"
        path.write_text(code)
        return run_operator("--standalone", "--debug", path, **env)

    return run


def example(name="obj", **spec):
    return {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": name}, "spec": spec}


def count_applied(operator):
    return operator.output.count(" is applied.")


def test_values_that_servers_change_cause_no_writes_at_rest(kubeapi, namespace, run):
    def get_versions():
        return [kubeapi.get(*kind, namespace, "obj")["metadata"]["resourceVersion"] for kind in CHILDREN[1:]]

    operator = run(HOSTILE)
    kubeapi.apply(example(value=0), namespace)
    operator.wait_output("obj is reconciled for 0")
    versions = get_versions()
    for value in range(1, 10):
        kubeapi.patch(*KEX, namespace, "obj", {"spec": {"value": value}})
        operator.wait_output(f"obj is reconciled for {value}")
    time.sleep(1)  # nothing is to happen
    assert count_applied(operator) == len(CHILDREN) and get_versions() == versions
    # After a restart, each is applied once, and the server changes nothing.
    assert operator.stop()[0] == 0
    operator = run(HOSTILE)
    operator.wait_output("obj is reconciled for 9")
    time.sleep(1)
    assert count_applied(operator) == len(CHILDREN) and get_versions() == versions
    assert operator.stop()[0] == 0


def edit_and_delete(kubeapi, operator, child, edit):
    """Edit the child, and then delete it; each time, wait until it is as before, with one write."""
    before, applied, [field] = kubeapi.get(*child), count_applied(operator), edit
    kubeapi.patch(*child, edit)
    wait(lambda: count_applied(operator) > applied, "the write")
    wait(lambda: kubeapi.get(*child)[field] == before[field], "the former state")
    kubeapi.delete(*child)
    wait(lambda: count_applied(operator) > applied + 1, "the write")
    wait(lambda: kubeapi.get(*child)["metadata"]["uid"] != before["metadata"]["uid"], "the new child")
    time.sleep(0.5)  # nothing else is to happen
    assert count_applied(operator) == applied + 2


def test_each_child_that_another_client_edits_or_deletes_is_back_with_one_write(kubeapi, namespace, run):
    edits = {
        "Deployment": {"spec": {"replicas": 5}},
        "Service": {"spec": {"selector": {"app": "y"}}},
        "ConfigMap": {"data": {"zero": "1"}},
        "Secret": {"data": {"a": "eQ=="}},
    }
    operator = run(HOSTILE)
    kubeapi.apply(example(value=0), namespace)
    operator.wait_output("obj is reconciled for 0")
    for version, kind in CHILDREN:
        edit_and_delete(kubeapi, operator, (version, kind, namespace, "obj"), edits[kind])
    assert operator.stop()[0] == 0


def test_killed_operators_leave_nothing_over_and_delete_nothing_wanted(kubeapi, namespace, run):
    def get_names():
        found = kubeapi.items("v1", "ConfigMap", namespace)
        return sorted(each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("obj"))

    kubeapi.apply(example(count=8, value="a"), namespace)
    operator = run(WANTED)
    operator.wait_output("obj is reconciled for a")
    uids = {each["metadata"]["uid"] for each in kubeapi.items("v1", "ConfigMap", namespace)}
    for count in (6, 4, 2):
        kubeapi.patch(*KEX, namespace, "obj", {"spec": {"count": count}})
        operator.wait_output("is deleted, as it is not applied any more")  # in the middle of the deletions
        operator.process.kill()
        operator.process.wait()
        operator = run(WANTED)
        operator.wait_output("obj is reconciled for a")
        wait(lambda count=count: get_names() == [f"obj-{number}" for number in range(count)], "the children")
    assert {each["metadata"]["uid"] for each in kubeapi.items("v1", "ConfigMap", namespace)} <= uids
    kubeapi.delete(*KEX, namespace, "obj")
    wait(lambda: get_names() == [], "the garbage collection")
    assert operator.stop()[0] == 0


DYING = (
    OPERATOR
    + """
import os
from kopf._cogs.clients.api import client_var  # its instruments see each request

class Killer(kopf.Instrument):
    '''Kills the operator before a request that writes is sent, or when its response has arrived.'''

    countdown = int(os.environ.get('KILL_AT', 0))

    def request_begins(self, request):
        if request.method != 'GET':
            self.countdown -= 1
            if self.countdown == 0 and os.environ['KILL'] == 'before':
                os._exit(9)

    def request_ends(self, request):
        if request.method != 'GET' and self.countdown == 0:
            os._exit(9)

if 'KILL_AT' in os.environ:
    @kopf.on.startup()
    def add_killer(**_):
        client_var.get().instruments.add(Killer())

KINDS = {'ConfigMap': 'configmaps', 'Secret': 'secrets'}

@kopf.on.reconcile('kopfexamples', owns=[KINDS[kind] for kind in os.environ['KINDS'].split()])
async def reconcile(name, spec, children, **_):
    for kind in os.environ['KINDS'].split():
        for number in range(spec['count']):
            await children.apply({'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': f'{name}-{number}'}})
    print(f"{name} is reconciled.", flush=True)
"""
)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_operators_killed_at_any_request_leave_nothing_over(kubeapi, namespace, run, moment, request):
    def get_uids():
        kinds = ["ConfigMap", "Secret"]
        found = [(kind, each["metadata"]) for kind in kinds for each in kubeapi.items("v1", kind, namespace)]
        return {(kind, meta["name"]): meta["uid"] for kind, meta in found if meta["name"].startswith("obj-")}

    def is_pruned():
        annotations = kubeapi.get(*KEX, namespace, "obj")["metadata"]["annotations"]
        return get_uids() == wanted and annotations == {"children.kopf.zalando.org/e2e": "v1/configmaps"}

    # Between two requests, it is nearly the same whether the operator dies after one or before the other.
    step = 1 if request.config.getoption("--thorough") else 2
    for killed_at in range(1 if moment == "before" else step, 20, step):
        kubeapi.apply(example(count=3), namespace)
        operator = run(DYING, KINDS="ConfigMap Secret")
        operator.wait_output("obj is reconciled")
        assert len(get_uids()) == 6 and operator.stop()[0] == 0
        wanted = {("ConfigMap", "obj-0"): get_uids()["ConfigMap", "obj-0"]}
        kubeapi.patch(*KEX, namespace, "obj", {"spec": {"count": 1}})
        process = run(DYING, KINDS="ConfigMap", KILL_AT=str(killed_at), KILL=moment).process
        wait(lambda process=process: process.poll() is not None or is_pruned(), "the end of the operator")
        time.sleep(0.5)  # it can end by the response to its last request
        if process.poll() is None:
            break  # there are not so many requests
        operator = run(DYING, KINDS="ConfigMap")
        operator.wait_output("obj is reconciled")
        wait(is_pruned, "the wanted child alone")
        assert operator.stop()[0] == 0
    # One child is applied, five are deleted, and the kind of three of them is not remembered any more.
    assert killed_at > 7


SPECIAL = (
    OPERATOR
    + """
@kopf.on.reconcile('kopfexamples', owns=['deployments', 'clusterroles'], backoff=(0.1, 1))
async def reconcile(name, namespace, spec, children, **_):
    role = {'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRole', 'metadata': {'name': namespace}}
    await children.apply({**role, 'rules': []})
    labels = {'app': spec['value']}
    template = {'metadata': {'labels': labels}, 'spec': {'containers': [{'name': 'main', 'image': 'example'}]}}
    deployment = {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}}
    selected = {'replicas': 0, 'selector': {'matchLabels': labels}, 'template': template}
    await children.apply({**deployment, 'spec': selected}, replace=True)
    print(f"{name} is reconciled for {spec['value']}.", flush=True)
"""
)


def test_cluster_scoped_children_go_with_their_owner_and_immutable_fields_are_replaced(kubeapi, namespace, run):
    role, deployment = (
        ("rbac.authorization.k8s.io/v1", "ClusterRole", None, namespace),
        (*CHILDREN[0], namespace, "obj"),
    )
    operator = run(SPECIAL)
    kubeapi.apply(example(value="a"), namespace)
    operator.wait_output("obj is reconciled for a")
    former = kubeapi.get(*deployment)
    kubeapi.patch(*KEX, namespace, "obj", {"spec": {"value": "b"}})
    operator.wait_output("obj is reconciled for b")
    assert kubeapi.get(*deployment)["spec"]["selector"] == {"matchLabels": {"app": "b"}}
    assert kubeapi.get(*deployment)["metadata"]["uid"] != former["metadata"]["uid"]
    assert kubeapi.get(*role)
    kubeapi.delete(*KEX, namespace, "obj")
    wait(lambda: kubeapi.get(*KEX, namespace, "obj") is None, "the deletion of the owner")
    assert kubeapi.get(*role) is None
    assert operator.stop()[0] == 0
