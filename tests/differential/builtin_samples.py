"""Samples of built-in kinds: valid objects as people write them, with and without what may be left out.

Nothing here makes a controller work: Jobs are managed by other controllers,
and webhooks are about kinds that do not exist.
"""

import random
from typing import Any

Body = dict[str, Any]
LABELS = {"app": "web"}


def _maybe(rng: random.Random, chance: float, **fields: Any) -> Body:
    return {key: value for key, value in fields.items() if rng.random() < chance}


def _configmap(rng: random.Random) -> Body:
    return _maybe(
        rng, 0.6, data={"a": "1", "b": rng.choice(["", "two\nlines", "ü"])}, binaryData={"c": "aGk="}
    ) | _maybe(rng, 0.1, immutable=True)


def _secret(rng: random.Random) -> Body:
    return rng.choice(
        [
            {"data": {"a": "aGk="}},
            {"stringData": {"a": "plain"}},
            {"type": "example.com/own", "data": {"k": "eA=="}},
            {"type": "kubernetes.io/basic-auth", "stringData": {"username": "u", "password": "p"}},
            {},
            {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}},
            {"data": {"a": "aGk="}, "stringData": {"a": "over", "b": "x"}, "immutable": True},
        ]
    )


def _probe(rng: random.Random) -> Body:
    return rng.choice(
        [
            {"httpGet": {"path": "/healthz", "port": 8080}},
            {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
            {"exec": {"command": ["true"]}, "initialDelaySeconds": 3, "failureThreshold": 2},
            {"grpc": {"port": 9000}},
        ]
    )


def _container(rng: random.Random, name: str) -> Body:
    return {
        "name": name,
        "image": rng.choice(["nginx", "nginx:1.27", "registry.example.com/a/b:latest", "a@sha256:" + "0" * 64]),
        **_maybe(
            rng,
            0.25,
            command=["sh", "-c", "true"],
            args=["x"],
            workingDir="/tmp",
            imagePullPolicy="Never",
            env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            ports=[{"name": "http", "containerPort": 8080}],
            livenessProbe=_probe(rng),
            readinessProbe=_probe(rng),
            resources=rng.choice(
                [
                    {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    {"limits": {"cpu": "1", "memory": "1Gi"}},
                    {"requests": {"cpu": 0.5, "memory": "100M"}, "limits": {"cpu": 1, "memory": "1024Mi"}},
                ]
            ),
            securityContext={"runAsNonRoot": True, "allowPrivilegeEscalation": False},
            envFrom=[{"configMapRef": {"name": "some"}}],
            lifecycle={"preStop": {"exec": {"command": ["true"]}}},
        ),
    }


def _pod_spec(rng: random.Random, **more: Any) -> Body:
    spec = {
        "containers": [_container(rng, name) for name in ("main", "side")[: rng.randint(1, 2)]],
        **_maybe(
            rng,
            0.2,
            initContainers=[{"name": "init", "image": "busybox"}],
            nodeSelector={"disk": "ssd"},
            serviceAccountName="builder",
            terminationGracePeriodSeconds=5,
            hostname="host",
            priority=0,
            tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            hostNetwork=False,
            securityContext={"runAsUser": 1000, "fsGroup": 2000},
            dnsPolicy="Default",
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                        ]
                    }
                }
            },
            imagePullSecrets=[{"name": "pull"}],
            topologySpreadConstraints=[
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": LABELS},
                }
            ],
        ),
        **more,
    }
    if rng.random() < 0.3:
        volume = rng.choice(
            [
                {"emptyDir": {}},
                {"configMap": {"name": "c"}},
                {"secret": {"secretName": "s"}},
                {"hostPath": {"path": "/data"}},
                {"persistentVolumeClaim": {"claimName": "p"}},
                {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c"}}]}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ]
        )
        spec["volumes"] = [{"name": "v", **volume}]
        spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v", **_maybe(rng, 0.3, readOnly=True)}]
    return spec


def _pod(rng: random.Random) -> Body:
    return {"spec": _pod_spec(rng, **_maybe(rng, 0.3, restartPolicy="Never"))}


def _template(rng: random.Random, **more: Any) -> Body:
    return {"metadata": {"labels": dict(LABELS)}, "spec": _pod_spec(rng, **more)}


def _deployment(rng: random.Random) -> Body:
    return {
        "spec": {
            "selector": {"matchLabels": dict(LABELS)},
            "template": _template(rng),
            **_maybe(
                rng,
                0.3,
                replicas=rng.randint(0, 3),
                minReadySeconds=5,
                revisionHistoryLimit=2,
                paused=True,
                strategy=rng.choice([{"type": "Recreate"}, {"rollingUpdate": {"maxSurge": 2}}, {}]),
            ),
        }
    }


def _statefulset(rng: random.Random) -> Body:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    return {
        "spec": {
            "selector": {"matchLabels": dict(LABELS)},
            "template": _template(rng),
            "serviceName": "web",
            **_maybe(
                rng,
                0.3,
                replicas=2,
                podManagementPolicy="Parallel",
                updateStrategy={"type": "OnDelete"},
                volumeClaimTemplates=[claim],
            ),
        }
    }


def _daemonset(rng: random.Random) -> Body:
    return {
        "spec": {
            "selector": {"matchLabels": dict(LABELS)},
            "template": _template(rng),
            **_maybe(rng, 0.3, updateStrategy={"type": "RollingUpdate"}, minReadySeconds=1),
        }
    }


def _replicaset(rng: random.Random) -> Body:
    return {
        "spec": {"selector": {"matchLabels": dict(LABELS)}, "template": _template(rng), **_maybe(rng, 0.5, replicas=2)}
    }


def _job_spec(rng: random.Random) -> Body:
    return {
        "template": {"spec": _pod_spec(rng, restartPolicy=rng.choice(["Never", "OnFailure"]))},
        **_maybe(
            rng,
            0.3,
            parallelism=2,
            completions=3,
            backoffLimit=1,
            ttlSecondsAfterFinished=60,
            activeDeadlineSeconds=100,
            suspend=False,
        ),
    }


def _job(rng: random.Random) -> Body:
    return {"spec": {**_job_spec(rng), "managedBy": "example.com/absent"}}


def _cronjob(rng: random.Random) -> Body:
    return {
        "spec": {
            "schedule": rng.choice(["*/5 * * * *", "@hourly", "0 3 * * 1"]),
            "jobTemplate": {"spec": _job_spec(rng)},
            **_maybe(rng, 0.3, suspend=True, concurrencyPolicy="Forbid", timeZone="Etc/UTC"),
        }
    }


def _service(rng: random.Random) -> Body:
    port = {"port": 80, **_maybe(rng, 0.4, targetPort=rng.choice([8080, "http"]), protocol="TCP", name="http")}
    return {
        "spec": rng.choice(
            [
                {"selector": LABELS, "ports": [port]},
                {"selector": LABELS, "ports": [port]},
                {"clusterIP": "None", "selector": LABELS, "ports": [port]},
                {"clusterIP": "None", "selector": LABELS},
                {"type": "NodePort", "selector": LABELS, "ports": [port]},
                {"type": "ExternalName", "externalName": "example.com"},
                {"type": "LoadBalancer", "selector": LABELS, "ports": [port]},
                {
                    "selector": LABELS,
                    "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}],
                    "sessionAffinity": "ClientIP",
                },
                {"ports": [port], "publishNotReadyAddresses": True},
            ]
        )
    }


def _event(rng: random.Random) -> Body:
    return {
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "$namespace"},
        "reason": "Tested",
        "message": "It was.",
        "type": rng.choice(["Normal", "Warning"]),
        **_maybe(
            rng,
            0.4,
            source={"component": "me"},
            firstTimestamp="2001-02-03T04:05:06Z",
            count=2,
            reportingComponent="me",
            reportingInstance="me-1",
        ),
    }


def _new_event(rng: random.Random) -> Body:
    return {
        "regarding": {"kind": "Pod", "name": "x", "namespace": "$namespace"},
        "reason": "Tested",
        "note": "It was.",
        "type": "Normal",
        "eventTime": "2001-02-03T04:05:06.000007Z",
        "action": "Test",
        "reportingController": "example.com/me",
        "reportingInstance": "me-1",
    }


def _lease(rng: random.Random) -> Body:
    return {
        "spec": _maybe(
            rng,
            0.5,
            holderIdentity="me",
            leaseDurationSeconds=15,
            leaseTransitions=1,
            renewTime="2001-02-03T04:05:06.000007Z",
            acquireTime="2001-02-03T04:05:06.000000Z",
        )
    }


def _role(rng: random.Random) -> Body:
    return {
        "rules": [
            {"apiGroups": ["", "apps"], "resources": ["pods", "deployments"], "verbs": ["get", "list"]},
            *[{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["*"]}][
                : rng.randint(0, 1)
            ],
        ]
    }


def _binding(kind: str) -> Any:
    def make(rng: random.Random) -> Body:
        return {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"},
            **_maybe(
                rng,
                0.8,
                subjects=[
                    rng.choice(
                        [
                            {"kind": "ServiceAccount", "name": "sa", "namespace": "default"},
                            {"kind": "User", "name": "u"},
                            {"kind": "Group", "name": "g", "apiGroup": "rbac.authorization.k8s.io"},
                        ]
                    )
                ],
            ),
        }

    return make


def _claim(rng: random.Random) -> Body:
    return {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": rng.choice(["1Gi", "500M"])}},
            **_maybe(rng, 0.4, storageClassName="slow", volumeMode="Block"),
        }
    }


def _volume(rng: random.Random) -> Body:
    return {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/data"},
            **_maybe(rng, 0.4, storageClassName="slow", persistentVolumeReclaimPolicy="Retain"),
        }
    }


def _ingress(rng: random.Random) -> Body:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    return {
        "spec": rng.choice(
            [
                {"defaultBackend": backend},
                {
                    "rules": [
                        {
                            "host": "example.com",
                            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
                        }
                    ],
                    "ingressClassName": "nginx",
                },
            ]
        )
    }


def _policy(rng: random.Random) -> Body:
    return {
        "spec": {
            "podSelector": {"matchLabels": dict(LABELS)},
            **_maybe(
                rng,
                0.5,
                ingress=[{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}],
                egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
            ),
        }
    }


def _budget(rng: random.Random) -> Body:
    return {
        "spec": {
            "selector": {"matchLabels": dict(LABELS)},
            **rng.choice([{"minAvailable": 1}, {"maxUnavailable": "50%"}, {}]),
        }
    }


def _autoscaler(rng: random.Random) -> Body:
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    return {
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 5,
            **_maybe(rng, 0.5, minReplicas=2, metrics=[metric]),
        }
    }


def _webhooks(rng: random.Random) -> Body:
    client = rng.choice([{"url": "https://127.0.0.1:1/x"}, {"service": {"name": "s", "namespace": "default"}}])
    rule = {
        "apiGroups": ["absent.example.dev"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["things"],
    }
    return {
        "webhooks": [
            {
                "name": "a.example.dev",
                "clientConfig": client,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "rules": [rule],
                **_maybe(
                    rng,
                    0.3,
                    failurePolicy="Ignore",
                    timeoutSeconds=3,
                    matchPolicy="Exact",
                    objectSelector={"matchLabels": dict(LABELS)},
                ),
            }
        ]
    }


def _node(rng: random.Random) -> Body:
    return {
        **_maybe(
            rng,
            0.7,
            spec=_maybe(
                rng, 0.5, podCIDR="10.1.0.0/24", unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}]
            ),
        )
    }


def _slice(rng: random.Random) -> Body:
    return {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], **_maybe(rng, 0.5, conditions={"ready": True})}],
        "ports": [{"name": "http", "port": 80, **_maybe(rng, 0.5, protocol="TCP")}],
    }


def _endpoints(rng: random.Random) -> Body:
    return {"subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]} if rng.random() < 0.7 else {}


RBAC = "rbac.authorization.k8s.io"
HOOKS = "admissionregistration.k8s.io"
#: The fields of `worlds.Resource`.
ROWS: list[tuple[Any, ...]] = [
    ("", "v1", "configmaps", "ConfigMap", True, _configmap, 7),
    ("", "v1", "secrets", "Secret", True, _secret, 4, (), None, ("type",)),
    ("", "v1", "services", "Service", True, _service, 3, ("status",), None, ("spec.type", "spec.clusterIP")),
    (
        "",
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        True,
        lambda rng: _maybe(rng, 0.3, imagePullSecrets=[{"name": "p"}], automountServiceAccountToken=False),
        1.5,
    ),
    (
        "",
        "v1",
        "pods",
        "Pod",
        True,
        _pod,
        4,
        ("status",),
        None,
        ("status.phase", "spec.nodeName", "spec.restartPolicy"),
    ),
    ("", "v1", "events", "Event", True, _event, 1.5, (), None, ("reason", "type", "involvedObject.name")),
    ("events.k8s.io", "v1", "events", "Event", True, _new_event, 0.7, (), None, ("reason", "type", "regarding.name")),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, _claim, 1, ("status",)),
    ("", "v1", "persistentvolumes", "PersistentVolume", False, _volume, 0.5, ("status",)),
    ("", "v1", "nodes", "Node", False, _node, 0.7, ("status",), None, ("spec.unschedulable",)),
    ("", "v1", "endpoints", "Endpoints", True, _endpoints, 0.3),
    ("", "v1", "podtemplates", "PodTemplate", True, lambda rng: {"template": _template(rng)}, 0.2),
    (
        "",
        "v1",
        "replicationcontrollers",
        "ReplicationController",
        True,
        lambda rng: {"spec": {"template": _template(rng), **_maybe(rng, 0.5, selector=dict(LABELS), replicas=2)}},
        0.2,
        ("status", "scale"),
    ),
    ("apps", "v1", "deployments", "Deployment", True, _deployment, 3, ("status", "scale")),
    ("apps", "v1", "statefulsets", "StatefulSet", True, _statefulset, 1, ("status", "scale")),
    ("apps", "v1", "daemonsets", "DaemonSet", True, _daemonset, 0.7, ("status",)),
    (
        "apps",
        "v1",
        "replicasets",
        "ReplicaSet",
        True,
        _replicaset,
        0.7,
        ("status", "scale"),
        None,
        ("status.replicas",),
    ),
    ("batch", "v1", "jobs", "Job", True, _job, 1.5, ("status",), None, ("status.successful",)),
    ("batch", "v1", "cronjobs", "CronJob", True, _cronjob, 0.8, ("status",)),
    ("coordination.k8s.io", "v1", "leases", "Lease", True, _lease, 1.5),
    (RBAC, "v1", "roles", "Role", True, _role, 1),
    (RBAC, "v1", "clusterroles", "ClusterRole", False, _role, 0.6),
    (RBAC, "v1", "rolebindings", "RoleBinding", True, _binding("Role"), 0.8),
    (RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, _binding("ClusterRole"), 0.4),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", True, _ingress, 0.8, ("status",)),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, _policy, 0.6),
    (
        "networking.k8s.io",
        "v1",
        "ingressclasses",
        "IngressClass",
        False,
        lambda rng: {"spec": {"controller": "example.com/c"}},
        0.2,
    ),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, _budget, 0.6, ("status",)),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, _autoscaler, 0.5, ("status",)),
    (
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        False,
        lambda rng: {"value": rng.randint(1, 1000), **_maybe(rng, 0.4, description="d", preemptionPolicy="Never")},
        0.3,
    ),
    (
        "storage.k8s.io",
        "v1",
        "storageclasses",
        "StorageClass",
        False,
        lambda rng: {
            "provisioner": "example.com/p",
            **_maybe(rng, 0.4, parameters={"a": "b"}, allowVolumeExpansion=True),
        },
        0.3,
    ),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, _slice, 0.4),
    (HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False, _webhooks, 0.7),
    (HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, _webhooks, 0.5),
]
