"""Judging a soak: what the operators have written down, compared with what the cluster has, and how they have grown.

Every function gives the violations it has found, in words; none is good.
"""

import collections
import itertools
import json
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
Body = Mapping[str, Any]

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
OURS = 'kopf.zalando.org/'
HANDLERS = ('slow', 'threaded')
WARMING_UP = 300
"""How many samples tell nothing about the memory: there is one a second."""

GROWTH = 0.02
"""By which part the memory may grow in the second half: it comes and goes with connections, so it is never the same."""


def read(path: pathlib.Path) -> list[Line]:
    """Read what the operators have written down."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_handled(body: Body) -> bool:
    """Check whether the object is at rest: its last state is handled, and nothing is going on."""
    annotations = body['metadata'].get('annotations') or {}
    last = json.loads(annotations.get(LAST_HANDLED, 'null'))
    return (
        last is not None
        and last.get('spec') == body['spec']
        and not [key for key in annotations if key.startswith(OURS) and key != LAST_HANDLED]
    )


def find_unhandled(lines: Iterable[Line], bodies: Iterable[Body]) -> Iterator[str]:
    """Yield the objects that are there, and some handler has not seen their last state."""
    seen = {(line['uid'], line['event'].partition('/')[0], line['value']) for line in lines if 'value' in line}
    for body in bodies:
        name, uid, value = body['metadata']['name'], body['metadata']['uid'], body['spec'].get('value')
        if not is_handled(body):
            yield f"{name} is not at rest with the value {value}: {body['metadata'].get('annotations')}"
        for handler in HANDLERS:
            if (uid, handler, value) not in seen:
                yield f"{name} with the value {value} was not seen by {handler!r}"


def find_repeated(lines: Iterable[Line]) -> Iterator[str]:
    """Yield what has succeeded twice for the same state of the same object."""
    counts = collections.Counter(
        (line['uid'], line['name'], line['event'], line.get('value')) for line in lines if line['event'] != 'daemon'
    )
    for (_, name, event, value), count in counts.items():
        if count > 1:
            yield f"{name}: {event} with the value {value} has succeeded {count} times"


def find_undeleted(lines: Iterable[Line], deleted: Mapping[str, str]) -> Iterator[str]:
    """Yield the objects (names by uids) that had the finalizer and are gone without their deletion being handled."""
    seen = {line['uid'] for line in lines if line['event'] == 'gone'}
    yield from (f"{name} is deleted, but that was not handled" for uid, name in deleted.items() if uid not in seen)


def find_overlaps(lines: Iterable[Line]) -> Iterator[str]:
    """When two operators have worked on the same object at the same time."""
    by_uid = collections.defaultdict(list)
    for line in lines:
        by_uid[line['uid']].append(line)
    for group in by_uid.values():
        group.sort(key=lambda line: line['began'])
        for one, two in itertools.combinations(group, 2):
            if one['operator'] != two['operator'] and two['began'] < one['ended'] and one['began'] < two['ended']:
                yield (
                    f"{one['name']}: {one['event']} of {one['operator']} until {one['ended']:.3f}, "
                    f"{two['event']} of {two['operator']} since {two['began']:.3f}"
                )


def find_growth(samples: Sequence[int]) -> Iterator[str]:
    """Check whether the memory (in bytes) grows in the second half: from the middle fifth to the last one."""
    if len(samples) < WARMING_UP:
        return
    before, after = measure_growth(samples)
    if after > before * (1 + GROWTH):
        yield f"the memory has grown from {before / 2**20:.1f} MB to {after / 2**20:.1f} MB in the second half"


def measure_growth(samples: Sequence[int]) -> tuple[float, float]:
    """Return the memory in the middle and in the end (in bytes): medians of fifths, as it goes up and down."""
    fifth = len(samples) // 5
    return statistics.median(samples[fifth * 2 : fifth * 3]), statistics.median(samples[fifth * 4 :])
