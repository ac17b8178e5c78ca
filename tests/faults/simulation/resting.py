"""What must hold when everything has come to rest: nothing is lost, nothing is left, and no object waits."""

import re

from kopf._core.intents.causes import Reason
from tests.faults.simulation import applying, electing, storages
from tests.faults.simulation.ledger import PARTS, look_at

STACKED = ('s', 'sw', 'sa', 'sf')
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


class Rest:
    """
    The state of a run at rest.

    Args:
        simulation: the run.
        bodies: the objects of the cluster.
        twins: the objects of the second kind.
        children: the ConfigMaps and secrets of the cluster.
    """

    def __init__(self, simulation, bodies, twins, children):
        self._simulation, self._cluster = simulation, simulation.cluster
        self._ledger, self._options = simulation.ledger, simulation.options
        self._bodies = {body['metadata']['uid']: body for body in bodies}
        self._twins = {body['metadata']['uid']: body for body in twins}
        self._children = children
        self._boss = electing.find_boss(simulation)
        index = {} if self._boss is None else self._boss.indexers.indices.get('ix') or {}
        self._index = {uid: list(values) for uid, values in index.items()}
        indices = {} if self._boss is None else self._boss.indexers.indices
        self._odd = {name: indices.get(name) or {} for name in ('again', 'never', 'twice')}
        self._flaws = []

    def find_flaws(self):
        """Return what is wrong."""
        if self._boss is None:
            return ['no operator works']
        boss = self._boss
        for uid, body in {**self._bodies, **self._twins}.items():
            self._name = f'{body["metadata"].get("namespace")}/{body["metadata"]["name"]} {uid}'
            self._served = self._cluster.is_served(body)
            self._boss = electing.find_boss(self._simulation, body)
            if self._boss is None:
                self._boss = boss
                self._tell('no operator handles it')
            elif uid in self._bodies:
                self._check_object(uid, body)
            elif self._served:
                self._check_twin(body)
        self._name, self._boss = 'the operator', boss
        self._check_absent()
        if self._ledger.now - max(self._ledger.schedules.values(), default=0) > 3 and self._age > 5:
            self._tell('its schedule does not run')
        return self._flaws

    @property
    def _age(self):
        return self._ledger.now - self._boss.started

    def _tell(self, text):
        self._flaws.append(f'{self._name}: {text}')

    def _check_object(self, uid, body):
        deleting, seen = 'deletionTimestamp' in body['metadata'], look_at(body)
        self._check_index(uid, seen)
        self._check_events(uid, seen, deleting)
        self._check_late(uid, seen, deleting)
        if deleting:
            if self._options.managing and self._served and FINALIZER in body['metadata'].get('finalizers', ()):
                self._tell('it is still being deleted')
            return
        if self._options.levels:
            self._check_level(uid, body, seen)
        if self._options.applying and self._served:
            self._check_applied(body)
        if not self._options.managing:
            return
        if self._options.spawning:
            self._check_daemons(uid, body)
            self._check_timers(uid, seen)
        if self._served:
            self._check_state(uid, body)
            if self._options.pruning:
                self._check_newest(uid, seen)
            elif not self._ledger.restored:
                self._check_runs(uid, seen)
                self._check_effects(uid, body)

    def _check_twin(self, body):
        if 'deletionTimestamp' in body['metadata']:
            self._tell('it is still being deleted')
        else:
            self._check_applied(body)

    def _check_index(self, uid, seen):
        if self._options.indexing and self._served and self._index.get(uid) != [seen[0]]:
            self._tell(f'the index has {self._index.get(uid)} instead of {seen[0]}')
        if self._options.indexing and not self._served and uid in self._index:
            self._tell('it is in the index, but it is not served')
        if self._options.indexing and self._options.odd:
            self._check_odd_indices(uid, seen)

    def _check_odd_indices(self, uid, seen):
        for name, index in self._odd.items():
            values = list(index.get(uid, ()))
            allowed = [[seen[0]]] if self._served else [[]]
            allowed += [[]] if name != 'again' else []
            if values not in allowed:
                self._tell(f'the index {name} has {values} instead of {seen[0]}')

    def _check_events(self, uid, seen, deleting):
        if not self._served:
            return
        type_, process_id, last = self._ledger.events.get(uid, ('DELETED', None, None))
        if type_ == 'DELETED':
            self._tell('no event of it')
        elif not deleting and process_id == self._boss.id and last != seen:
            self._tell(f'the last event has shown {last} instead of {seen}')

    def _check_late(self, uid, seen, deleting):
        """Check what the handlers have done that were declared while the operator was running."""
        boss, now = self._boss, self._ledger.now
        for id, (kind, since) in () if deleting or not self._served else boss.handlers.late.items():
            at, last = self._ledger.late.get((boss.id, id, uid), (0, None))
            # What was edited before the operator has seen the object is a part of its creation.
            begun = max(since, self._ledger.created_at.get(uid, 0)) + 5
            edits = [(when, each[0]) for when, each in self._ledger.history[uid]]
            first = [value for when, value in edits if when <= begun][-1:] or [value for _, value in edits[:1]]
            if kind == 'index' and not list((boss.indexers.indices.get(id) or {}).get(uid, ())):
                self._tell(f'it is not in the late index {id}')
            elif kind == 'timer' and (now - at > 4 or last != seen):
                self._tell(f'the late timer {id} has run at {at:.3f} with {last} instead of {seen}')
            elif kind in ('event', 'level') and last != seen:
                self._tell(f'the late handler {id} ({kind}) has seen {last} instead of {seen}')
            elif kind in ('update', 'field') and (self._options.electing or self._ledger.restored):
                # Another member, which does not have the handler, can have handled the edits; and a back-up takes edits
                # back together with the record of them.
                continue
            elif kind in ('update', 'field') and (
                (last is not None and last[0] != seen[0]) or (last is None and first and first != [seen[0]])
            ):
                self._tell(f'the late handler {id} ({kind}) has seen {last} instead of {seen}')
            elif kind == 'daemon' and (boss.id, id, uid) not in self._ledger.late_daemons:
                self._tell(f'the late daemon {id} does not run')

    def _check_level(self, uid, body, seen):
        last, others, process_id, at = self._ledger.levels.get(uid, (None, (), None, 0))
        if not self._served:
            if at > self._simulation.rested_since + 30:
                self._tell('its level-triggered handler runs, but it is not served')
            return
        if last != seen:
            self._tell(f'its level-triggered handler has seen {last} instead of {seen}')
        if self._boss.id not in self._ledger.leveled_by[uid]:
            self._tell(f'its level-triggered handler was not called by {self._boss}')
        expected = self._find_children(uid, body['metadata']) if self._options.children else ()
        if others != expected:
            self._tell(f'its level-triggered handler has seen the children {others} instead of {expected}')

    def _check_applied(self, body):
        subresource = self._options.status_subresource
        for flaw in applying.find_flaws(body, self._ledger, self._children, self._options, subresource):
            self._tell(flaw)

    def _find_children(self, uid, meta):
        served = {'ns-0', 'ns-1'} if self._options.scope == 'specific' else None
        found = []
        for body in self._children:
            other = body['metadata']
            labels, version = other.get('labels') or {}, (other.get('labels') or {}).get('v', '')
            used = labels.get('used-by') == meta['name'] and other['namespace'] == meta['namespace']
            owned = any(owner['uid'] == uid for owner in other.get('ownerReferences') or ())
            owned = owned and body['kind'] == 'ConfigMap'  # the handler does not own the secrets of others
            if (used or owned) and (served is None or other['namespace'] in served):
                found.append(f'{other["name"]}={version}')
        return tuple(sorted(found))

    def _check_daemons(self, uid, body):
        labels, few = body['metadata'].get('labels') or {}, self._options.daemon_threads < 100
        for kind, label in (('async', 'd'), ('sync', 'sd')):
            expected = int(self._served and labels.get(label) == 'on')
            count = len(self._ledger.daemons[kind, uid])
            if count != expected and not (kind == 'sync' and few and count <= expected):
                self._tell(f'{count} daemons ({kind}) instead of {expected}')

    def _check_timers(self, uid, seen):
        for id, limit in (('tick', 1.5), ('both', 2.2), ('sharp', 2.1)):
            at, value = self._ledger.ticks.get((id, uid), (-1000, None))
            if self._served and (self._ledger.now - at > limit or value != seen[0]):
                self._tell(f'the timer {id} has run at {at:.3f} with {value} instead of {seen[0]}')
            elif not self._served and self._ledger.now - at < 1.2:
                self._tell(f'the timer {id} goes on, but it is not served')
        if self._options.odd and self._served:
            self._check_odd_timers(uid, seen)
        if self._served and self._ledger.ticks.get(('idle', uid), (0, None))[1] != seen[0]:
            self._tell(f'the timer idle has seen {self._ledger.ticks.get(("idle", uid))} instead of {seen[0]}')

    def _check_odd_timers(self, uid, seen):
        for id, limit in (('odd', 1.6), ('drawn', 1.7)):
            at, value = self._ledger.ticks.get((id, uid), (-1000, None))
            if self._ledger.now - at > limit or value != seen[0]:
                self._tell(f'the timer {id} has run at {at:.3f} with {value} instead of {seen[0]}')
        if self._ledger.ticks.get(('patient', uid), (0, None))[1] != seen[0]:
            self._tell(f'the timer patient has seen {self._ledger.ticks.get(("patient", uid))} instead of {seen[0]}')

    def _check_state(self, uid, body):
        storage = self._simulation.storage
        handled = storages.find_handled(storage, body)
        if self._options.pruning:
            return
        if not handled or handled.get('spec') != body['spec']:
            self._tell(f'the last handled state is {handled}')
        # The records of handlers that do not exist any more stay, as the operator cannot know whose they are.
        progress = storages.find_progress(storage, body, self._simulation.records)
        if left := [key for key in progress if not self._boss.handlers.absent.intersection(re.split('[/.:]', key))]:
            self._tell(f'progress is left: {left}')
        if 'd1' not in self._boss.handlers.absent and FINALIZER not in body['metadata'].get('finalizers', ()):
            self._tell('it has no finalizer')

    def _check_newest(self, uid, seen):
        """Check that any handler has seen the newest state: without a stored state, edits are creations."""
        if self._simulation.dropped & {'c1', 'u'}:
            return
        runs = [run for id in ('c1', 'u') for run in self._ledger.runs[uid, id]]
        if not runs or max(runs, key=lambda run: run.ended).seen != seen:
            self._tell(f'its newest state was not handled: {seen}')

    def _check_runs(self, uid, seen):
        runs, ledger = self._ledger.runs, self._ledger
        # Sub-handlers count, too: the first success of any handler decides where the update after the creation begins.
        ids = ['c1', 'c2', 'fa', 'fc', 'fp', 'p', *STACKED, *(f'p/{item}' for item in ledger.subhandlers[uid])]
        creations = [run for id in ids for run in runs[uid, id] if run.reason == Reason.CREATE]
        dropped = self._simulation.dropped
        for id in {'c1', 'c2'} - dropped:
            if not any(run.reason == Reason.CREATE for run in runs[uid, id]):
                self._tell(f'its creation has never got to {id}')
        bases = []
        for run in sorted(creations, key=lambda run: run.ended):
            bases.append(run.seen)
            if run.stored and not ledger.excused:
                break
        updating = [('u', 'all'), ('ua', 'a'), ('ub', 'b'), ('ul', 'labels'), ('fa', 'a')]
        if dict(seen[3]).get('w') == 'on':
            updating.append(('uw', 'all'))
        if self._options.fleeting:
            updating += [(id, 'c') for id in ('fc', 'uc', 'fp')]
        for id, part in updating:
            if id in dropped:
                continue
            self._check_updates(uid, id, PARTS[part], seen, bases)
        for id in ('s', 'sa') if self._options.stacking else ():
            if id not in dropped:
                self._check_newest_run(uid, id, seen)
        for item in seen[2]:
            if 'p' not in dropped and item not in ledger.subhandlers[uid]:
                self._tell(f'the sub-handler of {item} has never succeeded')
        self._check_resumed(uid)

    def _check_newest_run(self, uid, id, seen):
        """Check that a function for all changes has seen the newest state."""
        runs = self._ledger.runs[uid, id]
        lost = runs and not runs[-1].stored and (runs[-1].process.dead or self._ledger.excused)
        part = PARTS['a' if id == 'sa' else 'all']
        if not lost and (not runs or part(runs[-1].seen) != part(seen)):
            self._tell(f'{id} has seen {runs[-1].seen if runs else None} instead of {seen}')

    def _check_effects(self, uid, body):
        """Check that the object has what its handlers have put into it before their success was stored."""
        for id in {id for at, id in self._ledger.runs if at == uid}:
            runs = [run for run in self._ledger.runs[uid, id] if run.effects]
            since = max((at for at, run in enumerate(runs) if run.stored), default=len(runs))
            for stanza, name in runs[since].effects if since < len(runs) else ():
                value = (body.get(stanza) or {}).get(name)
                # What was done later can be stored, too, although the response was lost.
                expected = [run.effects[stanza, name] for run in runs[since:] if (stanza, name) in run.effects]
                if str(value) not in map(str, expected):
                    self._tell(f'{stanza}.{name} is {value} instead of {expected}')

    def _check_resumed(self, uid):
        """Check that the resuming handler was called, unless this had to be for a change that others had begun."""
        late = self._boss.started > self._ledger.created_at.get(uid, 1e9) + 4
        if not late or 'r' in self._simulation.dropped or self._options.selecting or self._options.limited:
            return
        runs = [run for (at, _), runs in self._ledger.runs.items() if at == uid for run in runs]
        mine = [run for run in runs if run.process is self._boss]
        # While a creation goes on, the object is new to each operator.
        created = any(run.reason == 'create' and run.ended > self._boss.started for run in mine)
        if not created and not any(run in mine for run in self._ledger.runs[uid, 'r']):
            self._tell(f'it was not resumed by {self._boss}')

    def _check_updates(self, uid, id, part, seen, bases):
        runs = [
            run for run in self._ledger.runs[uid, id] if id in ('fa', 'fc', 'fp') or run.reason in ('update', 'resume')
        ]
        # An edit that was reverted is known only by the record of its handler.
        lost = runs and not runs[-1].stored and (runs[-1].process.dead or self._ledger.excused)
        if runs and runs[-1].value != part(seen) and not lost:
            self._tell(f'{id} has missed an update: it has seen {runs[-1].value} instead of {part(seen)}')
        if not runs and bases and all(part(base) != part(seen) for base in bases):
            self._tell(f'{id} has never seen an update: from {part(bases[0])} to {part(seen)}')

    def _check_absent(self):
        """Check what there is of objects that do not exist any more."""
        ledger, live = self._ledger, self._bodies
        for uid in self._index:
            if uid not in live:
                self._tell(f'the index has {uid}, which does not exist')
        for child in self._children:
            # The finalizer for remote children is removed by force, too: then, they stay.
            if owners := applying.find_owners(child).difference(live, self._twins, self._cluster.forced):
                self._tell(f'the child {child["metadata"]["name"]} of {owners}, which do not exist')
        for (kind, uid), crowd in ledger.daemons.items():
            if crowd and uid not in live:
                self._tell(f'daemons ({kind}) of {uid}, which does not exist: {crowd}')
        for uid, crowd in ledger.running.items():
            if crowd:
                self._tell(f'handlers of {uid} are running: {crowd}')
        for (id, uid), (at, _) in ledger.ticks.items():
            if uid not in live and ledger.now - at < 1.2:
                self._tell(f'the timer {id} goes on for {uid}, which does not exist')
        shared = self._options.peering or self._options.electing  # another operator can have received the event
        for uid, (type_, process_id, _) in ledger.events.items():
            if uid not in live and type_ != 'DELETED' and process_id == self._boss.id and not shared:
                self._tell(f'no deletion event of {uid}')
        if self._options.managing and not ledger.restored and 'd1' not in self._simulation.dropped:
            self._check_deletions()

    def _check_deletions(self):
        for uid, body in self._cluster.known.items():
            gone = uid not in self._bodies and uid not in self._cluster.forced and self._cluster.is_served(body)
            created = any(run.reason == Reason.CREATE for run in self._ledger.runs[uid, 'c1'])
            if gone and created and not any(run.reason == Reason.DELETE for run in self._ledger.runs[uid, 'd1']):
                self._tell(f'the deletion of {uid} was not handled')
