"""`make demo`: the first example on a real control plane, from nothing to "handled", in one go.

Starts a control plane (or takes the one of $KUBECONFIG), applies the example's kind and object, runs the operator,
shows what it did, and stops everything again, also after Ctrl-C or a failure. In a cluster that was there before
it works in a namespace of its own and removes what it has added.
"""
import contextlib
import json
import os
import pathlib
import secrets
import signal
import sys
import tempfile
from types import FrameType

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from controlplane import ControlPlane, Unavailable, binary, missing  # noqa: E402
from kubeapi import ApiError, KubeApi, Object, wait  # noqa: E402
from operatorprocess import OperatorProcess  # noqa: E402

NAMESPACE = f"kopf-demo-{secrets.token_hex(3)}"
EXAMPLE = ROOT / "examples" / "01-minimal" / "example.py"
KIND = "kopf.dev/v1", "KopfExample"
CRD = "apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "kopfexamples.kopf.dev"
HANDLED = "kopf.zalando.org/last-handled-configuration"


def main() -> int:
    # The first signal unwinds through all the `with` blocks; those that follow must not interrupt that.
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, interrupted)
    try:
        with ControlPlane() as plane:
            os.environ["KUBECONFIG"] = plane.kubeconfig
            say("the control plane is " + ("that of KUBECONFIG" if plane.external else "up"))
            demonstrate(plane)
            say("stopping everything")
    except (Unavailable, ApiError, OSError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    say("done: the object was handled")
    return 0


def interrupted(signum: int, _: FrameType | None) -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, signal.SIG_IGN)
    say("interrupted, stopping everything")
    raise SystemExit(128 + signum)


def demonstrate(plane: ControlPlane) -> None:
    api = KubeApi()
    with contextlib.ExitStack() as stack:
        prepare(api, plane, stack)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kopf-demo-")))
        say(f"running the operator: kopf run -n {NAMESPACE} {EXAMPLE.relative_to(ROOT)}")
        operator = stack.enter_context(
            OperatorProcess("-n", NAMESPACE, EXAMPLE, log=folder / "log", kubeconfig=plane.kubeconfig))
        obj = wait_handled(api, operator)
        code, seconds = operator.stop()
        print(*(f"    | {line}" for line in operator.output.splitlines()), sep="\n")
        say(f"the operator has stopped in {seconds:.1f} s with exit code {code}")
        say(f"the object's status: {json.dumps(obj.get('status'))}")
        say(f"its annotation {HANDLED}: {obj['metadata']['annotations'][HANDLED].strip()}")
        if code:
            raise RuntimeError(f"the operator has failed with exit code {code}")


def prepare(api: KubeApi, plane: ControlPlane, stack: contextlib.ExitStack) -> None:
    """Apply what the operator needs; have it removed at the end, unless the whole control plane goes."""
    for name in ("examples/crd.yaml", "examples/obj.yaml"):
        say(f"applying {name}")
    was_there = api.get(*CRD)
    api.apply(ROOT / "examples" / "crd.yaml")
    if plane.external and not was_there:
        stack.callback(api.delete, *CRD)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    if plane.external:
        stack.callback(api.delete, "v1", "Namespace", None, NAMESPACE)
    api.apply(ROOT / "examples" / "obj.yaml", NAMESPACE)


def wait_handled(api: KubeApi, operator: OperatorProcess) -> Object:
    """Wait until the operator has noted on the object that it has handled it; return the object."""
    def handled() -> Object | None:
        if operator.process.poll() is not None:
            raise RuntimeError(f"the operator has ended before it handled the object:\n{operator.output}")
        obj = api.get(*KIND, NAMESPACE, "kopf-example-1")
        return obj if obj and HANDLED in obj["metadata"].get("annotations", {}) else None

    try:
        found = wait(handled, "the object to be handled", timeout=30)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; the operator has printed:\n{operator.output}") from None
    assert found is not None
    return found


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    if problem := missing():
        sys.exit(f"demo: {problem}")
    if not os.environ.get("KUBECONFIG"):
        say("starting a control plane" + ("" if binary().exists() else " (building it first: about 5 minutes, once)"))
    sys.exit(main())
