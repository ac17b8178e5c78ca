"""The rules of parts of pods: each row was seen on a real server."""

import pytest

from kopf._kits.testing.objects import podparts

PORTS = "must be between 1 and 65535, inclusive"
TERMS = "p.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


@pytest.mark.parametrize(
    "container, expected",
    [
        ({"livenessProbe": {}}, ["p.livenessProbe: Required value: must specify a handler type"]),
        ({"livenessProbe": {"exec": {}}}, ["p.livenessProbe.exec.command: Required value"]),
        ({"startupProbe": {"grpc": {}}}, [f"p.startupProbe.grpc.port: Invalid value: 0: {PORTS}"]),
        ({"readinessProbe": {"tcpSocket": {"port": "http"}, "successThreshold": 2}}, []),
        (
            {"livenessProbe": {"tcpSocket": {"port": "-8-"}}},
            [
                'p.livenessProbe.tcpSocket.port: Invalid value: "-8-": must contain at least one letter (a-z)',
                'p.livenessProbe.tcpSocket.port: Invalid value: "-8-": must not begin or end with a hyphen',
            ],
        ),
        (
            {"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}},
            ["p.livenessProbe.successThreshold: Invalid value: 2: must be 1"],
        ),
        (
            {"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}},
            ["p.livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            {"readinessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}},
            ["p.readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        ({"lifecycle": {"preStop": {"exec": {"command": []}}}}, ["p.lifecycle.preStop.exec.command: Required value"]),
        ({"envFrom": [{}]}, ['p.envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`']),
        ({"envFrom": [{"secretRef": {}}]}, ["p.envFrom[0].secretRef.name: Required value"]),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            ["p.env[0].valueFrom.fieldRef.fieldPath: Required value"],
        ),
        (
            {"env": [{"name": "A", "valueFrom": {}}]},
            [
                'p.env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`,'
                ' `secretKeyRef` or `fileKeyRef`'
            ],
        ),
    ],
)
def test_invalid_containers_are_refused_with_causes(container, expected):
    assert [f"{cause.field}: {cause.message}" for cause in podparts.of_container(container, "p")] == expected


@pytest.mark.parametrize(
    "spec, expected",
    [
        (
            {"tolerations": [{}]},
            [
                'p.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is '
                'empty, which means "match all values and all keys"'
            ],
        ),
        (
            {"tolerations": [{"key": "k", "operator": "X"}]},
            ['p.tolerations[0].operator: Unsupported value: "X": supported values: "Equal", "Exists"'],
        ),
        (
            {"topologySpreadConstraints": [{}]},
            [
                "p.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "p.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                'p.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "": supported values: "DoNotSchedule", '
                '"ScheduleAnyway"',
            ],
        ),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
            [f"{TERMS}: Required value: must have at least one node selector term"],
        ),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "a"}]}]
                        }
                    }
                }
            },
            [
                f"{TERMS}[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                f'{TERMS}[0].matchExpressions[1].operator: Invalid value: "": not a valid selector operator',
            ],
        ),
    ],
)
def test_invalid_pods_are_refused_with_causes(spec, expected):
    assert [f"{cause.field}: {cause.message}" for cause in podparts.of_pod(spec, "p")] == expected
