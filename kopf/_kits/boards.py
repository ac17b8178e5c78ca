"""
The dashboard for Grafana and the alert rules for Prometheus, made from the metrics of operators.

Both are plain data: a table of panels and a table of alerts. They are printed by ``kopf grafana``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SELECTOR = 'job=~"$job", namespace=~"$namespace"'
"""Selects the operators that are chosen in the dashboard."""

WIDTH, HEIGHT = 8, 8
"""The size of a panel in the units of Grafana, whose dashboards are 24 units wide."""


class Panel(NamedTuple):
    """A panel with one line for each query; `%` in a query stands for the selector."""

    title: str
    queries: Mapping[str, str]
    """The queries by their legends."""
    unit: str = 'short'
    description: str = ''


class Alert(NamedTuple):
    """A rule that fires if the expression has had results for the given time."""

    name: str
    expression: str
    wait: str
    summary: str


ROWS: Mapping[str, tuple[Panel, ...]] = {
    "Objects and handlers": (
        Panel("Objects by state", {'{{resource}} {{state}}': 'sum by (resource, state) (kopf_objects{%})'}),
        Panel(
            "Attempts of handlers",
            {
                '{{handler}} {{outcome}}': (
                    'sum by (handler, outcome) (rate(kopf_handler_seconds_count{%}[$__rate_interval]))'
                )
            },
            unit='ops',
        ),
        Panel(
            "Mean time in handlers",
            {
                '{{handler}}': (
                    'sum by (handler) (rate(kopf_handler_seconds_sum{%}[$__rate_interval]))'
                    ' / sum by (handler) (rate(kopf_handler_seconds_count{%}[$__rate_interval]))'
                )
            },
            unit='s',
        ),
    ),
    "Reconciliations": (
        Panel(
            "Results",
            {
                '{{controller}} {{result}}': (
                    'sum by (controller, result) (rate(controller_runtime_reconcile_total{%}[$__rate_interval]))'
                )
            },
            unit='ops',
            description="One step of an object, or one run of a level-triggered handler.",
        ),
        Panel(
            "Time",
            {
                f'p{quantile} {{{{controller}}}}': (
                    f'histogram_quantile(0.{quantile}, sum by (controller, le) '
                    '(rate(controller_runtime_reconcile_time_seconds_bucket{%}[$__rate_interval])))'
                )
                for quantile in (50, 90, 99)
            },
            unit='s',
        ),
        Panel("Running now", {'{{controller}}': 'sum by (controller) (controller_runtime_active_workers{%})'}),
    ),
    "Queue": (
        Panel("Objects that wait for a worker", {'{{name}}': 'sum by (name) (workqueue_depth{%})'}),
        Panel(
            "Time in the queue",
            {
                f'p{quantile} {{{{name}}}}': (
                    f'histogram_quantile(0.{quantile}, sum by (name, le) '
                    '(rate(workqueue_queue_duration_seconds_bucket{%}[$__rate_interval])))'
                )
                for quantile in (50, 99)
            },
            unit='s',
        ),
        Panel(
            "Oldest worker",
            {'{{name}}': 'max by (name) (workqueue_longest_running_processor_seconds{%})'},
            unit='s',
            description="A line that grows is a handler that hangs. `kopf top` shows where.",
        ),
        Panel(
            "Added and retried",
            {
                'added {{name}}': 'sum by (name) (rate(workqueue_adds_total{%}[$__rate_interval]))',
                'retried {{name}}': 'sum by (name) (rate(workqueue_retries_total{%}[$__rate_interval]))',
            },
            unit='ops',
        ),
    ),
    "Kubernetes API": (
        Panel(
            "Requests",
            {'{{method}} {{code}}': ('sum by (method, code) (rate(rest_client_requests_total{%}[$__rate_interval]))')},
            unit='reqps',
        ),
        Panel(
            "Silence of watches",
            {'{{resource}}': 'max by (resource) (kopf_watch_silence_seconds{%})'},
            unit='s',
            description="Bookmarks come every minute, so more than two minutes are a broken watch.",
        ),
        Panel(
            "Restarts of watches",
            {'{{resource}} {{reason}}': 'sum by (resource, reason) (increase(kopf_watch_restarts_total{%}[1h]))'},
        ),
    ),
    "Replicas": (
        Panel(
            "Leader",
            {'{{name}} {{instance}}': 'leader_election_master_status{%}'},
            description="Exactly one replica has the value 1. There is none without an election.",
        ),
        Panel(
            "Buckets without a member",
            {'{{instance}}': 'kopf_unowned_buckets{%}'},
            description="Their objects are not handled. Each member counts; there are none without shards.",
        ),
    ),
    "Process": (
        Panel("Lag of the event loop", {'{{instance}}': 'kopf_event_loop_lag_seconds{%}'}, unit='s'),
        Panel("CPU", {'{{instance}}': 'rate(process_cpu_seconds_total{%}[$__rate_interval])'}, unit='percentunit'),
        Panel("Memory", {'{{instance}}': 'process_resident_memory_bytes{%}'}, unit='bytes'),
    ),
}

ALERTS = (
    Alert(
        'KopfHandlersFail',
        'sum by (job, namespace, handler) (increase(kopf_handler_seconds_count{outcome="failed"}[15m])) > 0',
        '0m',
        "The handler {{ $labels.handler }} has failed for good. Its objects are not handled until they change.",
    ),
    Alert(
        'KopfReconciliationsFail',
        'sum by (job, namespace, controller) (rate(controller_runtime_reconcile_errors_total[10m])) > 0.1 * '
        'sum by (job, namespace, controller) (rate(controller_runtime_reconcile_total[10m]))',
        '15m',
        "More than 10 % of the reconciliations of {{ $labels.controller }} fail.",
    ),
    Alert(
        'KopfWorkerStuck',
        'max by (job, namespace, pod, name) (workqueue_longest_running_processor_seconds) > 900',
        '0m',
        "An object of {{ $labels.name }} has been handled for 15 minutes. See where it hangs: kopf top, in the "
        "pod of an operator with --inspect.",
    ),
    Alert(
        'KopfQueueGrows',
        'sum by (job, namespace, name) (workqueue_depth) > 100',
        '15m',
        "{{ $value }} objects of {{ $labels.name }} wait for a worker.",
    ),
    Alert(
        'KopfObjectsThrottled',
        'sum by (job, namespace, resource) (kopf_objects{state="throttled"}) > 0',
        '15m',
        "{{ $value }} objects of {{ $labels.resource }} cannot be handled because of errors. See the logs.",
    ),
    Alert(
        'KopfWatchSilent',
        'max by (job, namespace, resource) (kopf_watch_silence_seconds) > 300',
        '0m',
        "The watch of {{ $labels.resource }} has brought nothing for {{ $value }} seconds: changes are not handled.",
    ),
    Alert(
        'KopfEventLoopBlocked',
        'max by (job, namespace, pod) (kopf_event_loop_lag_seconds) > 1',
        '1m',
        "The event loop of the operator is blocked. The logs name the handler that blocks it; with --inspect, "
        "kopf top shows the line.",
    ),
    Alert(
        'KopfApiFails',
        'sum by (job, namespace) (rate(rest_client_requests_total{code=~"5..|<error>"}[10m])) > 0.05 * '
        'sum by (job, namespace) (rate(rest_client_requests_total[10m]))',
        '10m',
        "More than 5 % of the requests of the operator to the Kubernetes API fail.",
    ),
)


def make_board(title: str = 'Operators') -> dict[str, Any]:
    """Return the dashboard in the format of Grafana, to be imported there."""
    return {
        'title': title,
        'uid': 'kopf-' + re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')[:32],
        'tags': ['kopf', 'kubernetes'],
        'schemaVersion': 38,
        'editable': True,
        'refresh': '30s',
        'time': {'from': 'now-1h', 'to': 'now'},
        'templating': {'list': [_make_datasource(), *map(_make_variable, ('job', 'namespace'))]},
        'panels': list(_make_panels()),
    }


def _make_datasource() -> dict[str, Any]:
    return {'name': 'datasource', 'label': "Data source", 'type': 'datasource', 'query': 'prometheus'}


def _make_variable(name: str) -> dict[str, Any]:
    return {
        'name': name,
        'label': name.capitalize(),
        'type': 'query',
        'datasource': _DATASOURCE,
        'query': {'query': f'label_values(kopf_event_loop_lag_seconds, {name})', 'refId': name},
        'refresh': 2,
        'includeAll': True,
        # Why not the list of all values? Outside of a cluster, the metrics have no label of the namespace.
        'allValue': '.*',
        'current': {'text': 'All', 'value': '$__all'},
    }


def _make_panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in ROWS.items():
        number += 1
        yield {'id': number, 'type': 'row', 'title': title, 'gridPos': {'x': 0, 'y': top, 'w': 24, 'h': 1}}
        top += 1
        for place, panel in enumerate(panels):
            number += 1
            line, column = divmod(place, 24 // WIDTH)
            position = {'x': column * WIDTH, 'y': top + line * HEIGHT, 'w': WIDTH, 'h': HEIGHT}
            yield {'id': number, 'gridPos': position, **_make_panel(panel)}
        top += -(-len(panels) // (24 // WIDTH)) * HEIGHT


def _make_panel(panel: Panel) -> dict[str, Any]:
    return {
        'type': 'timeseries',
        'title': panel.title,
        'description': panel.description,
        'datasource': _DATASOURCE,
        'fieldConfig': {'defaults': {'unit': panel.unit, 'min': 0, 'custom': {'fillOpacity': 10}}, 'overrides': []},
        'options': {'legend': {'displayMode': 'list', 'placement': 'bottom'}, 'tooltip': {'mode': 'multi'}},
        'targets': [
            {
                'refId': chr(ord('A') + number),
                'datasource': _DATASOURCE,
                'expr': query.replace('{%}', f'{{{SELECTOR}}}'),
                'legendFormat': legend,
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


_DATASOURCE = {'type': 'prometheus', 'uid': '${datasource}'}


def make_alerts() -> dict[str, Any]:
    """Return the alert rules in the format of Prometheus."""
    rules = [
        {
            'alert': alert.name,
            'expr': alert.expression,
            'for': alert.wait,
            'labels': {'severity': 'warning'},
            'annotations': {'summary': alert.summary},
        }
        for alert in ALERTS
    ]
    return {'groups': [{'name': 'kopf', 'rules': rules}]}
