"""Level-triggered handlers of an operator in its own process: children that others delete, watches, kills."""

import concurrent.futures
import functools
import time

from kubeapi import wait

HANDLERS = """
import os, json
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.index('configmaps')
def children(name, meta, body, **_):
    return {owner['uid']: (name, body.get('data', {}).get('value')) for owner in meta.get('ownerReferences', [])}

def users_of(namespace, body, **_):
    user = body.get('data', {}).get('user')
    return [(namespace, user)] if user else []

@kopf.on.reconcile('kopfexamples', owns=['configmaps'], watches={'v1/configmaps': users_of}, backoff=(0.1, 1))
async def reconcile(name, uid, spec, children: kopf.Index, patch, reasons, **_):
    patch.spec['children'] = sorted(children.get(uid, []))
    found = json.dumps(sorted(children.get(uid, [])))
    print(f"{name}: {spec['value']} {found} {'+'.join(sorted(reasons))}.", flush=True)
"""


def child(name, owner, **data):
    reference = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "name": "obj", "uid": owner["metadata"]["uid"]}
    metadata = {"name": name, "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_the_last_call_sees_the_last_state_and_nothing_is_stored_on_the_object(
    kubeapi, namespace, run_operator, tmp_path
):
    path = tmp_path / "handlers.py"
    path.write_text(HANDLERS)

    def start():
        return run_operator("--standalone", "--quiet", path)

    def edit(**spec):
        kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, "obj", {"spec": spec})

    operator = start()
    example = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": "obj"}, "spec": {"value": 0}}
    [owner] = kubeapi.apply(example, namespace)
    operator.wait_output(r"obj: 0 \[\]")
    kubeapi.apply(child("first", owner, value="a"), namespace)
    operator.wait_output(r'obj: 0 \[\["first", "a"\]\] owned\.')
    for value in range(1, 20):
        edit(value=value)
    operator.wait_output("obj: 19 .* change")
    kubeapi.delete("v1", "ConfigMap", namespace, "first")
    operator.wait_output(r"obj: 19 \[\] owned\.")
    kubeapi.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}, "data": {"user": "obj"}}, namespace
    )
    operator.wait_output(r"obj: 19 \[\] watched\.")
    operator.process.kill()
    operator.process.wait()

    edit(value="offline")
    kubeapi.apply(child("second", owner, value="b"), namespace)
    operator = start()
    operator.wait_output(r'obj: offline \[\["second", "b"\]\] start\.')
    wait(lambda: get(kubeapi, namespace)["spec"].get("children") == [["second", "b"]], "the patch")
    time.sleep(1)  # nothing is to happen
    assert operator.output.count("obj: ") == 1
    assert not {"annotations", "finalizers"} & get(kubeapi, namespace)["metadata"].keys()
    kubeapi.delete("kopf.dev/v1", "KopfExample", namespace, "obj")
    wait(lambda: get(kubeapi, namespace) is None, "the deletion")
    assert operator.stop()[0] == 0


BUSY = """
import time
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.on.reconcile('kopfexamples')
def reconcile(spec, **_):
    time.sleep(0.01)
    print(f"RUN {spec['value']}.", flush=True)
"""


def test_many_edits_are_few_runs(kubeapi, namespace, run_operator, tmp_path, request):
    edits = 1000 if request.config.getoption("--thorough") else 100
    path = tmp_path / "handlers.py"
    path.write_text(BUSY)
    operator = run_operator("--standalone", "--quiet", path)
    example = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": "obj"}, "spec": {"value": 0}}
    kubeapi.apply(example, namespace)
    operator.wait_output(r"RUN 0\.")
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        patch = functools.partial(kubeapi.patch, "kopf.dev/v1", "KopfExample", namespace, "obj")
        list(pool.map(lambda value: patch({"spec": {"value": value}}), range(1, edits)))
    patch({"spec": {"value": "last"}})
    operator.wait_output(r"RUN last\.")
    elapsed, runs = time.monotonic() - began, operator.output.count("RUN ")
    print(f"{edits} edits in {elapsed:.1f} s: {runs} runs")
    assert runs <= min(edits, 110 * max(1, elapsed)) + 1
    assert operator.stop()[0] == 0


def get(kubeapi, namespace):
    return kubeapi.get("kopf.dev/v1", "KopfExample", namespace, "obj")
