"""A soak: operators run for minutes in a cluster where everything changes, and what they have done is judged after it.

Two operators, one above the other, serve the same objects. Meanwhile, objects are edited and replaced; namespaces come
and go, so do kinds and their versions; the upper operator comes and goes, and both are frozen now and then; the
credentials are replaced, and the old ones refused. In the end, every object must be handled, nothing twice, never by
two operators at once, and the memory must be level.

    python tests/soak/soak.py --minutes=10

It takes the control plane of $KUBECONFIG (and cleans up after itself), or starts one of its own, which needs Go; with
--sandbox, none is needed. The exit code is 0 if everything is as it must be. Linux only: memory is read from /proc.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / 'cluster')]

import verdict  # noqa: E402
from controlplane import ControlPlane  # noqa: E402
from kubeapi import KubeApi, Object  # noqa: E402
from operatorprocess import OperatorProcess  # noqa: E402
from sandboxplane import SandboxPlane  # noqa: E402
from troubles import (  # noqa: E402
    GROUP,
    PATIENCE,
    PREFIX,
    STEADY,
    STEADY_NAMESPACES,
    Rotation,
    World,
    defining,
    editing,
    join,
    make_crd,
    namespacing,
    replacing,
)

LOWER, UPPER, PEOPLE = 10, 20, 100
PAGE = os.sysconf('SC_PAGE_SIZE')


class Soak:
    """The operators, and what is known of them."""

    def __init__(self, world: World, folder: pathlib.Path, kubeconfig: pathlib.Path) -> None:
        self.world = world
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.samples: list[int] = []
        self.codes: list[int] = []
        self.errors: list[str] = []
        self._runs = 0
        self._chances = world.chances('peers')

    def operator(self, priority: int) -> OperatorProcess:
        """Make an operator; it runs while its context lasts."""
        self._runs += 1
        name = f'operator-{self._runs}-{priority}'
        return OperatorProcess(
            '-n',
            f'{PREFIX}*',
            str(HERE / 'handlers.py'),
            log=self.folder / f'{name}.log',
            kubeconfig=str(self.kubeconfig),
            SOAK_LEDGER=str(self.folder / f'{name}.jsonl'),
            SOAK_OPERATOR=name,
            SOAK_PRIORITY=str(priority),
            SOAK_SEED=self.world.seed,
        )

    def stop(self, operator: OperatorProcess) -> None:
        """Stop the operator gracefully."""
        code, seconds = operator.stop(timeout=60)
        self.codes.append(code)
        if code:
            self.errors.append(f'{operator.log.name}: ended with the code {code}')

    def outrank(self) -> float:
        """Let the upper operator come, work for a while, and go."""
        with self.operator(UPPER) as upper:
            upper.wait_output('authentication')  # before that, signals end it as any other process
            self.world.stop.wait(self._chances.uniform(10, 30))
            self.stop(upper)
        self.world.counts['takeovers'] += 1
        return self._chances.uniform(5, 20)

    def freeze(self) -> float:
        """Freeze both operators for a while, as people do."""
        options = [sys.executable, '-m', 'kopf']
        target = ['-n', f'{PREFIX}*', '--peering=soak', '-q']
        environment = {**os.environ, 'KUBECONFIG': str(self.kubeconfig)}
        subprocess.run(
            [*options, 'freeze', *target, f'--priority={PEOPLE}', '--lifetime=20'], env=environment, check=True
        )
        self.world.stop.wait(self._chances.uniform(2, 6))
        subprocess.run([*options, 'resume', *target], env=environment, check=True)
        self.world.counts['freezes'] += 1
        return self._chances.uniform(10, 30)

    def sample(self, operator: OperatorProcess) -> float:
        """Take down how much memory the operator has."""
        text = pathlib.Path(f'/proc/{operator.process.pid}/statm').read_text()
        self.samples.append(int(text.split()[1]) * PAGE)
        return 1.0

    @contextmanager
    def repeating(self, name: str, trouble: Callable[[], float]) -> Iterator[None]:
        """Make the trouble again and again, in a thread; it returns how long to wait until the next time."""

        def repeat() -> None:
            try:
                while not self.world.stop.wait(trouble()):
                    pass
            except BaseException:
                self.errors.append(f'{name}: {traceback.format_exc()}')
                self.world.stop.set()

        thread = threading.Thread(target=repeat, name=name)
        thread.start()
        try:
            yield
        finally:
            self.world.stop.set()
            thread.join()

    def judge(self) -> Iterator[str]:
        """Return everything that is not as it must be."""
        lines = [line for path in sorted(self.folder.glob('*.jsonl')) for line in verdict.read(path)]
        bodies = self.world.bodies(STEADY, STEADY_NAMESPACES)
        self.world.counts['calls'] = len(lines)
        self.world.counts['objects'] = len(bodies)
        yield from self.errors
        yield from verdict.find_unhandled(lines, bodies)
        yield from verdict.find_repeated(lines)
        yield from verdict.find_undeleted(lines, self.world.deleted)
        yield from verdict.find_overlaps(lines)
        yield from verdict.find_growth(self.samples)
        for path in sorted(self.folder.glob('*.log')):
            text = path.read_text(errors='replace')
            self.world.counts['reauthentications'] += text.count('Re-authentication has finished')
            yield from (
                f'{path.name}: {line}'
                for line in text.splitlines()
                if re.search(r'\[(ERROR|CRITICAL) *\]|Traceback', line) and 'Not this time' not in line
            )


def soak(soak: Soak, rotate: Callable[[], float], *, seconds: float, objects: int, pace: float) -> None:
    """Run the operators with all the troubles, and wait until everything is handled."""
    world, began = soak.world, time.monotonic()
    with soak.operator(LOWER) as lower:
        with ExitStack() as stack:
            for name, trouble in {
                'editing': editing(world, objects, pace),
                'replacing': replacing(world, 10),
                'namespaces': namespacing(world),
                'kinds': defining(world),
                'peers': soak.outrank,
                'freezing': soak.freeze,
                'credentials': rotate,
                'memory': lambda: soak.sample(lower),
            }.items():
                stack.enter_context(soak.repeating(name, trouble))
            while not world.stop.wait(min(10, max(0, began + seconds - time.monotonic()))):
                if time.monotonic() >= began + seconds:
                    break
                say(f'{time.monotonic() - began:4.0f} s', world, soak)
        if not soak.errors:
            try:
                world.wait_handled(STEADY, *STEADY_NAMESPACES, timeout=PATIENCE)
            except TimeoutError as error:
                soak.errors.append(str(error))
        soak.stop(lower)


def say(title: str, world: World, soak: Soak) -> None:
    memory = f'{soak.samples[-1] / 2**20:.0f} MB' if soak.samples else '?'
    print(f'{title}: {", ".join(f"{count} {name}" for name, count in world.counts.items())}; {memory}', flush=True)


def prepare(api: KubeApi) -> None:
    """Make what is there before the operators."""
    api.apply(ROOT / 'peering.yaml')
    api.apply(make_crd(STEADY, {'v1': True}))
    for namespace in STEADY_NAMESPACES:
        api.apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': namespace}})
        join(api, namespace)


def clean_up(api: KubeApi) -> None:
    """Remove all that a soak has made; there is no operator any more to remove the finalizers."""
    crds: list[Object] = api.items('apiextensions.k8s.io/v1', 'CustomResourceDefinition')
    for crd in [crd for crd in crds if crd['spec']['group'] == GROUP]:
        version, kind = crd['spec']['versions'][-1]['name'], crd['spec']['names']['kind']
        for namespace in [item['metadata']['name'] for item in api.items('v1', 'Namespace')]:
            for body in api.items(f'{GROUP}/{version}', kind, namespace):
                api.patch(
                    f'{GROUP}/{version}', kind, namespace, body['metadata']['name'], {'metadata': {'finalizers': None}}
                )
        api.delete('apiextensions.k8s.io/v1', 'CustomResourceDefinition', None, crd['metadata']['name'])
    for item in api.items('v1', 'Namespace'):
        if item['metadata']['name'].startswith(PREFIX):
            api.delete('v1', 'Namespace', None, item['metadata']['name'])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--minutes', type=float, default=10, help="for how long to make troubles (default: 10)")
    parser.add_argument('--objects', type=int, default=200, help="how many objects are edited (default: 200)")
    parser.add_argument('--pace', type=float, default=0.15, help="seconds between edits, on average (default: 0.15)")
    parser.add_argument('--seed', default=str(random.SystemRandom().randrange(10**6)), help="to repeat a soak")
    parser.add_argument('--sandbox', action='store_true', help="run on the sandbox instead of a real control plane")
    parser.add_argument('--keep', type=pathlib.Path, metavar='FOLDER', help="where to leave the logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = options.keep or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='kopf-soak-')))
        folder.mkdir(parents=True, exist_ok=True)
        plane = stack.enter_context(SandboxPlane() if options.sandbox else ControlPlane())
        # On the sandbox, all tokens expire at once: ours must not.
        os.environ['KUBECONFIG'] = plane.kubeconfig + ('-cert' if options.sandbox else '')
        world = World(KubeApi(), options.seed)
        stack.callback(clean_up, world.api)
        prepare(world.api)
        if isinstance(plane, SandboxPlane):
            rotate, kubeconfig = plane.rotate, pathlib.Path(plane.kubeconfig)
        else:
            kubeconfig = folder / 'kubeconfig'
            rotate = Rotation(world, pathlib.Path(plane.kubeconfig), kubeconfig)
            stack.callback(rotate.clean_up)
        it = Soak(world, folder, kubeconfig)
        print(f'seed {options.seed}, {options.objects} objects, {options.minutes:g} minutes', flush=True)
        soak(it, rotate, seconds=options.minutes * 60, objects=options.objects, pace=options.pace)
        violations = list(it.judge())
        say('in all', world, it)
        print(json.dumps({'memory (MB)': [round(size / 2**20, 1) for size in it.samples[::30]]}))
        if len(it.samples) >= verdict.WARMING_UP:
            before, after = verdict.measure_growth(it.samples)
            print(
                f'{before / 2**20:.2f} MB in the middle, {after / 2**20:.2f} MB in the end: '
                f'{after / before - 1:+.1%} in the second half'
            )
        print(*(f'WRONG: {text}' for text in violations), f'{len(violations)} violations', sep='\n')
        return 1 if violations else 0


if __name__ == '__main__':
    sys.exit(main())
