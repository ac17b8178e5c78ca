"""One run: a cluster, its operators, what happens to them, and what must hold."""

import asyncio
import collections
import gc
import io
import json
import logging
import random
import threading
import traceback

import kopf
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.reactor import operators
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.watches import FORBIDDEN_BACKOFF
from kopf._kits.testing.serving.server import Server
from tests.faults.simulation import (
    actions,
    electing,
    handlers,
    mutating,
    options,
    processes,
    resting,
    storages,
    threads,
    virtualtime,
)
from tests.faults.simulation.cluster import Cluster
from tests.faults.simulation.ledger import Ledger
from tests.faults.simulation.network import Network

EXIT_TIMEOUT = 30
SLOW_EXIT = 3 * EXIT_TIMEOUT + 5
"""Handlers end, then are cancelled, then what they have left is stored: each within the time-out (in seconds)."""
SLOW_REST = 110
CONFIRMATION = 25
"""After this time, all must still be at rest: so that nothing that is only late counts as done (in seconds)."""
LONGEST_TIMER = 90
"""For how long asyncio keeps cancelled timers, such as time-outs of requests, with all that they refer to (seconds)."""


class Simulation:
    """
    A run.

    Args:
        seed: what all random decisions follow from.
        overrides: the options to set, instead of those that are drawn.
        level: the level of the log of the operators.
    """

    def __init__(self, seed, overrides=None, *, level=logging.INFO):
        self.seed = seed
        self.clock = virtualtime.Clock()
        virtualtime.take_over(self.clock, seed)
        processes.separate_clocks(self.clock)
        threads.take_over()
        electing.take_over()
        operators.LoopMonitor = _NoMonitor
        self.rng = self._derive('actions')
        self.options = options.draw(self._derive('options'))
        for name, value in (overrides or {}).items():
            setattr(self.options, name, value)
        options.fit(self.options)
        self.ledger = Ledger(self.clock, self.options)
        mutating.take_over(self.options.mutating, self.ledger)
        self.records = {}  # those of the storage that is a database
        self.storage = self.options.storage
        self.flakiness = storages.Flakiness(self._derive('flakiness'), 0.03)
        self.processes = []
        self.dropped = set()
        """The ids of the handlers that any of the processes has lacked."""
        self.rested_since = 1e9
        self._handler_rng = self._derive('handlers')
        self._started = 0
        self._stopped_at = []
        self._log = _Log(self.ledger, level)

    def _derive(self, name):
        return random.Random(f'{self.seed} {name}')

    def run(self, steps):
        """Run it; return what is wrong."""
        loop = virtualtime.VirtualLoop(self.clock)
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self._note_exception)
        with self._log:
            try:
                loop.run_until_complete(self._run(steps))
            except BaseException as error:
                self.ledger.fault(f'crashed: {error!r}\n' + ''.join(traceback.format_exception(error)[-6:]))
        return self.ledger.problems

    def _note_exception(self, loop, context):
        error = context.get('exception')
        if error is not None:
            self.ledger.note(''.join(traceback.format_exception(error)))
        if not self._is_meant(error):
            self.ledger.fault(f'not retrieved: {context.get("task")!r} {context.get("message")} {error!r}')

    async def _run(self, steps):
        self.server = Server()
        self.server._loop, self.server._thread = asyncio.get_running_loop(), threading.get_ident()
        await self.server.api.start(None)
        self.network = Network(self.server, self._derive('network'), self.options.slowness, self.options.lagging)
        self.network.take_over()
        self.cluster = Cluster(self.server, self.rng, self.ledger, self.options)
        await self.cluster.set_up()
        acting = actions.Actions(self)
        for _ in range(self.rng.choice([0, 3])):
            await acting.act(['create'])
        for _ in range(3 if self.options.electing else 1):
            self.start()
        await asyncio.sleep(self.rng.choice([0, 0.3, 1, 5]))
        for _ in range(steps):
            self._restart_ended()
            await acting.act()
            await asyncio.sleep(self.rng.choice([0, 0, 0.01, 0.05, 0.2, self.options.pause]))
        self.ledger.note('rest')
        self.rested_since = self.clock.now
        await actions.clear(self)
        if await self._come_to_rest():
            await self._check_memory()
            await self._stay_at_rest()
        for process in list(self.processes):
            await self.stop(process)

    # Operators.

    def start(self, priority=10):
        """Start an operator."""
        process = processes.Process(self.clock, died=self._bury)
        process.priority, process.ledger = priority, self.ledger
        registry, settings = kopf.OperatorRegistry(), self._make_settings()
        process.handlers = handlers.Handlers(
            process, registry, self.ledger, self.options, self._handler_rng, self.server
        )
        process.handlers.declare()
        self.dropped |= process.handlers.absent
        process.indexers, process.stopping = OperatorIndexers(), asyncio.Event()
        process.patched.append(lambda request, response: self._note_patch(process, request, response))
        storages.configure(
            settings.persistence, self.storage, flakiness=self.flakiness, records=self.records, process=process
        )
        process.task = asyncio.get_running_loop().create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                indexers=process.indexers,
                stop_flag=process.stopping,
                lifecycle=getattr(kopf.lifecycles, self.options.lifecycle),
                **self._make_scope(process),
            ),
            context=process.make_context(),
        )
        self._started += 1
        self.processes.append(process)
        self.ledger.note(f'{process} starts, priority={priority}')

    def _make_scope(self, process):
        scope = {'clusterwide': True} if self.options.scope == 'cluster' else {'namespaces': ['ns-0', 'ns-1']}
        if self.options.scope == 'pattern':
            scope = {'namespaces': ['ns-*']}
        if not self.options.peering:
            return {**scope, 'standalone': True, 'identity': repr(process)}
        named = {'peering_name': 'default'} if self.options.peering == 'mandatory' else {}
        return {**scope, **named, 'identity': repr(process), 'priority': process.priority}

    def _make_settings(self):
        settings, options = kopf.OperatorSettings(), self.options
        settings.posting.enabled = options.posting
        settings.scanning.disabled = not options.scanning
        settings.networking.error_backoffs = [0.05, 0.1]
        settings.networking.login_backoffs = [0.1, 0.2]
        settings.networking.request_timeout = 30
        settings.queueing.error_delays = [0.1, 0.3, 1]
        settings.queueing.worker_limit = options.worker_limit
        settings.queueing.exit_timeout = EXIT_TIMEOUT
        settings.watching.streaming_lists = options.streaming_lists
        settings.watching.inactivity_timeout = 20
        settings.watching.reconnect_backoff = 0.05
        settings.watching.server_timeout = self.rng.choice([5, 60])
        settings.peering.lifetime = 20
        settings.persistence.consistency_timeout = options.consistency_timeout
        settings.background.max_threads = options.daemon_threads
        electing.configure(settings, options.electing)
        settings.execution.executor = threads.VirtualThreads(options.handler_threads)
        if options.selecting == 'settings':
            settings.watching.label_selectors['kopfexamples'] = 'app=y' if options.blind else 'app=x'
        return settings

    def _note_patch(self, process, request, response):
        payload = request.payload  # finalizers and records of children are no progress
        for text in (b'children.kopf.zalando.org', b'kopf.dev/children-operator'):
            payload = payload.replace(text, b'')
        if '/kopfexamples/' in request.query and (b'kopf' in payload or b'new.dev' in payload):
            self.ledger.note_stored(process, json.loads(response.body)['metadata']['uid'])

    def _bury(self, process):
        self.ledger.note(f'{process} has died')
        self.ledger.forget(process)
        self.processes = [each for each in self.processes if each is not process]

    async def stop(self, process):
        """Stop an operator, and check how it ends."""
        process.clean = not self.server.faults.pending() and self.clock.read_monotonic() >= self.network.down_until
        self.ledger.note(f'{process} stops')
        process.stopped_at = self.clock.now
        process.stopping.set()
        since = self.clock.now
        await asyncio.wait({process.task}, timeout=SLOW_EXIT + 30)
        if process.dead:
            return
        if not process.task.done():
            self.ledger.fault(f'{process} does not end')
        elif process.task.exception() is not None and not self._is_meant(process.task.exception()):
            self.ledger.fault(f'{process} has ended with {process.task.exception()!r}')
        if self.clock.now - since > SLOW_EXIT:
            self.ledger.fault(f'{process} has ended after {self.clock.now - since:.1f} s')
        left = [crowd for (kind, _), crowd in self.ledger.daemons.items() if kind == 'sync']
        for token in [token for crowd in (*left, *self.ledger.running.values()) for token in crowd]:
            if token.process_id == process.id:
                self.ledger.fault(f'{token} goes on after the end of {process}')
        self._stopped_at.append(self.clock.now)
        self.processes = [each for each in self.processes if each is not process]
        process.task = process.indexers = process.handlers = process.coordinator = None
        process.patched.clear()

    def _is_meant(self, error):
        """Check whether an operator ends by this error, as specified: it cannot know what there is, or who works."""
        text = repr(error)
        is_forbidden = self.options.forbidding and 'LeadershipError' in text and 'not permitted to the operator' in text
        return is_forbidden or 'DiscoveryError' in text

    def _restart_ended(self):
        for process in [each for each in self.processes if each.task.done()]:
            error = process.task.exception()
            if not self._is_meant(error):
                self.ledger.fault(f'{process} has ended by itself: {error!r}')
            self.processes.remove(process)
            self.start(process.priority)
        if not self.processes:
            self.start()

    # Rest.

    async def _come_to_rest(self):
        since, flaws = self.clock.now, []
        for _ in range(400):
            await asyncio.sleep(0.5)
            self._restart_ended()
            if not (flaws := await self._find_flaws()):
                await asyncio.sleep(CONFIRMATION)
                if not (flaws := await self._find_flaws()):
                    break
        for flaw in flaws:
            self.ledger.fault(f'not at rest: {flaw}')
        if flaws:
            await self._describe()
        elif self.clock.now - since > SLOW_REST + CONFIRMATION:
            self.ledger.fault(f'at rest only after {self.clock.now - since:.1f} s')
        return not flaws

    async def _find_flaws(self):
        children = [*await self.cluster.list('configmaps'), *await self.cluster.list('secrets')]
        bodies, twins = await self.cluster.list(), await self.cluster.list('kopftwins')
        return resting.Rest(self, bodies, twins, children).find_flaws()

    async def _describe(self):
        """Add to the log what helps to find the cause."""
        for task in asyncio.all_tasks():
            stack = io.StringIO()
            task.print_stack(limit=3, file=stack)
            self.ledger.note(stack.getvalue())
        for body in await self.cluster.list():
            self.ledger.note(f'object: {json.dumps(body)[:1500]}')
        for seen in list(self.server.requests)[-10:]:
            self.ledger.note(f'request: {seen.method} {seen.path} {dict(seen.query)} {seen.status}')

    async def _stay_at_rest(self):
        await asyncio.sleep(1)
        # Twice at most: the observer of the CRDs can be backing off, and find late that they have changed.
        for _ in range(2):
            flaws = await self._find_activity()
            if not flaws:
                break
        for flaw in flaws:
            self.ledger.fault(flaw)
        for flaw in await self._find_flaws():
            self.ledger.fault(f'not at rest any more: {flaw}')

    async def _find_activity(self):
        """Return what the operators do in a while without any changes."""
        calls, flaws = self.ledger.calls, []
        self.server.requests.clear()
        await asyncio.sleep(20)
        requests = list(self.server.requests)
        if len(requests) > 300 * len(self.processes) or any(
            seen.method == 'PATCH' and 'peering' not in seen.resource for seen in requests
        ):
            counts = collections.Counter((seen.method, seen.resource) for seen in requests)
            flaws.append(f'{len(requests)} requests at rest: {counts}')
        if self.ledger.calls != calls:
            flaws.append(f'{self.ledger.calls - calls} calls of handlers at rest')
        return flaws

    async def _check_memory(self):
        """Check that nothing is left of objects that do not exist; dead processes cannot clean up."""
        if len(self.processes) != 1 or self._started != 1 + len(self._stopped_at):
            return
        await asyncio.sleep(max(0.0, max(self._stopped_at, default=0) + LONGEST_TIMER - self.clock.now))
        await asyncio.sleep(self.options.consistency_timeout)  # the timers of the last deletions
        if self.options.forbidding:
            await asyncio.sleep(1.5 * FORBIDDEN_BACKOFF)  # a watch that was refused learns of deletions only then
        asyncio.get_running_loop().forget_cancelled()  # such as time-outs of requests, in contexts of handlers
        gc.collect()
        live = {body['metadata']['uid'] for body in await self.cluster.list()}
        records = [each for each in gc.get_objects() if isinstance(each, ObjectRecord)]
        # Those that expect an echo are kept until the stream has reached it; without bookmarks, that can take long.
        dead = [each for each in records if each.uid in self.cluster.known and each.uid not in live]
        dead = [each for each in dead if each.expected is None]
        timers, tasks = len(asyncio.get_running_loop()._scheduled), len(asyncio.all_tasks())
        if dead or timers > 400 or tasks > 150:
            self.ledger.fault(f'left: {dead} of {len(records)} records, {timers} timers, {tasks} tasks')


class _NoMonitor:
    """Instead of the monitor of blocked loops, which has a thread, and a real clock."""

    def __init__(self, *args):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        pass


class _Log(logging.Handler):
    """The log of all operators; some messages are faults by themselves, others excuse what follows."""

    def __init__(self, ledger, level):
        super().__init__(level)
        self._ledger = ledger

    def __enter__(self):
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(self.level)
        logging.getLogger('asyncio').setLevel(logging.WARNING)

    def __exit__(self, *exc_info):
        logging.getLogger().removeHandler(self)

    def emit(self, record):
        process = processes.current.get(None)
        if process is not None and process.dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        text, name = record.getMessage(), (getattr(record, 'k8s_ref', None) or {}).get('name', '')
        trace = ''.join(traceback.format_exception(error)) if error is not None else ''
        self._ledger.note(f'{process or "-"} {record.levelname[0]} {record.name} {name} {text[:500]} {trace}'.rstrip())
        self._judge(record, text, name, error)

    def _judge(self, record, text, name, error):
        if "can't be stored" in text or 'its handlers are run again' in text:
            self._ledger.excuse()
        if 'Leaving it orphaned' in text:
            self._ledger.orphaned.add(name)
        expected = error is not None and any(each in repr(error) for each in ('Storage', 'API', 'flaky'))
        if (
            (record.levelno >= logging.ERROR and record.name == 'asyncio')
            or 'processing has failed' in text
            or 'has failed unexpectedly' in text
            or 'does not come to rest' in text
            or ('unexpected error' in text and error is not None and not expected)
        ):
            location = traceback.format_tb(error.__traceback__)[-1] if isinstance(error, Exception) else ''
            self._ledger.fault(f'logged: {text} {location}')
