"""The client of ``kopf top``: finds a running operator, requests its present activities, and shows them as text."""

import json
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.helpers.runfiles import RunFile, find_files, get_folder

TIMEOUT = 30.0
"""How long to wait for the operator (in seconds). Its server has a separate thread, so even a stuck one responds."""

Facts = Mapping[str, Any]


class TopError(ExplainedError):
    """Raised when no operator is found or responds. The message contains the reason and the remedy."""


def find_operator(
    *, pid: int | None = None, url: str | None = None, token: str | None = None, folder: str | None = None
) -> RunFile:
    """
    Return the address and the token of the operator.

    Raises:
        TopError: if there is none, or if there are several.
    """
    if url is not None:
        if not token:
            raise TopError("--url needs the token of the operator: --token or $KOPF_TOP_TOKEN.")
        return RunFile(pid or 0, url.rstrip('/'), token)
    files = [file for file in find_files(folder) if pid in (None, file.pid)]
    if not files:
        who = "No operator" if pid is None else f"No operator with the pid {pid}"
        raise TopError(
            f"{who} of this user can be looked into: there is no file of a running one in {get_folder(folder)}. "
            "Start it with: kopf run --inspect"
        )
    if len(files) > 1:
        pids = ', '.join(str(file.pid) for file in files)
        raise TopError(f"There are several operators: choose one by --pid: {pids}.")
    return files[0]._replace(token=token or files[0].token)


def fetch(operator: RunFile, *, limit: int) -> Facts:
    """
    Return the present activities of the operator.

    Raises:
        TopError: if it does not respond, or refuses the token.
    """
    request = urllib.request.Request(
        f'{operator.url}/v1/now?limit={limit}', headers={'Authorization': f'Bearer {operator.token}'}
    )
    # Ignore the proxies of the environment, because the operator is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as response:
            facts: Facts = json.load(response)
            return facts
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read().decode(errors='replace')
        raise TopError(f"The operator at {operator.url} has refused the request ({error.code}): {reason}") from None
    except (OSError, ValueError) as error:
        raise TopError(f"The operator at {operator.url} does not respond: {error}") from None


def dump(facts: Facts) -> str:
    """Return the facts as JSON."""
    return json.dumps(facts, indent=2)


def render(facts: Facts, *, stacks: bool = False) -> str:
    """Return the facts as text for terminals; with the whole stacks if requested."""
    return '\n'.join(map(_clean, _render_lines(facts, stacks=stacks)))


def _clean(line: str) -> str:
    """Replace line breaks and control characters: errors can have any text, also commands for terminals."""
    return ''.join(char if char.isprintable() else ' ' for char in line)


def _render_lines(facts: Facts, *, stacks: bool) -> Iterator[str]:
    loop = facts['loop']
    state = (
        f"BLOCKED for {format_time(loop['lag'])} by {loop['by'] or 'unknown code'}"
        if loop['blocked']
        else f"responds in {loop['lag'] * 1000:.1f} ms"
    )
    paused = "; paused, as another operator works" if facts['paused'] else ""
    yield f"kopf {facts['version']}, pid {facts['pid']}, up {format_time(facts['seconds'])}{paused}"
    yield f"Event loop: {state}"
    yield ''
    yield f"RUNNING: {len(facts['running'])}"
    yield from _render_running(facts['running'], stacks=stacks)
    yield ''
    hidden = facts['waiting_total'] - len(facts['waiting'])
    yield f"WAITING: {facts['waiting_total']}{f', of which {hidden} are not shown' if hidden else ''}"
    yield from format_table(map(_describe_waiting, facts['waiting']))
    yield ''
    yield f"WATCHES: {len(facts['watches'])}"
    yield from format_table(map(_describe_watch, facts['watches']))
    yield ''
    yield "OBJECTS"
    yield from format_table([name, _count(counts)] for name, counts in facts['objects'].items())


def _render_running(calls: Sequence[Facts], *, stacks: bool) -> Iterator[str]:
    for call, line in zip(calls, format_table(map(_describe_running, calls)), strict=True):
        yield line
        for place in call['stack'] if stacks else ():
            yield f"      {format_place(place)}"


def _describe_running(call: Facts) -> Sequence[str]:
    marks = [
        *(["BLOCKS THE LOOP"] if call['blocking'] else []),
        *([f"does not stop ({call['stopping']})"] if call['stopping'] else []),
        *([f"attempt {call['retry'] + 1}"] if call['retry'] else []),
        *([f"in thread {call['thread']}"] if call['thread'] else []),
    ]
    return (
        format_time(call['seconds']),
        f"{call['kind']} {call['handler']}",
        _name(call.get('object')),
        format_place(call['place']),
        ', '.join(marks),
    )


def _describe_waiting(facts: Facts) -> Sequence[str]:
    seconds = facts['seconds']
    handlers = ', '.join(each['handler'] for each in facts['handlers'])
    message = facts['error'] or next((each['message'] for each in facts['handlers'] if each['message']), None)
    retry = max((each['retry'] for each in facts['handlers']), default=0)
    why = f"{facts['why']} {retry}" if retry else facts['why']
    until = format_time(seconds) if seconds is not None else 'a slot' if facts['why'] == 'limit' else 'a change'
    return until, why, handlers, _name(facts), message or ''


def _describe_watch(facts: Facts) -> Sequence[str]:
    place = f"{facts['resource']} in {facts['namespace']}" if facts['namespace'] else facts['resource']
    state = f"{facts['state']}, paused" if facts['paused'] else facts['state']
    return place, state, f"{facts['objects']} objects", f"silent {format_time(facts['silent'])}", facts['failure'] or ''


def _count(counts: Mapping[str, int]) -> str:
    return ', '.join(f'{count} {state}' for state, count in counts.items() if count) or 'none'


def _name(obj: Facts | None) -> str:
    if obj is None:
        return ''
    path = f"{obj['namespace']}/{obj['name']}" if obj['namespace'] else obj['name']
    return f"{obj['resource']} {path}"


def format_place(place: Facts | None) -> str:
    """Return the place as ``file:line in function: code``; the path is relative to the current folder if possible."""
    if place is None:
        return '?'
    path = pathlib.Path(place['file'])
    if path.is_relative_to(pathlib.Path.cwd()):
        path = path.relative_to(pathlib.Path.cwd())
    return f"{path}:{place['line']} in {place['function']}" + (f": {place['code']}" if place['code'] else '')


def format_time(seconds: float) -> str:
    """Return the time in one or two units: ``0.5s``, ``12s``, ``3m5s``, ``2h3m``, ``5d2h``."""
    if seconds < 10:
        return f'{seconds:.1f}s'
    whole = round(seconds)
    for unit, size, smaller, part in (('d', 86400, 'h', 3600), ('h', 3600, 'm', 60), ('m', 60, 's', 1)):
        if whole >= size:
            return f'{whole // size}{unit}{whole % size // part}{smaller}'
    return f'{whole}s'


def format_table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table: the columns are as wide as their widest values, except for the last one."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()
