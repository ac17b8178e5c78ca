"""
The trace of a scenario: everything that was seen in one run, in a form that can be compared.
"""

import collections
import json
import pathlib
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.api import ApiError
from harness.clusters import KNOWN, Cluster
from harness.masks import Mask

if TYPE_CHECKING:
    from harness.labs import Lab
    from harness.scenarios import Scenario


def describe_write(entry: dict[str, Any], mask: Mask) -> Any:
    """One write request, normalised."""
    ref, body = entry.get('objectRef', {}), entry.get('requestObject')
    group = ref.get('apiGroup', '')
    result = {
        'verb': entry['verb'],
        'resource': ref.get('resource', '') + (f'.{group}' if group else ''),
        'name': ref.get('name', ''),
        'code': entry.get('responseStatus', {}).get('code'),
    }
    if ref.get('subresource'):
        result['subresource'] = ref['subresource']
    if entry['verb'] == 'patch':
        result['type'] = 'json-patch' if isinstance(body, list) else 'merge-patch'
    if isinstance(body, dict) and isinstance(body.get('metadata'), dict):
        body = json.loads(json.dumps(body))
        if body['metadata'].get('annotations'):
            body['metadata']['annotations'] = mask.annotations(body['metadata']['annotations'])
    if isinstance(body, list):
        body = [{**op, 'value': 'RV'} if op.get('path') == '/metadata/resourceVersion' else op for op in body]
    for webhook in body.get('webhooks') or () if isinstance(body, dict) else ():
        webhook.get('clientConfig', {}).pop('caBundle', None)
    if entry['verb'] != 'delete':
        result['body'] = body
    return mask.any(result)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths of all leaves of nested dicts, with the leaves; an annotation is a leaf."""
    if (
        isinstance(value, dict)
        and (value or path in (('metadata',), ('metadata', 'annotations')))
        and not (len(path) == 3 and path[1] == 'annotations')
    ):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def counted(writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the writes that count: mere touches (to be woken up) and conflicts depend on timing."""
    return [
        write
        for write in writes
        if write['code'] not in (409, 422)
        and (
            write.get('type') != 'merge-patch'
            or any(not str(leaf[-1]).endswith(('dummy', '/touched')) for leaf, _ in leaves(write['body']))
        )
    ]


def net_effect(writes: list[dict[str, Any]], gone: set[str]) -> dict[str, Any]:
    """Return the fields that the operator has changed, whichever patches did it."""
    touched: dict[str, dict[tuple[str, ...], bool]] = {}
    created: list[list[Any]] = []
    for write in writes:
        key = f"{write['resource']}/{write['name']}"
        if (write['code'] or 500) >= 400:
            continue
        if write['verb'] == 'delete':
            created.append(['delete', key])
        elif write['verb'] == 'create':
            created.append(['create', write['resource'], write.get('body')])
        elif key in gone:
            continue
        elif write.get('type') == 'json-patch':
            for op in write['body']:
                path = tuple(part.replace('~1', '/').replace('~0', '~') for part in op['path'].split('/')[1:])
                cut = next((i for i, part in enumerate(path) if part == '-' or part.isdigit()), len(path))
                for leaf, _ in leaves(op.get('value'), path[:cut]):
                    touched.setdefault(key, {})[leaf] = op['op'] != 'test' and (op['op'] != 'remove' or cut < len(path))
        elif isinstance(write.get('body'), dict):
            for leaf, value in leaves(write['body']):
                mine = touched.setdefault(key, {})
                if value is None:
                    for other in [other for other in mine if other[: len(leaf)] == leaf]:
                        del mine[other]
                mine[leaf] = value is not None
    system = {
        ('metadata', 'finalizers'),
        ('metadata', 'resourceVersion'),
        ('kind',),
        ('apiVersion',),
        ('metadata', 'name'),
        ('metadata', 'namespace'),
        ('metadata', 'uid'),
    }
    return {
        'fields': {
            key: sorted(
                '.'.join(map(str, leaf))
                for leaf, kept in marks.items()
                if kept
                and leaf not in system
                and 'touch-dummy' not in str(leaf[-1:])
                and leaf[:3] != ('status', 'kopf', 'dummy')
            )
            for key, marks in sorted(touched.items())
            if any(kept and leaf not in system for leaf, kept in marks.items())
        },
        'created': sorted(created, key=lambda item: json.dumps(item, sort_keys=True)),
    }


def collect(cluster: 'Cluster', error: str | None) -> dict[str, Any]:
    """Everything seen in one run, normalised."""
    mask = Mask(cluster)
    journal: dict[str, list[Any]] = {}
    notes = cluster.notes()
    for note in notes:
        owner = str(note['facts'].get('name', '-')) if cluster.scenario.order != 'global' else '-'
        journal.setdefault(mask.text(owner), []).append(mask.note(note))
    if cluster.scenario.order == 'set':
        journal = {
            owner: sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) for owner, items in journal.items()
        }
    objects, gone = {}, set()
    for resource, name, ns in cluster.named:
        state = cluster.get(resource, name, ns=ns)
        key = mask.text(f'{cluster.fill(resource)}/{name}' + (f' in {ns}' if ns else ''))
        objects[key] = mask.object(state)
        if state is None:
            plural, *rest = cluster.fill(resource).split('.', 2)
            group = rest[1] if rest else KNOWN[plural][0]
            gone.add(mask.text(f'{plural}.{group}/{name}' if group else f'{plural}/{name}'))
    writes = [
        describe_write(entry, mask) for entry in cluster.writes() if 'peering' not in entry['objectRef']['resource']
    ]
    trace = {
        'journal': journal,
        'facts': mask.any(cluster.facts),
        'objects': objects,
        'exits': {op.name: op.exits for op in cluster.operators},
        'events': posted_events(cluster, mask) if cluster.scenario.events else [],
        'writes': {'count': len(writes), 'effect': net_effect(writes, gone), 'list': writes},
        'logs': sorted(
            [severity, mask.text(message)] for op in cluster.operators for severity, message in op.messages()
        ),
        'info': {
            'requests': len(cluster.requests()),
            'verbs': dict(sorted(collections.Counter(entry['verb'] for entry in cluster.requests()).items())),
            'seconds_to_first_note': round(notes[0]['time'] - cluster.epoch, 1) if notes else None,
            'seconds': round(time.monotonic() - cluster.started, 1),
        },
    }
    if error:
        trace['facts'].append(['the scenario failed', error])
    return trace


def posted_events(cluster: 'Cluster', mask: 'Mask') -> list[dict[str, Any]]:
    """Return the Kubernetes Events about this scenario's objects, with their counts."""
    counts: collections.Counter[str] = collections.Counter()
    for ns in (cluster.ns, 'default'):
        for item in cluster.items('events', ns=ns):
            target = item['involvedObject']
            if ns == 'default' and cluster.group not in target.get('apiVersion', ''):
                continue
            if item.get('source', {}).get('component') == 'job-controller':
                continue
            key = json.dumps(
                mask.any(
                    {
                        'type': item['type'],
                        'reason': item['reason'],
                        'message': item.get('message', ''),
                        'object': f"{target.get('kind')}/{target.get('name')}",
                        'reporter': item.get('reportingComponent') or item.get('source', {}).get('component'),
                    }
                ),
                sort_keys=True,
            )
            counts[key] += item.get('count') or 1
    return [{**json.loads(key), 'count': count} for key, count in sorted(counts.items())]


def perform(
    lab: 'Lab', scenario: 'Scenario', python: str | pathlib.Path, folder: str | pathlib.Path, keep: bool = False
) -> dict[str, Any]:
    """Run one scenario; return its trace."""
    cluster = Cluster(lab, scenario, python, folder)
    error = None
    try:
        cluster.set_up()
        cluster.epoch = time.time()
        try:
            scenario.drive(cluster)
        except (TimeoutError, ApiError, KeyError, TypeError, IndexError, AssertionError) as exception:
            where = traceback.extract_tb(exception.__traceback__)
            line = next((frame.lineno for frame in reversed(where) if frame.filename == str(scenario.path)), '?')
            error = f'{type(exception).__name__} at line {line}: {exception}'
        for operator in cluster.operators:
            if operator.process is not None:
                operator.stop()
        time.sleep(0.1)
        trace = collect(cluster, error)
        if error:
            trace['tail'] = '\n'.join(cluster.operator.output().splitlines()[-8:])
        return trace
    finally:
        cluster.tear_down(keep)
