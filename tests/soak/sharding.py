"""
Members of one operator, as processes with real signals: each object is handled by exactly one, whatever happens.

The members share the objects by shards. Objects are edited all the time. In each round, something happens to one of
the members: it is killed, frozen, ended, or cut off; another one is started, or one is ended for good; or Leases are
deleted. In the end, all edits must be handled, the handlers of one object must never have run in two members at once,
no late write may have landed, and no bucket may have been without a working holder for longer than `duration` and two
seconds.

    python -m tests.soak.sharding --rounds=20 --members=3 --seed=1 --sandbox

Without --sandbox, it takes the control plane of $KUBECONFIG, or starts one, which needs Go. The exit code is 0 if
everything is as it must be.
"""

import contextlib
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
from kubeapi import ApiError, wait  # noqa: E402
from partitions import sleep_until  # noqa: E402

from kopf._core.engines.shard_leases import decode_member  # noqa: E402

BUCKETS = 64
GROUP = 'soak'
SAMPLING = 0.1
"""How often the Leases are looked at (in seconds)."""
MAX_MEMBERS = 6


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
    actions = ('kill', 'grow', 'end', 'freeze', 'shrink', 'cut', 'lease')
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
                    for bucket in report.held:
                        if found.setdefault(bucket, identity) != identity:
                            doubles.add((bucket, *sorted((found[bucket], identity))))
        for bucket, *pair in doubles - self.doubles:
            self.errors.append(f'bucket {bucket} is held by {" and by ".join(pair)} at {now:.3f}')
        self.doubles |= doubles
        return found

    def sample(self) -> None:
        """Look at the Leases until stopped."""
        former: dict[int, str] = {}
        while not self.stop.wait(SAMPLING):
            with contextlib.suppress(OSError, ApiError):
                holders, now = self.find_holders(), time.monotonic()
                self.moved += sum(former.get(bucket, holder) != holder for bucket, holder in holders.items())
                former |= holders
                for bucket in holders:
                    self.gaps.append(now - self.owned_at.get(bucket, now))
                    self.owned_at[bucket] = now

    def is_balanced(self) -> bool:
        """Check whether the wanted members hold all buckets, evenly."""
        holders = self.find_holders()
        counts = [list(holders.values()).count(each.identity) for each in self.members if each.is_working]
        return sum(counts) == BUCKETS and max(counts) - min(counts) <= 1

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
        return victim.name, self.limit

    def _do_end(self, victim: Member) -> tuple[str, float]:
        """End it; its last handlers can take some time, in which it still holds its buckets."""
        victim.process.send_signal(signal.SIGTERM)
        # Not `wait` of the process: `sample` asks for its state meanwhile, in another thread.
        wait(lambda: victim.process.poll() is not None, 'the member to end')
        victim.deaths[victim.process.pid] = time.monotonic()
        return victim.name, GRACE + SAMPLING * 3

    def _do_freeze(self, victim: Member) -> tuple[str, float]:
        began = time.monotonic()
        victim.process.send_signal(signal.SIGSTOP)
        victim.is_frozen = True
        sleep_until(began + self.duration * 4 / 3)
        victim.process.send_signal(signal.SIGCONT)
        victim.is_frozen = False
        victim.frozen.append((began, time.monotonic()))
        return victim.name, self.limit

    def _do_cut(self, victim: Member) -> tuple[str, float]:
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
        spare.is_wanted = True
        spare.start()
        wait(self.is_balanced, 'the new member to get its part', timeout=self.duration * 2 + 30)
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
            f'buckets moved, at most {self.worst:.2f} s without a holder'
        )


if __name__ == '__main__':
    sys.exit(main(ShardingSoak, __doc__, members=(3, "how many members there are at first")))
