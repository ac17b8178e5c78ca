"""
The validation of parts of pods: probes, hooks and variables of containers; node selectors, tolerations, affinities.

It checks the values of fields, and whether required fields are given. The messages are those of a real server.
"""

from collections.abc import Iterator
from typing import Any

from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire import names
from kopf._kits.testing.wire.statuses import (
    Cause,
    text,
    value_forbidden,
    value_invalid,
    value_required,
    value_unsupported,
)

PORTS = 'must be between 1 and 65535, inclusive'
HANDLERS = ('exec', 'httpGet', 'tcpSocket', 'grpc', 'sleep')
PROBES = ('livenessProbe', 'readinessProbe', 'startupProbe')
ANY = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'


def of_container(container: Fields, place: str) -> Iterator[Cause]:
    """Yield all errors of the probes, hooks and sources of variables of a container."""
    for key in PROBES:
        if (probe := container.get(key)) is not None:
            yield from _handler(probe, f'{place}.{key}')
            yield from _numbers(probe, f'{place}.{key}', once=key != 'readinessProbe')
    for key, hook in (container.get('lifecycle') or {}).items():
        if isinstance(hook, dict):
            yield from _handler(hook, f'{place}.lifecycle.{key}')
    for index, source in enumerate(maps(container.get('envFrom'))):
        chosen = [key for key in ('configMapRef', 'secretRef') if source.get(key) is not None]
        if not chosen:
            yield value_invalid(f'{place}.envFrom', '""', 'must specify one of: `configMapRef` or `secretRef`')
        elif not source[chosen[0]].get('name'):
            yield value_required(f'{place}.envFrom[{index}].{chosen[0]}.name')
    for index, variable in enumerate(maps(container.get('env'))):
        where, given = f'{place}.env[{index}].valueFrom', variable.get('valueFrom')
        if given is not None and not given:
            yield value_invalid(
                where,
                '""',
                'must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, '
                '`secretKeyRef` or `fileKeyRef`',
            )
        elif given and isinstance(field := given.get('fieldRef'), dict) and not field.get('fieldPath'):
            yield value_required(f'{where}.fieldRef.fieldPath')


def _handler(owner: Fields, place: str) -> Iterator[Cause]:
    chosen = [key for key in HANDLERS if owner.get(key) is not None]
    if not chosen:
        yield value_required(place, 'must specify a handler type')
    for key in chosen[1:]:
        yield value_forbidden(f'{place}.{key}', 'may not specify more than 1 handler type')
    for key in chosen[:1]:
        handler = owner[key]
        if key == 'exec' and not handler.get('command'):
            yield value_required(f'{place}.exec.command')
        if key in ('httpGet', 'tcpSocket', 'grpc'):
            yield from _port(handler.get('port', 0), f'{place}.{key}.port')


def _port(port: Any, place: str) -> Iterator[Cause]:
    if isinstance(port, int):
        if not 1 <= port <= 65535:
            yield value_invalid(place, str(port), PORTS)
        return
    for problem in names.port_problems(port):
        yield value_invalid(place, text(port), problem)


def _numbers(probe: Fields, place: str, *, once: bool) -> Iterator[Cause]:
    for key in ('initialDelaySeconds', 'timeoutSeconds', 'periodSeconds', 'successThreshold', 'failureThreshold'):
        if (number := probe.get(key) or 0) < 0:
            yield value_invalid(f'{place}.{key}', str(number), 'must be greater than or equal to 0')
    if once and (number := probe.get('successThreshold') or 1) != 1:
        yield value_invalid(f'{place}.successThreshold', str(number), 'must be 1')


def of_pod(spec: Fields, place: str) -> Iterator[Cause]:
    """Yield all errors of the names, node selectors, tolerations, spread constraints and node affinities of a pod."""
    for key in spec.get('nodeSelector') or ():
        for problem in names.label_key_problems(key):
            yield value_invalid(f'{place}.nodeSelector', text(key), problem)
    for key, check in (('hostname', names.label_problems), ('serviceAccountName', names.subdomain_problems)):
        for problem in check(spec[key]) if spec.get(key) else ():
            yield value_invalid(f'{place}.{key}', text(spec[key]), problem)
    for index, toleration in enumerate(maps(spec.get('tolerations'))):
        where, operator = f'{place}.tolerations[{index}].operator', toleration.get('operator') or ''
        if not toleration.get('key') and operator != 'Exists':
            yield value_invalid(where, text(operator), ANY)
        if operator == 'Exists' and toleration.get('value'):
            yield value_invalid(where, text(toleration['value']), "value must be empty when `operator` is 'Exists'")
        if operator not in ('', 'Equal', 'Exists'):
            yield value_unsupported(where, text(operator), ['"Equal"', '"Exists"'])
    for index, spread in enumerate(maps(spec.get('topologySpreadConstraints'))):
        where = f'{place}.topologySpreadConstraints[{index}]'
        if (skew := spread.get('maxSkew') or 0) <= 0:
            yield value_invalid(f'{where}.maxSkew', str(skew), 'must be greater than zero')
        if not spread.get('topologyKey'):
            yield value_required(f'{where}.topologyKey', 'can not be empty')
        if (word := spread.get('whenUnsatisfiable') or '') not in ('DoNotSchedule', 'ScheduleAnyway'):
            yield value_unsupported(f'{where}.whenUnsatisfiable', text(word), ['"DoNotSchedule"', '"ScheduleAnyway"'])
    needed = ((spec.get('affinity') or {}).get('nodeAffinity') or {}).get(
        'requiredDuringSchedulingIgnoredDuringExecution'
    )
    if needed is not None:
        yield from _terms(needed, f'{place}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution')


def _terms(needed: Fields, place: str) -> Iterator[Cause]:
    if not needed.get('nodeSelectorTerms'):
        yield value_required(f'{place}.nodeSelectorTerms', 'must have at least one node selector term')
    for number, term in enumerate(maps(needed.get('nodeSelectorTerms'))):
        for index, expression in enumerate(maps(term.get('matchExpressions'))):
            where = f'{place}.nodeSelectorTerms[{number}].matchExpressions[{index}]'
            operator = expression.get('operator') or ''
            if operator in ('In', 'NotIn'):
                if not expression.get('values'):
                    yield value_required(f'{where}.values', "must be specified when `operator` is 'In' or 'NotIn'")
            elif operator not in ('Exists', 'DoesNotExist', 'Gt', 'Lt'):
                yield value_invalid(f'{where}.operator', text(operator), 'not a valid selector operator')
            for problem in names.label_key_problems(expression.get('key') or ''):
                yield value_invalid(f'{where}.key', text(expression.get('key') or ''), problem)
