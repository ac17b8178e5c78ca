"""
Calls to running pods: logs, commands, connections. No pod runs in the sandbox.

Parameters are checked. While a pod has no node, calls are refused as on a real server. If it has a node, the sandbox
cannot respond, because it has no kubelet.
"""

from collections.abc import Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.wire import queries, statuses

CALLS = ('attach', 'exec', 'log', 'portforward')


def answer(body: Body, call: str, params: Mapping[str, str]) -> None:
    """Refuse invalid parameters (400 or 422) and pods without a node; all other calls are not emulated."""
    name = body['metadata']['name']
    if call == 'log':
        _check_log(name, params)
    if call != 'portforward':
        _check_container(body, params.get('container', ''))
    if call == 'log' and not body['spec'].get('nodeName'):
        return
    if not body['spec'].get('nodeName'):
        raise statuses.bad_request(f'pod {name} does not have a host assigned')
    raise statuses.not_emulated(f'pods/{call}', 'the pods of the sandbox run no containers')


def _check_log(name: str, params: Mapping[str, str]) -> None:
    causes = []
    for key, least in (('tailLines', 0), ('limitBytes', 1), ('sinceSeconds', 1)):
        if key in params and (number := queries.integer(params, key)) < least:
            causes.append(
                statuses.value_invalid(
                    key,
                    str(number),
                    f'must be greater than or equal to {least}' if not least else 'must be greater than 0',
                )
            )
    if causes:
        raise statuses.invalid('', 'PodLogOptions', name, causes)


def _check_container(body: Body, wanted: str) -> None:
    name, spec = body['metadata']['name'], body['spec']
    containers = _names(spec, 'containers')
    others = [*_names(spec, 'initContainers'), *_names(spec, 'ephemeralContainers')]
    if not wanted and len(containers) > 1:
        init = f' or one of the init containers: [{" ".join(others)}]' if others else ''
        raise statuses.bad_request(
            f'a container name must be specified for pod {name}, choose one of: [{" ".join(containers)}]{init}'
        )
    if wanted and wanted not in (*containers, *others):
        raise statuses.bad_request(f'container {wanted} is not valid for pod {name}')


def _names(spec: Mapping[str, Any], key: str) -> list[str]:
    return [item.get('name', '') for item in spec.get(key) or ()]
