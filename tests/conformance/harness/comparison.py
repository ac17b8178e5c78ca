"""
The comparison of traces: what differs, and which differences fail a scenario.
"""

import difflib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.traces import counted

if TYPE_CHECKING:
    from harness.scenarios import Scenario


STRICT = ('journal', 'facts', 'objects', 'events', 'exits')


def lines(value: Any, path: str) -> Iterator[str]:
    """Yield a value as lines that tell their place each."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if isinstance(value, dict) and len(text) > 80:
        for key, item in sorted(value.items()):
            yield from lines(item, f'{path}.{key}')
    elif isinstance(value, list) and len(text) > 80:
        for item in value:
            yield from lines(item, f'{path}[]')
    else:
        yield f'{path} = {text}'


def lines_of(part: str, value: Any) -> list[str]:
    """Return a part of a trace as lines."""
    if part == 'journal':
        return [
            line
            for owner, notes in sorted(value.items())
            for note in notes
            for line in lines(
                {key: item for key, item in note.items() if key not in ('event', 'name')}, f"{owner}: {note['event']}"
            )
        ]
    if part == 'facts':
        return [line for label, item in value for line in lines(item, str(label))]
    if part == 'events':
        return [
            f"{item['object']}: {item['type']} {item['reason']} x{item['count']} {item['message']!r} "
            f"by {item['reporter']}"
            for item in value
        ]
    return list(lines(value, part))


def difference(part: str, golden: Any, actual: Any) -> list[str]:
    """Return what differs between two traces in one part."""
    return list(difflib.unified_diff(lines_of(part, golden), lines_of(part, actual), lineterm='', n=1))[2:]


def compare(golden: Any, actual: Any, scenario: 'Scenario') -> tuple[list[str], list[str]]:
    """Return the differences that fail the scenario, and those that are only worth a look."""
    failures: list[str] = []
    remarks: list[str] = []
    for part in STRICT:
        if golden[part] != actual[part]:
            failures.append(f'-- {part}:')
            failures.extend(difference(part, golden[part], actual[part]))
    if scenario.check_writes:
        expected, got = golden['writes'], actual['writes']
        if expected['effect'] != got['effect']:
            failures.append('-- net effect of the writes:')
            failures.extend(difference('effect', expected['effect'], got['effect']))
        allowed, done = counted(expected['list']), counted(got['list'])
        if len(done) > len(allowed) + scenario.slack:
            failures.append(f'-- {len(done)} write requests instead of {len(allowed)} at most')
            before, after = ([write_line(item) for item in side] for side in (allowed, done))
            failures.extend(list(difflib.unified_diff(before, after, lineterm='', n=1))[2:])
    if golden['logs'] != actual['logs']:
        before, after = ([f'{severity}: {text}' for severity, text in side['logs']] for side in (golden, actual))
        changes = [line for line in difflib.unified_diff(before, after, lineterm='', n=0) if line[:2] != '@@'][2:]
        (failures if scenario.strict_logs else remarks).extend(['-- logs:', *changes])
    return failures, remarks


def write_line(write: dict[str, Any]) -> str:
    return ' '.join(
        str(part)
        for part in (
            write['verb'],
            write['resource'],
            write.get('subresource', ''),
            write['name'],
            write['code'],
            json.dumps(write.get('body'), sort_keys=True)[:160],
        )
    )


def stable(traces: list[Any]) -> tuple[Any, list[str]]:
    """Merge the traces of several recordings, or fail where they differ."""
    first = traces[0]
    for other in traces[1:]:
        for part in STRICT:
            if first[part] != other[part]:
                return None, [f'unstable {part}:', *difference(part, first[part], other[part])]
        if first['writes']['effect'] != other['writes']['effect']:
            return None, [
                'unstable net effect:',
                *difference('effect', first['writes']['effect'], other['writes']['effect']),
            ]
    best = max(traces, key=lambda trace: trace['writes']['count'])
    return best, []
