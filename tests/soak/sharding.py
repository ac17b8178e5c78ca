"""
Members of one operator, as processes with real signals: each object is handled by exactly one, whatever happens.

The members share the objects by shards. Objects are edited all the time. In each round, something happens to one of
the members: it is killed, frozen, ended, or cut off, or its requests are delayed; another one is started, or one is
ended for good; Leases are deleted or edited; or the API is down for all. In the end, all edits must be handled, the
handlers of one object must never have run in two members at once, no late write may have landed, and no bucket may have
been without a working holder for longer than `duration` and two seconds. A further member moves only its own share. Now
and then, `kopf shards` must show who holds how many buckets.

    python -m tests.soak.sharding --rounds=20 --members=3 --seed=1 --sandbox

Without --sandbox, it takes the control plane of $KUBECONFIG, or starts one, which needs Go. The exit code is 0 if
everything is as it must be.
"""

import contextlib
import json
import math
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / 'cluster')]

from election import GRACE, RESPITE, Replica, Round, Soak, main  # noqa: E402
from forkserver import run_process  # noqa: E402
from kubeapi import ApiError, wait  # noqa: E402
from partitions import sleep_until  # noqa: E402

from kopf._core.engines.shard_leases import decode_member  # noqa: E402

BUCKETS = 64
GROUP = 'soak'
SAMPLING = 0.1
"""How often the Leases are looked at (in seconds)."""
MAX_MEMBERS = 6
SHOWING = 5
"""In which rounds `kopf shards` is called: it waits to see who renews, as the clocks differ."""


class Member(Replica):
    """One member; the Lease of each of its processes has another identity."""

    options = ('--shards', 'auto')

    def __init__(self, soak: 'ShardingSoak', number: int) -> None:
        super().__init__(soak, number)
        self.is_wanted = False
        """Whether it is started anew when it has ended."""
        self.is_cut = False
        self.is_frozen = False

    @property
    def identity(self) -> str:
        """The first part of the identity of the current process."""
        return f'{self.name}-{self._starts}'

    def find_environment(self) -> dict[str, str]:
        return {'POD_NAME': self.identity}

    @property
    def is_working(self) -> bool:
        """Return whether the process can work now."""
        return self.operator is not None and self.process.poll() is None and not self.is_cut and not self.is_frozen

    def revive(self) -> None:
        if self.is_wanted and (self.operator is None or self.process.poll() is not None):
            if self.operator is not None:
                self.deaths.setdefault(self.process.pid, time.monotonic())
            self.start()

    def end(self) -> None:
        if self.operator is not None and self.process.poll() is None:
            super().end()


class ShardingSoak(Soak):
    """The members, and what is known of them."""

    replica_class = Member
    count = MAX_MEMBERS
    title = 'sharding'
    actions = ('kill', 'grow', 'end', 'freeze', 'shrink', 'cut', 'lease', 'delay', 'outage', 'conflict')
    objects = 24

    def __init__(self, *args: Any, members: int = 3, **options: Any) -> None:
        super().__init__(*args, **options)
        self.members: list[Member] = list(self.replicas.values())  # type: ignore[arg-type]
        for member in self.members[:members]:
            member.is_wanted = True
        self.owned_at: dict[int, float] = {}  # when each bucket was last held by a working member
        self.gaps: list[float] = []  # how long buckets were without one, in the current round
        self.worst = 0.0
        self.doubles: set[tuple[Any, ...]] = set()  # the buckets that were held by two members, by their Leases
        self.moved = 0
        self.shown = 0  # how often the command has shown the members
        self.growths: dict[int, int] = {}  # the most buckets that have moved, by the number of members afterwards
        self.lost_terms: set[str] = set()  # of members that were frozen or cut off for longer than they may work
        self.renewals: dict[str, tuple[str, float]] = {}  # by identities: the last one, and when it was first seen

    # The Leases.

    def find_holders(self) -> dict[int, str]:
        """Return the working holders of buckets, by what their Leases say."""
        found: dict[int, str] = {}
        working = {member.identity for member in self.members if member.is_working}
        now = time.monotonic()
        doubles: set[tuple[Any, ...]] = set()
        for body in self.api.items('coordination.k8s.io/v1', 'Lease', self.namespace):
            identity = (body['spec'].get('holderIdentity') or '').partition('_')[0]
            annotation = (body['metadata'].get('annotations') or {}).get('kopf.dev/shard')
            renewal = body['spec'].get('renewTime')
            if self.renewals.get(identity, ('', 0.0))[0] != renewal:
                self.renewals[identity] = renewal, now
            # Not the Lease of a process that was frozen or cut off, before it has noticed that.
            is_silent = now > self.renewals[identity][1] + self.duration * 2 / 3
            if identity in working and annotation and not is_silent:
                with contextlib.suppress(ValueError):
                    report = decode_member(body['metadata']['name'], annotation).report
                    # A renewal of a lost term can still come, but this member does not handle anything any more.
                    for bucket in report.held if report.member not in self.lost_terms else ():
                        if found.setdefault(bucket, identity) != identity:
                            doubles.add((bucket, *sorted((found[bucket], identity))))
        for bucket, *pair in doubles - self.doubles:
            self.errors.append(f'bucket {bucket} is held by {" and by ".join(pair)} at {now:.3f}')
        self.doubles |= doubles
        return found

    def end_terms(self, *members: Member) -> None:
        """Called before these members are frozen or cut off: they go on as other members."""
        identities = {member.identity for member in members}
        for body in self.api.items('coordination.k8s.io/v1', 'Lease', self.namespace):
            if (body['spec'].get('holderIdentity') or '').partition('_')[0] in identities:
                name, annotation = body['metadata']['name'], body['metadata'].get('annotations', {})
                self.lost_terms.add(decode_member(name, annotation.get('kopf.dev/shard')).report.member)

    def sample(self) -> None:
        """Look at the Leases until stopped."""
        former: dict[int, str] = {}
        while not self.stop.wait(SAMPLING):
            with contextlib.suppress(OSError, ApiError):
                holders, now = self.find_holders(), time.monotonic()
                self.moved += sum(former.get(bucket, holder) != holder for bucket, holder in holders.items())
                former |= holders
                if not any(member.is_working for member in self.members):
                    self.owned_at = dict.fromkeys(range(BUCKETS), now)  # the time counts from the next one
                for bucket in holders:
                    self.gaps.append(now - self.owned_at.get(bucket, now))
                    self.owned_at[bucket] = now

    def count_buckets(self) -> dict[str, int]:
        """Return how many buckets each member holds."""
        holders = list(self.find_holders().values())
        return {each.identity: holders.count(each.identity) for each in self.members if each.is_working}

    def is_balanced(self) -> bool:
        """Check whether the wanted members hold all buckets, evenly."""
        counts = self.count_buckets().values()
        return sum(counts) == BUCKETS and max(counts) - min(counts) <= 1

    def check_command(self) -> None:
        """Check that `kopf shards` shows the working members with their buckets, although their clocks differ."""
        command = ['kopf', 'shards', '--namespace', self.namespace, '--json', GROUP]
        done = run_process(command, env={**os.environ, 'KUBECONFIG': self.kubeconfig})
        [group] = json.loads(done.stdout) if not done.returncode else [{'members': [], 'unowned': 'all'}]
        # Killed members are shown until their Leases are deleted.
        members = [each for each in group['members'] if not each['silent']]
        counts, shown = self.count_buckets(), {each['identity'].partition('_')[0]: each['count'] for each in members}
        if counts == shown and not group['unowned']:
            self.shown += 1
        else:
            self.errors.append(f'kopf shards shows {shown} instead of {counts}: {done.stderr[-200:]}')

    # The rounds.

    def begin(self, stack: ExitStack) -> None:
        for member in self.members:
            stack.enter_context(member.link)
            stack.callback(member.end)
            member.revive()
        wait(self.is_balanced, 'the members to share the buckets', timeout=60)
        thread = threading.Thread(target=self.sample)
        thread.start()
        stack.callback(thread.join)

    def rest(self) -> None:
        for member in self.members:
            member.revive()
        wait(self.is_balanced, 'the members to share the buckets', timeout=self.duration * 4 + 30)
        if len(self.rounds) % SHOWING == 1:
            self.check_command()
        time.sleep(self.chances.uniform(0.5, 1))

    def play(self, number: int, action: str) -> Round:
        victim = self.chances.choice([member for member in self.members if member.is_working])
        time.sleep(self.chances.uniform(0, self.duration * 2 / 15))  # at any moment between two renewals
        self.gaps.clear()
        name, limit = getattr(self, f'_do_{action}')(victim)
        wait(
            lambda: len(self.find_holders()) == BUCKETS,
            f'all buckets to be held in round {number}, after {action}',
            timeout=self.duration * 3 + 30,
        )
        time.sleep(SAMPLING * 3)
        gap = max(self.gaps, default=0.0)
        self.worst = max(self.worst, gap)
        return Round(number, action, name, f'{sum(each.is_working for each in self.members)}', gap, limit)

    @property
    def limit(self) -> float:
        return self.duration + RESPITE

    def _do_kill(self, victim: Member) -> tuple[str, float]:
        victim.end()
        self._revive_the_last()
        return victim.name, self.limit

    def _revive_the_last(self) -> None:
        """Start the members that have ended, if no other one works; otherwise, they start after the round."""
        if not any(member.is_working for member in self.members):
            for member in self.members:
                member.revive()

    def _do_end(self, victim: Member) -> tuple[str, float]:
        """End it; its last handlers can take some time, in which it still holds its buckets."""
        victim.process.send_signal(signal.SIGTERM)
        # Not `wait` of the process: `sample` asks for its state meanwhile, in another thread.
        wait(lambda: victim.process.poll() is not None, 'the member to end')
        victim.deaths[victim.process.pid] = time.monotonic()
        is_last = not any(member.is_working for member in self.members)
        self._revive_the_last()
        return victim.name, self.limit if is_last else GRACE + SAMPLING * 3

    def _do_freeze(self, victim: Member) -> tuple[str, float]:
        self.end_terms(victim)
        began = time.monotonic()
        victim.process.send_signal(signal.SIGSTOP)
        victim.is_frozen = True
        sleep_until(began + self.duration * 4 / 3)
        victim.process.send_signal(signal.SIGCONT)
        victim.is_frozen = False
        victim.frozen.append((began, time.monotonic()))
        return victim.name, self.limit

    def _do_cut(self, victim: Member) -> tuple[str, float]:
        self.end_terms(victim)
        began = time.monotonic()
        with victim.link.refused():
            victim.is_cut = True
            sleep_until(began + self.duration * 4 / 3)
        victim.is_cut = False
        return victim.name, self.limit

    def _do_grow(self, victim: Member) -> tuple[str, float]:
        spare = next((member for member in self.members if not member.is_wanted), None)
        if spare is None:
            return self._do_shrink(victim)
        before = self.find_holders()
        spare.is_wanted = True
        spare.start()
        wait(
            lambda: self.count_buckets().get(spare.identity, 0) >= BUCKETS // self.count and self.is_balanced(),
            'the new member to get its part',
            timeout=self.duration * 2 + 30,
        )
        after, count = self.find_holders(), sum(member.is_working for member in self.members)
        moved = sum(after.get(bucket, holder) != holder for bucket, holder in before.items())
        self.growths[count] = max(self.growths.get(count, 0), moved)
        if moved > math.ceil(BUCKETS / count):
            self.errors.append(f'{moved} buckets of {BUCKETS} have moved to the member number {count}')
        return spare.name, GRACE + SAMPLING * 3

    def _do_shrink(self, victim: Member) -> tuple[str, float]:
        if sum(member.is_wanted for member in self.members) == 1:
            return self._do_grow(victim)
        victim.is_wanted = False
        return self._do_end(victim)

    def _do_lease(self, victim: Member) -> tuple[str, float]:
        """Delete the Lease of the group, or that of a member, which goes on and makes it anew."""
        names = [body['metadata']['name'] for body in self.api.items('coordination.k8s.io/v1', 'Lease', self.namespace)]
        name = self.chances.choice([GROUP, *names])
        with contextlib.suppress(ApiError):
            self.api.delete('coordination.k8s.io/v1', 'Lease', self.namespace, name)
        time.sleep(self.duration / 2)
        return name[-4:], self.limit

    def _do_delay(self, victim: Member) -> tuple[str, float]:
        """Hold its requests back, and deliver them late."""
        self.end_terms(victim)
        began = time.monotonic()
        with victim.link.held():
            victim.is_cut = True
            sleep_until(began + self.duration * 4 / 3)
        victim.is_cut = False
        return victim.name, self.limit

    def _do_outage(self, victim: Member) -> tuple[str, float]:
        """Cut all members off: without the API, none can hold anything, so the time counts from the end."""
        self.end_terms(*self.members)
        with ExitStack() as stack:
            for member in self.members:
                stack.enter_context(member.link.refused())
                member.is_cut = True
            time.sleep(self.duration * 4 / 3)
        self.gaps.clear()
        for member in self.members:
            member.is_cut = False
        return 'all', self.limit

    def _do_conflict(self, victim: Member) -> tuple[str, float]:
        """Write into the Leases as other clients, all the time: that must not end the membership."""
        until = time.monotonic() + self.duration / 2
        while time.monotonic() < until:
            for body in self.api.items('coordination.k8s.io/v1', 'Lease', self.namespace):
                patch = {'metadata': {'labels': {'edited': str(self.chances.randrange(10**6))}}}
                with contextlib.suppress(ApiError):  # it can be gone meanwhile
                    self.api.patch('coordination.k8s.io/v1', 'Lease', self.namespace, body['metadata']['name'], patch)
            time.sleep(self.chances.uniform(0, 0.3))
        return 'all', GRACE + SAMPLING * 3

    # The verdict.

    def find_late_writes(self) -> Iterator[str]:
        """Return the objects that have writes of handlers that began earlier than those of the writes before."""
        for name, states in self.states.items():
            for field in ('term', 'timer'):
                latest = 0.0
                for version, status in sorted(states, key=lambda pair: pair[0]):
                    began = float(status.get(field) or 0)
                    if began < latest:
                        yield f'{name}: version {version} has a {field} of {began:.3f}, after {latest:.3f}'
                    latest = max(latest, began)

    def summarize(self) -> str:
        counts = [line['event'] for line in self.ledger.read()]
        return (
            f'{len(self.rounds)} rounds, {self.edits} edits, {counts.count("begin")} calls of handlers, {self.moved} '
            f'buckets moved, at most {self.worst:.2f} s without a holder, {self.shown} times shown by kopf shards; '
            + ', '.join(f'{moved / BUCKETS:.1%} moved to member {count}' for count, moved in self.growths.items())
        )


if __name__ == '__main__':
    sys.exit(main(ShardingSoak, __doc__, members=(3, "how many members there are at first")))
