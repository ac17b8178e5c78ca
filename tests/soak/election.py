"""
Replicas of one operator, as processes with real signals and a network that fails: exactly one works, whatever happens.

Three replicas with clocks that are minutes apart elect their leader. Objects are edited all the time. In each round,
something happens to the leader: it is killed, frozen, ended, cut off, its requests are delayed; or the API is down for
all, or other clients write into the Lease. In the end, all edits must be handled, the handlers of one object must never
have run in two replicas at once, and the writes of a former leader must not have landed after those of the next one.

    python -m tests.soak.election --rounds=20 --seed=1 --sandbox

Without --sandbox, it takes the control plane of $KUBECONFIG, or starts one, which needs Go. The exit code is 0 if
everything is as it must be.
"""

import argparse
import bisect
import collections
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / 'cluster')]

from controlplane import ControlPlane  # noqa: E402
from kubeapi import ApiError, KubeApi, Object, wait  # noqa: E402
from operatorprocess import OperatorProcess  # noqa: E402
from partitions import Link, sleep_until  # noqa: E402
from ports import free_port  # noqa: E402
from sandboxplane import SandboxPlane  # noqa: E402

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
API, KIND = 'kopf.dev/v1', 'KopfExample'
RESPITE = 2.0
"""How long a replica may take to begin to work after the Lease has expired (in seconds)."""
GRACE = 1.0
"""The same after a graceful end."""
STALL = 0.2
"""For how long this process must not have been scheduled so that the report says so (in seconds)."""
FRESH = 24
"""How many of the objects are created when the replicas run. The others were handled before, as in a cluster in use."""


@dataclasses.dataclass
class Round:
    """What was done to whom, and how long it took until a replica worked."""

    number: int
    action: str
    victim: str
    next: str
    seconds: float
    limit: float
    stall: float = 0.0
    """The longest time for which this process was not scheduled: on a busy machine, others are as late as this one."""

    @property
    def is_late(self) -> bool:
        return self.seconds > self.limit

    def __str__(self) -> str:
        verdict = 'LATE' if self.is_late else 'ok'
        stall = f', stalled for {self.stall:.2f} s' if self.stall > STALL else ''
        return (
            f'{self.number:5}  {self.action:10} {self.victim:4} -> {self.next:4} {self.seconds:7.2f} s '
            f'(at most {self.limit:5.2f} s)  {verdict}{stall}'
        )


def make_table(rounds: Sequence[Round]) -> str:
    """Return the rounds by actions: how many there were, and how long they took (in seconds)."""
    lines = [f'{"action":10} {"rounds":>6} {"median":>7} {"worst":>7} {"limit":>7} {"late":>4}']
    for action in dict.fromkeys(each.action for each in rounds):
        chosen = [each for each in rounds if each.action == action]
        times = [each.seconds for each in chosen]
        lines.append(
            f'{action:10} {len(chosen):6} {statistics.median(times):7.2f} {max(times):7.2f} '
            f'{max(each.limit for each in chosen):7.2f} {sum(each.is_late for each in chosen):4}'
        )
    return '\n'.join(lines)


class StallMeter(threading.Thread):
    """Measures for how long this process was not scheduled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._worst = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        before = time.monotonic()
        while not self.ended.wait(STALL / 4):
            now = time.monotonic()
            self._worst = max(self._worst, now - before - STALL / 4)
            before = now

    def take(self) -> float:
        """Return the longest time since the last call (in seconds)."""
        worst, self._worst = self._worst, 0.0
        return worst


class Ledger:
    """What the replicas have written down."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lines: list[dict[str, Any]] = []
        self._offset = 0
        path.touch()

    def read(self) -> list[dict[str, Any]]:
        """Return all complete lines so far."""
        with self.path.open('rb') as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b'\n') + 1]
        self._offset += len(data)
        self._lines += map(json.loads, data.splitlines())
        return self._lines

    def find_leader(self) -> str:
        """Return the replica that was elected last; empty if there is none."""
        terms = [line for line in self.read() if line['event'] == 'leading']
        return str(terms[-1]['replica']) if terms else ''

    def find_work(self, since: float, *, other_than: str = '') -> dict[str, Any] | None:
        """Return the first beginning of a handler since then: in another replica, or in a later term of that one."""
        terms = [line['time'] for line in self.read() if line['event'] == 'leading' and line['replica'] == other_than]
        again = min((term for term in terms if term > since), default=math.inf)
        found = None
        for line in reversed(self.read()):
            if line['time'] < since - 60:
                break  # the lines of different processes are not in the order of their times, but nearly
            if line['time'] > (again if line['replica'] == other_than else since) and line['event'] == 'begin':
                found = line
        return found


class Replica:
    """One replica with a link of its own; it is started anew when it has ended."""

    options: tuple[str, ...] = ('--leader-election',)
    """How the process takes part."""

    def __init__(self, soak: 'Soak', number: int) -> None:
        self._soak = soak
        self._starts = 0
        self.name = 'abcdef'[number]
        self.skew = (-300.0, 0.0, 420.0)[number % 3]
        self.link = Link(soak.host, soak.port)
        self._probe = f'http://127.0.0.1:{free_port()}'
        self.operator: OperatorProcess | None = None
        self.frozen: list[tuple[float, float]] = []
        self.deaths: dict[int, float] = {}  # by the identifiers of the processes

    def start(self) -> None:
        """Start the process."""
        self._starts += 1
        soak = self._soak
        kubeconfig = soak.folder / f'kubeconfig-{self.name}'
        text = pathlib.Path(soak.kubeconfig).read_text()
        kubeconfig.write_text(text.replace(f'{soak.host}:{soak.port}', f'127.0.0.1:{self.link.port}'))
        self.operator = OperatorProcess(
            '-n',
            soak.namespace,
            '--standalone',
            *self.options,
            '--liveness',
            f'{self._probe}/healthz',
            str(HERE / 'election_handlers.py'),
            log=soak.folder / f'{self.name}-{self._starts}.log',
            kubeconfig=str(kubeconfig),
            SOAK_LEDGER=str(soak.ledger.path),
            SOAK_REPLICA=self.name,
            SOAK_SKEW=str(self.skew),
            SOAK_SEED=soak.seed,
            SOAK_DURATION=str(soak.duration),
            SOAK_NAMESPACE=soak.namespace,
            **self.find_environment(),
        ).__enter__()

    def find_environment(self) -> dict[str, str]:
        """Return more variables for the process that is being started."""
        return {}

    @property
    def process(self) -> Any:
        assert self.operator is not None
        return self.operator.process

    def is_ready(self) -> bool:
        """Check whether all objects are listed: a replica that is not warm cannot take over at once."""
        with contextlib.suppress(OSError):  # including the refusals of the probe
            with urllib.request.urlopen(f'{self._probe}/readyz', timeout=10) as response:
                return bool(response.status == 200)
        return False

    def revive(self) -> None:
        """Start the process anew if it has ended."""
        if self.process.poll() is not None:
            self.deaths.setdefault(self.process.pid, time.monotonic())
            self.start()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        self.deaths[self.process.pid] = time.monotonic()


class Soak:
    """The replicas, and what is known of them."""

    replica_class: type[Replica] = Replica
    count = 3
    title = 'election'
    actions: Sequence[str] = ('kill', 'end', 'freeze', 'cut', 'delay', 'outage', 'conflict')
    """What can happen to the replicas, in this order."""
    objects = 16
    """How many objects are edited by default."""

    def __init__(self, kubeconfig: str, folder: pathlib.Path, namespace: str, *, seed: str, duration: float) -> None:
        self.kubeconfig, self.folder, self.namespace = kubeconfig, folder, namespace
        self.seed, self.duration = seed, duration
        self.api = KubeApi()
        server = urllib.parse.urlsplit(self.api._server)
        self.host, self.port = server.hostname or '', server.port or 443
        self.chances = random.Random(seed)
        self.ledger = Ledger(folder / 'ledger.jsonl')
        self.replicas = {each.name: each for each in map(self.make_replica, range(self.count))}
        self.rounds: list[Round] = []
        self.values: dict[str, int] = {}
        self.edits = 0
        self.errors: list[str] = []
        self.states: dict[str, list[tuple[int, Object]]] = collections.defaultdict(list)
        self.stop = threading.Event()

    # The world.

    def make_replica(self, number: int) -> Replica:
        """Create one of the replicas, which is not started yet."""
        return self.replica_class(self, number)

    def prepare(self, objects: int) -> None:
        """Create the objects. All but the first ones look as if the operator had handled them before."""
        bodies: list[Object] = []
        for number in range(objects):
            name = f'obj-{number}'
            self.values[name] = 0
            labels = {'daemon': 'yes'} if number % 4 == 0 and number < FRESH else {}
            metadata: Object = {'name': name, 'labels': labels}
            body: Object = {'apiVersion': API, 'kind': KIND, 'metadata': metadata, 'spec': {'value': 0}}
            if number >= FRESH:
                metadata['annotations'] = {LAST_HANDLED: json.dumps({'spec': {'value': 0}})}
                body['status'] = {'seen': 0}
            bodies.append(body)
        if bodies:
            self.api.create_many(bodies, self.namespace)

    def edit(self) -> None:
        """Edit objects until stopped; what the API refuses is tried again."""
        chances = random.Random(f'edits {self.seed}')
        while not self.stop.wait(chances.uniform(0, 0.1)):
            name = chances.choice(list(self.values))
            with contextlib.suppress(OSError, ApiError):
                self.api.patch(API, KIND, self.namespace, name, {'spec': {'value': self.values[name] + 1}})
                self.values[name] += 1
                self.edits += 1

    def watch(self) -> None:
        """Write down all states of the objects until stopped."""
        path, version = self.api.path(API, KIND, self.namespace), '0'
        while not self.stop.is_set():
            with contextlib.suppress(OSError, ApiError, ValueError):
                with self.api.open(f'{path}?watch=1&resourceVersion={version}&timeoutSeconds=5') as response:
                    for line in response:
                        event = json.loads(line)
                        if event['type'] == 'ERROR':
                            version = '0'  # the history is gone: all objects are sent again
                            break
                        body = event['object']
                        version = body['metadata']['resourceVersion']
                        self.states[body['metadata']['name']].append((int(version), body.get('status') or {}))

    def run(self, rounds: int, actions: list[str], report: Callable[[str], None] = print) -> None:
        """Do something to the replicas in each round, while objects are edited."""
        with ExitStack() as stack:
            self.begin(stack)
            threads = [threading.Thread(target=target) for target in (self.edit, self.watch)]
            for thread in threads:
                thread.start()
            stack.callback(lambda: [thread.join() for thread in threads])
            stack.callback(self.stop.set)
            stalls = StallMeter()
            stalls.start()
            stack.callback(stalls.ended.set)
            wait(lambda: self.ledger.find_work(0), 'the first replica to work', timeout=300)
            self.rest()
            for number in range(1, rounds + 1):
                action = (
                    actions[(number - 1) % len(actions)] if number <= len(actions) else self.chances.choice(actions)
                )
                stalls.take()
                try:
                    self.rounds.append(dataclasses.replace(self.play(number, action), stall=stalls.take()))
                    report(str(self.rounds[-1]))
                    self.rest()
                except TimeoutError as error:
                    self.errors.append(f'round {number} ({action}): {error}, stalled for {stalls.take():.2f} s')
                    break  # what has happened until now is judged nevertheless
            self.conclude()

    def begin(self, stack: ExitStack) -> None:
        """Start the replicas; end them with the stack."""
        for replica in self.replicas.values():
            stack.enter_context(replica.link)
            replica.start()
            stack.callback(replica.end)

    def rest(self) -> None:
        """Start what has ended, and wait until one replica leads and the others are warm."""
        for replica in self.replicas.values():
            replica.revive()
        wait(lambda: all(each.is_ready() for each in self.replicas.values()), 'all replicas to be ready', timeout=300)
        time.sleep(self.chances.uniform(2, 3))
        began = time.monotonic()
        wait(lambda: self.ledger.find_work(began), 'a leader to work', timeout=self.duration * 3 + 30)

    def conclude(self) -> None:
        """Wait until all edits are handled."""
        self.stop.set()
        time.sleep(0.5)

        def find_unhandled() -> list[str]:
            bodies = self.api.items(API, KIND, self.namespace)
            values = {body['metadata']['name']: (body.get('status') or {}).get('seen') for body in bodies}
            return [name for name, value in self.values.items() if values.get(name) != value]

        try:
            wait(lambda: not find_unhandled(), 'all edits to be handled', timeout=60 + self.duration * 2)
        except TimeoutError:
            self.errors += [f'{name} is not handled' for name in find_unhandled()]

    # The actions.

    def play(self, number: int, action: str) -> Round:
        """Do it to the leader; return how long it took until a replica worked."""
        victim = self.replicas[wait(self.ledger.find_leader, 'a leader')]
        time.sleep(self.chances.uniform(0, self.duration * 2 / 15))  # at any moment between two renewals
        began, limit, others = getattr(self, f'_{action}')(victim)
        line = wait(
            lambda: self.ledger.find_work(began, other_than=victim.name if others else ''),
            f'a replica to work in round {number}, after {action}',
            timeout=self.duration * 3 + 30,
        )
        return Round(number, action, victim.name, line['replica'], line['time'] - began, limit)

    def _kill(self, victim: Replica) -> tuple[float, float, bool]:
        victim.end()
        return time.monotonic(), self.duration + RESPITE, True

    def _end(self, victim: Replica) -> tuple[float, float, bool]:
        victim.process.send_signal(signal.SIGTERM)
        victim.process.wait(60)
        victim.deaths[victim.process.pid] = now = time.monotonic()
        # The Lease is released a moment before the process has ended.
        ends = [line['time'] for line in self.ledger.read() if line['event'] == 'yielding']
        return min(now, ends[-1] if ends else now), GRACE, True

    def _freeze(self, victim: Replica) -> tuple[float, float, bool]:
        began = time.monotonic()
        victim.process.send_signal(signal.SIGSTOP)
        sleep_until(began + self.duration * 4 / 3)
        victim.process.send_signal(signal.SIGCONT)
        victim.frozen.append((began, time.monotonic()))
        return began, self.duration + RESPITE, True

    def _cut(self, victim: Replica) -> tuple[float, float, bool]:
        began = time.monotonic()
        with victim.link.refused():
            sleep_until(began + self.duration * 4 / 3)
        return began, self.duration + RESPITE, True

    def _delay(self, victim: Replica) -> tuple[float, float, bool]:
        began = time.monotonic()
        with victim.link.held():
            sleep_until(began + self.duration * 4 / 3)
        return began, self.duration + RESPITE, True

    def _outage(self, victim: Replica) -> tuple[float, float, bool]:
        """Cut all replicas off, for longer than the Lease lives: the first one afterwards leads."""
        with ExitStack() as stack:
            for replica in self.replicas.values():
                stack.enter_context(replica.link.refused())
            time.sleep(self.duration * 4 / 3)
        # Their watches back off by then, as those of all operators.
        return time.monotonic(), self.duration + RESPITE, False

    def _conflict(self, victim: Replica) -> tuple[float, float, bool]:
        """Write into the Lease as other clients, all the time: that must not end the term."""
        began = time.monotonic()
        while time.monotonic() < began + self.duration / 2:
            patch = {'metadata': {'labels': {'edited': str(self.chances.random())}}}
            self.api.patch('coordination.k8s.io/v1', 'Lease', self.namespace, 'soak', patch)
            time.sleep(self.chances.uniform(0, 0.3))
        return time.monotonic(), RESPITE, False

    # The verdict.

    def judge(self) -> Iterator[str]:
        """Return everything that is not as it must be."""
        yield from self.errors
        yield from (
            f'round {each.number} ({each.action}): {each.seconds:.2f} s' for each in self.rounds if each.is_late
        )
        yield from self.find_overlaps()
        yield from self.find_late_writes()

    def find_intervals(self) -> Iterator[tuple[str, str, float, float]]:
        """Return the objects, the replicas, and when their handlers began and ended."""
        running: dict[tuple[int, str, str], dict[str, Any]] = {}
        deaths = {pid: moment for each in self.replicas.values() for pid, moment in each.deaths.items()}
        for line in self.ledger.read():
            if line['event'] == 'begin':
                running[line['pid'], line['name'], line['handler']] = line
            elif line['event'] == 'end':
                begun = running.pop((line['pid'], line['name'], line['handler']), None)
                if begun is not None:
                    yield line['name'], line['replica'], begun['time'], line['time']
        for (pid, name, _), line in running.items():
            yield name, line['replica'], line['time'], deaths.get(pid, time.monotonic())

    def find_overlaps(self) -> Iterator[str]:
        """Return the objects that were handled by two replicas at once, except for those that were frozen meanwhile."""
        by_name = collections.defaultdict(list)
        for name, replica, began, ended in self.find_intervals():
            by_name[name].append((began, ended, replica))
        for name, intervals in by_name.items():
            intervals.sort()
            latest: dict[str, tuple[float, float]] = {}  # the interval that ends last, of each replica
            for began, ended, replica in intervals:
                for other, (other_began, other_ended) in latest.items():
                    # The handlers of a frozen replica can end only after it is thawed.
                    if other != replica and began < other_ended and not self._was_frozen(other, other_began, began):
                        yield f'{name} by {other} until {other_ended:.3f} and by {replica} from {began:.3f}'
                if replica not in latest or latest[replica][1] < ended:
                    latest[replica] = began, ended

    def _was_frozen(self, replica: str, began: float, moment: float) -> bool:
        """Check whether a handler that began at a time was frozen at the moment, or had just been thawed."""
        # Not compared with the beginning of the freeze: a handler can begin until the signal has arrived.
        return any(
            began < thawed and frozen <= moment <= thawed + RESPITE for frozen, thawed in self.replicas[replica].frozen
        )

    def find_late_writes(self) -> Iterator[str]:
        """Return the objects that have writes of a former leader after those of a later one.

        A replica that is elected twice in a row still stores in its second term what succeeded in its first one.
        """
        leading = (line for line in self.ledger.read() if line['event'] == 'leading')
        elected = sorted(leading, key=lambda line: line['time'])
        starts = [line['time'] for line in elected]  # each is noted a moment after the term itself
        for name, states in self.states.items():
            latest, former = 0.0, {'term': 0.0, 'timer': 0.0}
            for version, status in sorted(states, key=lambda pair: pair[0]):
                terms = {field: float(status.get(field) or 0) for field in former}
                for field, term in terms.items():
                    following = elected[bisect.bisect(starts, term) : bisect.bisect(starts, latest) + 1]
                    if term != former[field] and term < latest and len({line['pid'] for line in following}) > 1:
                        yield f'{name}: version {version} is of the term {term}, after {latest}'
                latest, former = max(latest, *terms.values()), terms

    def summarize(self) -> str:
        """Return the figures in one line."""
        counts = collections.Counter(line['event'] for line in self.ledger.read())
        states = sum(map(len, self.states.values()))
        return (
            f'{len(self.rounds)} rounds, {self.edits} edits, {counts["begin"]} calls of handlers, '
            f'{counts["leading"]} terms, {states} states seen'
        )


SoakT = TypeVar('SoakT', bound=Soak)


def soak(
    kind: type[SoakT],
    kubeconfig: str,
    folder: pathlib.Path,
    namespace: str,
    *,
    rounds: int,
    objects: int | None = None,
    actions: Sequence[str] | None = None,
    **options: Any,
) -> tuple[SoakT, list[str]]:
    """Run the rounds; return the soak and what is wrong."""
    it = kind(kubeconfig, folder, namespace, **options)
    it.api.apply(ROOT / 'examples' / 'crd.yaml')
    it.prepare(kind.objects if objects is None else objects)
    it.run(rounds, list(actions or kind.actions), lambda text: print(text, flush=True))
    return it, list(it.judge())


def main(kind: type[Soak], description: str | None, **counts: tuple[int, str]) -> int:
    """Run the soak with the options of the command line, and these numbers: their defaults, and what they are."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=20, help="how often something happens (default: 20)")
    for name, (number, text) in counts.items():
        parser.add_argument(f'--{name}', type=int, default=number, help=f"{text} (default: {number})")
    parser.add_argument('--duration', type=float, default=15, help="the duration of the Leases (default: 15)")
    parser.add_argument('--objects', type=int, help=f"how many objects are edited (default: {kind.objects})")
    parser.add_argument('--seed', default=str(random.SystemRandom().randrange(10**6)), help="to repeat a soak")
    parser.add_argument('--actions', type=lambda text: text.split(','), help=f"of: {','.join(kind.actions)}")
    parser.add_argument('--sandbox', action='store_true', help="run on the sandbox instead of a real control plane")
    parser.add_argument(
        '--server-shards', action='store_true', help="let the server restrict lists and watches to shards"
    )
    parser.add_argument('--keep', type=pathlib.Path, metavar='FOLDER', help="where to leave the logs")
    options = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept, make_plane = options.pop('keep'), SandboxPlane if options.pop('sandbox') else ControlPlane
    with ExitStack() as stack:
        folder = kept or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f'kopf-{kind.title}-')))
        folder.mkdir(parents=True, exist_ok=True)
        plane = stack.enter_context(make_plane(sharding=options.pop('server_shards')))
        os.environ['KUBECONFIG'] = plane.kubeconfig
        api, namespace = KubeApi(), f'{kind.title}-{random.randrange(10**6)}'
        api.apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': namespace}})
        stack.callback(api.delete, 'v1', 'Namespace', None, namespace)
        print('seed {seed}, {rounds} rounds, a duration of {duration:g} s'.format_map(options), flush=True)
        it, wrong = soak(kind, plane.kubeconfig, folder, namespace, **options)
        print(make_table(it.rounds), it.summarize(), sep='\n')
        print(*(f'WRONG: {text}' for text in wrong), f'{len(wrong)} violations', sep='\n')
        return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(Soak, __doc__))
