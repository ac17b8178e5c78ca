"""Which handlers are called for an object that is being deleted, while another finalizer holds it."""

import re

from kubeapi import wait

HANDLERS = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

def show(what, name, meta, spec):
    print(f"<{what} {name} {'deleted' if 'deletionTimestamp' in meta else 'alive'} {spec['size']}>", flush=True)

@kopf.on.create('kopfexamples', id='create', param='create')
@kopf.on.update('kopfexamples', id='update', param='update')
@kopf.on.field('kopfexamples', field='spec.size', id='field', param='field')
@kopf.on.delete('kopfexamples', id='delete', param='delete')
@kopf.on.resume('kopfexamples', id='resume', param='resume')
@kopf.on.resume('kopfexamples', deleted=True, id='resume_deleted', param='resume_deleted')
@kopf.on.event('kopfexamples', id='event', param='event')
@kopf.on.reconcile('kopfexamples', id='reconcile', param='reconcile')
@kopf.index('kopfexamples', id='indexed', param='index')
@kopf.timer('kopfexamples', interval=0.1, id='timer', param='timer')
async def handle(param, name, meta, spec, **_):
    show(param, name, meta, spec)

@kopf.daemon('kopfexamples')
async def daemon(name, meta, spec, stopped, **_):
    show('daemon', name, meta, spec)
    await stopped.wait()
    print(f"<daemon {name} has ended>", flush=True)
"""
API, KIND = "kopf.dev/v1", "KopfExample"


def find_calls(output, name):
    """Return which handlers were called while the object was being deleted."""
    return {*re.findall(rf"<(\w+) {name} deleted ", output)}


def test_only_some_handlers_are_called_for_an_object_in_deletion(kubeapi, namespace, run_operator, tmp_path):
    path = tmp_path / "handlers.py"
    path.write_text(HANDLERS)

    def start():
        return run_operator("--standalone", "--quiet", path)

    def create(name):
        metadata = {"name": name, "finalizers": ["example.com/hold"]}
        kubeapi.apply({"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": {"size": 1}}, namespace)

    def edit(name, size):
        kubeapi.patch(API, KIND, namespace, name, {"spec": {"size": size}})

    operator = start()
    for name in "live", "offline":
        create(name)
        for what in "create", "field", "event", "reconcile", "index", "timer", "daemon":
            operator.wait_output(f"<{what} {name} alive 1>")
    kubeapi.delete(API, KIND, namespace, "live")
    operator.wait_output("<daemon live has ended>")
    operator.wait_output("<delete live deleted 1>")
    edit("live", 2)
    operator.wait_output("<event live deleted 2>")
    edit("offline", 2)  # the operator handles what comes before it, too
    operator.wait_output("<update offline alive 2>")
    assert find_calls(operator.output, "live") == {"event", "index", "delete"}
    operator.stop()

    edit("offline", 3)
    kubeapi.delete(API, KIND, namespace, "offline")
    operator = start()
    operator.wait_output("<delete offline deleted 3>")
    operator.wait_output("<event live deleted 2>")
    wait(lambda: get_finalizers(kubeapi, namespace, "offline") == ["example.com/hold"], "the end of the deletion")
    edit("live", 3)
    operator.wait_output("<event live deleted 3>")
    assert find_calls(operator.output, "offline") == {"event", "index", "delete", "field", "resume_deleted"}
    assert find_calls(operator.output, "live") == {"event", "index"}, "its deletion is handled already"
    for name in "live", "offline":
        kubeapi.patch(API, KIND, namespace, name, {"metadata": {"finalizers": None}})
    assert operator.stop()[0] == 0


def get_finalizers(kubeapi, namespace, name):
    return kubeapi.get(API, KIND, namespace, name)["metadata"].get("finalizers")
