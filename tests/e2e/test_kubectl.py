"""Everyday commands of kubectl, where it is installed: each of them succeeds, and says what is expected."""

import json
import os
import re
import secrets
import shutil
import subprocess

import pytest

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
    pytest.mark.timeout(300),
]

GROUP = "notes.example.dev"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"notes.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "notes", "singular": "note", "kind": "Note", "shortNames": ["nt"], "categories": ["all"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "selectableFields": [{"jsonPath": ".spec.text"}],
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.copies", "statusReplicasPath": ".status.copies"},
                },
                "additionalPrinterColumns": [{"name": "Text", "type": "string", "jsonPath": ".spec.text"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "text": {"type": "string", "description": "What is noted."},
                                    "copies": {"type": "integer"},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
NOTE = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "Note",
    "metadata": {"name": "n", "labels": {"a": "b"}},
    "spec": {"text": "first", "copies": 1},
}
CHANGED = {**NOTE, "spec": {"text": "second", "copies": 1}}

#: What is typed (with ~ for spaces that separate no words), and what is to be in the output; words in capitals stand
#: for the files of the objects above.
EVERYDAY = """
    version                                                        | Server Version
    cluster-info                                                   | is running at
    api-resources --api-group=apps                                 | deployments +deploy +apps/v1 +true +Deployment
    api-resources --api-group=notes.example.dev                    | notes +nt +notes.example.dev/v1 +true +Note
    api-versions                                                   | ^rbac.authorization.k8s.io/v1$
    get namespaces                                                 | ^default +Active
    explain pod.spec                                               | KIND: +Pod
    explain notes.spec                                             | What is noted
    apply -f NOTE                                                  | note.notes.example.dev/n created
    apply -f NOTE                                                  | note.notes.example.dev/n unchanged
    get notes                                                      | NAME +TEXT\\s+n +first
    get note.v1.notes.example.dev/n -o yaml                        | text: first
    get notes -o wide                                              | n +first
    get notes -A -l a=b -o name                                    | note.notes.example.dev/n
    get notes --field-selector metadata.name=n                     | n +first
    get notes --field-selector spec.text=first                     | n +first
    get notes -o jsonpath={.items[0].spec.text}                    | ^first$
    describe note n                                                | Text: +first
    diff -f NOTE                                                   | ^$
    apply -f CHANGED                                               | configured
    apply --server-side --force-conflicts -f CHANGED               | serverside-applied
    patch note n --type=merge -p {"spec":{"text":"x"}}             | patched
    patch note n --type=json -p [{"op":"add","path":"/spec/text","value":"y"}] | patched
    patch note n --subresource=status --type=merge -p {"status":{"a":"b"}} | patched
    get note n -o jsonpath={.spec.text}{.status.a}                 | ^yb$
    scale note n --replicas=5                                      | scaled
    label note n c=d                                               | labeled
    annotate note n e=f                                            | annotated
    replace -f NOTE                                                | replaced
    get note n --watch --request-timeout=1s                        | n +first
    wait note/n --for=jsonpath={.spec.text}=first --timeout=5s     | condition met
    wait namespace/default --for=jsonpath={.status.phase}=Active   | condition met
    create configmap c --from-literal=a=b                          | configmap/c created
    create secret generic s --from-literal=a=b                     | secret/s created
    create -f NOTE --dry-run=server -o name --namespace=default    | note.notes.example.dev/n
    get configmap,secret                                           | secret/s +Opaque +1
    run p --image=nginx --restart=Never                            | pod/p created
    set image pod/p p=nginx:2                                      | image updated
    get pods                                                       | p +0/1 +Pending
    create deployment d --image=nginx                              | deployment.apps/d created
    set env deployment/d A=B                                       | env updated
    scale deployment d --replicas=3                                | scaled
    get deploy                                                     | d +0/3
    rollout history deployment/d                                   | deployment.apps/d
    rollout restart deployment/d                                   | restarted
    autoscale deployment d --max=5                                 | autoscaled
    expose deployment d --port=80                                  | service/d exposed
    create job j --image=busybox                                   | job.batch/j created
    create cronjob k --image=busybox --schedule=0~*~*~*~*           | cronjob.batch/k created
    create serviceaccount a                                        | serviceaccount/a created
    create token a                                                 | .{20}
    create role r --verb=get --resource=pods                       | role.rbac.authorization.k8s.io/r created
    create rolebinding b --role=r --serviceaccount=default:a       | rolebinding.rbac.authorization.k8s.io/b created
    create quota q --hard=pods=2                                   | resourcequota/q created
    create ingress i --rule=a.b/c=d:80                             | ingress.networking.k8s.io/i created
    create poddisruptionbudget u --selector=a=b --min-available=1  | poddisruptionbudget.policy/u created
    auth can-i list pods                                           | ^yes$
    auth whoami                                                    | Username
    get events                                                     |
    get all                                                        | deployment.apps/d
    delete configmap c                                             | configmap "c" deleted
    delete deployment,job,cronjob,pod --all                        | pod "p" deleted
    delete note n --cascade=foreground                             | deleted
    wait note/n --for=delete --timeout=5s                          |
    delete rolebinding/b role/r serviceaccount/a quota/q secret/s  | secret "s" deleted
"""


@pytest.fixture(scope="module")
def kubectl(cluster, tmp_path_factory):
    """Run kubectl in a namespace of its own; what it prints, or None if it fails."""
    folder, namespace = tmp_path_factory.mktemp("kubectl"), f"kubectl-{secrets.token_hex(3)}"
    for name, body in {"CRD": CRD, "NOTE": NOTE, "CHANGED": CHANGED}.items():
        (folder / name).write_text(json.dumps(body))

    def kubectl(*words):
        given = [str(folder / word) if word in ("CRD", "NOTE", "CHANGED") else word for word in words]
        if not any(word.startswith("--namespace") for word in words) and "create-namespace" not in words:
            given.append(f"--namespace={namespace}")
        done = subprocess.run(
            ["kubectl", f"--cache-dir={folder}/cache", *given],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        )
        return done.returncode, (done.stdout + done.stderr).strip()

    assert kubectl("create", "namespace", namespace)[0] == 0
    assert kubectl("apply", "-f", "CRD")[0] == 0
    assert kubectl("wait", "--for=condition=Established", f"crd/notes.{GROUP}", "--timeout=10s")[0] == 0
    yield kubectl
    kubectl("delete", "-f", "CRD", "--wait=false")
    kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.long
def test_everyday_commands_print_the_usual_output(kubectl):
    failures = []
    for line in filter(None, (line.strip() for line in EVERYDAY.splitlines())):
        typed, _, expected = line.partition("|")
        words = [word.replace("~", " ") for word in typed.split()]
        code, output = kubectl(*words)
        if code != 0 and words[0] == "explain":  # Real servers describe new kinds after a while only.
            code, output = wait_for_success(kubectl, words)
        if code != 0 or not re.search(expected.strip(), output, re.MULTILINE):
            failures.append(f"kubectl {' '.join(words)}: {output}")
    assert not failures, "\n".join(failures)


def wait_for_success(kubectl, words):
    for _ in range(20):
        code, output = kubectl(*words)
        if code == 0:
            break
    return code, output


@pytest.mark.parametrize(
    "words, message",
    [
        (["get", "note", "absent"], 'Error from server (NotFound): notes.notes.example.dev "absent" not found'),
        (["get", "nonsense"], "the server doesn't have a resource type \"nonsense\""),
        (["create", "namespace", "Wrong_Name"], 'The Namespace "Wrong_Name" is invalid: metadata.name: Invalid value'),
        (["create", "namespace", "default"], 'Error from server (AlreadyExists): namespaces "default" already exists'),
        (["delete", "namespace", "default"], "this namespace may not be deleted"),
    ],
)
def test_errors_are_those_of_a_cluster(kubectl, words, message):
    code, output = kubectl(*words)
    assert code == 1
    assert message in output


@pytest.mark.long
def test_from_client_side_to_server_side(kubectl):
    """What kubectl has applied by itself becomes its own; what others have, it takes only by force."""

    def owners():
        records = json.loads(kubectl("get", "note", "n", "-o", "json", "--show-managed-fields")[1])["metadata"][
            "managedFields"
        ]
        return {
            (record["manager"], record["operation"], record.get("subresource", "")): record["fieldsV1"]["f:spec"]
            for record in records
            if "f:spec" in record["fieldsV1"]
        }

    kubectl("apply", "--validate=false", "-f", "NOTE")
    assert owners() == {("kubectl-client-side-apply", "Update", ""): {".": {}, "f:copies": {}, "f:text": {}}}
    assert kubectl("apply", "--server-side", "-f", "NOTE")[0] == 0
    assert owners() == {("kubectl", "Apply", ""): {"f:copies": {}, "f:text": {}}}
    kubectl("scale", "note", "n", "--replicas=3")
    assert owners() == {("kubectl", "Apply", ""): {"f:text": {}}, ("kubectl", "Update", "scale"): {"f:copies": {}}}
    code, output = kubectl("apply", "--server-side", "-f", "NOTE", "--field-manager=other")
    assert code == 1
    assert (
        'error: Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using '
        f'{GROUP}/v1: .spec.copies\nPlease review the fields above--they currently have other managers.'
    ) in output
    assert kubectl("apply", "--server-side", "-f", "NOTE", "--field-manager=other", "--force-conflicts")[0] == 0
    assert owners()["other", "Apply", ""] == {"f:copies": {}, "f:text": {}}
