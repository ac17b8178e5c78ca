"""`make demo`: the first example on an embedded Kubernetes API, from nothing to "handled", in a few seconds.

Runs what a newcomer would type, `kopf run --sandbox` with the example and its object, waits until the object is
handled, shows what has been done to it, and stops everything again, also after Ctrl-C or a failure. No cluster is
touched.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from types import FrameType

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from kubeapi import ApiError, KubeApi, Object, wait  # noqa: E402
from operatorprocess import OperatorProcess  # noqa: E402

COMMAND = "--sandbox", "--crd", "examples/crd.yaml", "--load", "examples/obj.yaml", "examples/01-minimal/example.py"
OBJECT = "kopf.dev/v1", "KopfExample", "default", "kopf-example-1"
HANDLED = "kopf.zalando.org/last-handled-configuration"


def main() -> int:
    # The first signal unwinds through all the `with` blocks; those that follow must not interrupt that.
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, interrupted)
    os.chdir(ROOT)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="kopf-demo-") as folder:
            demonstrate(pathlib.Path(folder, "log"))
    except (ApiError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    say(f"done: the object was handled; {time.monotonic() - began:.1f} s in all")
    return 0


def interrupted(signum: int, _: FrameType | None) -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, signal.SIG_IGN)
    say("interrupted, stopping everything")
    raise SystemExit(128 + signum)


def demonstrate(log: pathlib.Path) -> None:
    say(f"running the operator with a sandbox: kopf run {' '.join(COMMAND)}")
    with OperatorProcess(*COMMAND, log=log, kubeconfig="") as operator:
        try:
            os.environ["KUBECONFIG"] = operator.wait_output(r"(?m)^export KUBECONFIG=(\S+)$")[1]
            obj = wait_handled(KubeApi(), operator)
        finally:
            # The sandbox ends with it, and both are left to clean up.
            code, seconds = operator.stop(signal.SIGINT)
        print(*(f"    | {line}" for line in operator.output.splitlines()), sep="\n")
    say(f"the object's status: {json.dumps(obj.get('status'))}")
    say(f"its annotation {HANDLED}: {obj['metadata']['annotations'][HANDLED].strip()}")
    say(f"the operator and the sandbox have stopped in {seconds:.1f} s with exit code {code}")
    if code:
        raise RuntimeError(f"the operator has failed with exit code {code}")


def wait_handled(api: KubeApi, operator: OperatorProcess) -> Object:
    """Wait until the operator has noted on the object that it has handled it; return the object."""

    def handled() -> Object | None:
        if operator.process.poll() is not None:
            raise RuntimeError(f"the operator has ended before it handled the object:\n{operator.output}")
        obj = api.get(*OBJECT)
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
    sys.exit(main())
