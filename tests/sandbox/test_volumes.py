"""The rules of volumes, mounts and claims in StatefulSets: each row was seen on a real server."""

import pytest

from kopf.testing import Refusal, Sandbox

NAME = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
MODES = "accessModes: Required value: at least 1 access mode is required"
EMPTY = {"name": "data", "emptyDir": {}}


def claim(name, **spec):
    return {
        "metadata": {"name": name} if name else {},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec},
    }


def mounts(*names, **options):
    return {"volumeMounts": [{"name": name, "mountPath": f"/m{index}", **options} for index, name in enumerate(names)]}


def devices(*names, **options):
    return {
        "volumeDevices": [{"name": name, "devicePath": f"/m{index}", **options} for index, name in enumerate(names)]
    }


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def try_out(sandbox):
    """Create a StatefulSet and delete it; return what the server complains of."""

    def try_out(claims=(), volumes=None, *, container=None, **pod):
        spec = {"containers": [{"name": "c", "image": "i", **(container or {})}], **pod}
        if volumes is not None:
            spec["volumes"] = volumes
        try:
            sandbox.create(
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "metadata": {"name": "s", "namespace": "default"},
                    "spec": {
                        "selector": {"matchLabels": {"a": "b"}},
                        "volumeClaimTemplates": list(claims),
                        "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec},
                    },
                }
            )
        except Refusal as refusal:
            causes = refusal.as_status()["details"]["causes"]
            return [f"{cause['field'].removeprefix('spec.template.spec.')}: {cause['message']}" for cause in causes]
        sandbox.delete("statefulsets", "s")
        return []

    return try_out


@pytest.mark.parametrize(
    "claims, volumes, container, expected",
    [
        (["data"], None, mounts("data"), []),
        (["data"], None, devices("data"), []),
        (["data", "data"], None, mounts("data"), []),
        (["data"], [EMPTY], mounts("data"), []),
        (["data"], [EMPTY], devices("data"), []),
        (["data"], None, mounts("no"), ['containers[0].volumeMounts[0].name: Not found: "no"']),
        (["data"], None, devices("no"), ['containers[0].volumeDevices[0].name: Not found: "no"']),
        (
            [None],
            None,
            mounts("data"),
            [
                "volumes[0].persistentVolumeClaim.claimName: Required value",
                "volumes[0].name: Required value",
                'containers[0].volumeMounts[0].name: Not found: "data"',
            ],
        ),
        (
            ["Bad_"],
            None,
            mounts("Bad_"),
            [
                f'volumes[0].name: Invalid value: "Bad_": {NAME}',
                'containers[0].volumeMounts[0].name: Not found: "Bad_"',
            ],
        ),
        (
            ["data"],
            [{"name": "Bad_", "emptyDir": {}}],
            mounts("data"),
            [f'volumes[1].name: Invalid value: "Bad_": {NAME}'],
        ),
        (
            ["data"],
            [EMPTY, {"name": "Bad_", "emptyDir": {}}],
            mounts("data"),
            [f'volumes[1].name: Invalid value: "Bad_": {NAME}'],
        ),
        (
            [],
            [{"name": "v", "emptyDir": {}, "secret": {}}, {"name": "z", "secret": {}}, EMPTY, EMPTY],
            mounts("v"),
            [
                "volumes[0].secret: Forbidden: may not specify more than 1 volume type",
                "volumes[1].secret.secretName: Required value",
                'volumes[3].name: Duplicate value: "data"',
                'containers[0].volumeMounts[0].name: Not found: "v"',
            ],
        ),
    ],
)
def test_invalid_volumes_and_mounts_are_refused_with_causes(try_out, claims, volumes, container, expected):
    assert try_out([claim(name) for name in claims], volumes, container=container) == expected


@pytest.mark.parametrize(
    "devices, expected",
    [
        ([{"name": "data"}], ["[0].devicePath: Required value"]),
        ([{"devicePath": "/x"}], ["[0].name: Required value", '[0].name: Not found: ""']),
        (
            [{"name": "empty", "devicePath": "/x"}],
            [
                '[0].name: Invalid value: "empty": can only use volume source type of PersistentVolumeClaim or Ephemeral for '
                'block mode'
            ],
        ),
        (
            [{"name": "data", "devicePath": "/x/../y"}],
            ['''[0].devicePath: Invalid value: "/x/../y": can not contain backsteps ('..')'''],
        ),
        (
            [{"name": "data", "devicePath": "/x"}, {"name": "data", "devicePath": "/y"}],
            ['[1].name: Invalid value: "data": must be unique'],
        ),
        (
            [{"name": "data", "devicePath": "/x"}, {"name": "e", "devicePath": "/x"}],
            ['[1].devicePath: Invalid value: "/x": must be unique'],
        ),
    ],
)
def test_invalid_devices_are_refused_with_causes(try_out, devices, expected):
    causes = try_out(
        [claim("data"), claim("e")], [{"name": "empty", "emptyDir": {}}], container={"volumeDevices": devices}
    )
    assert causes == [f"containers[0].volumeDevices{text}" for text in expected]


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            {"subPath": "x", "subPathExpr": "y"},
            ['[0].subPathExpr: Invalid value: "y": subPathExpr and subPath are mutually exclusive'],
        ),
        ({"subPath": "../x"}, [""".subPath: Invalid value: "../x": must not contain '..'"""]),
        ({"subPath": "/x"}, ['.subPath: Invalid value: "/x": must be a relative path']),
        ({"subPathExpr": "../y"}, [""".subPathExpr: Invalid value: "../y": must not contain '..'"""]),
        (
            {"mountPropagation": "X"},
            ['.mountPropagation: Unsupported value: "X": supported values: "Bidirectional", "HostToContainer", "None"'],
        ),
        (
            {"mountPropagation": "Bidirectional"},
            [
                ".mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
            ],
        ),
        (
            {"recursiveReadOnly": "Enabled"},
            [".recursiveReadOnly: Forbidden: may only be specified when readOnly is true"],
        ),
        ({"recursiveReadOnly": "Enabled", "readOnly": True}, []),
    ],
)
def test_options_of_mounts_are_checked(try_out, options, expected):
    causes = try_out([claim("data")], container=mounts("data", **options))
    assert causes == [f"containers[0].volumeMounts{text}" for text in expected]


def test_privileged_containers_may_share_what_they_mount(try_out):
    container = {**mounts("data", mountPropagation="Bidirectional"), "securityContext": {"privileged": True}}
    assert try_out([claim("data")], container=container) == []


def test_nothing_is_mounted_twice(try_out):
    twice = {"volumeMounts": [{"name": "data", "mountPath": "/x"}, {"name": "data", "mountPath": "/x"}]}
    assert try_out([claim("data")], container=twice) == [
        'containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique'
    ]
    assert try_out([claim("data")], container={**mounts("data"), **devices("data")}) == [
        'containers[0].volumeMounts[0].name: Invalid value: "data": must not already exist in volumeDevices',
        'containers[0].volumeMounts[0].mountPath: Invalid value: "/m0": must not already exist as a path in '
        'volumeDevices',
        'containers[0].volumeDevices[0].name: Invalid value: "data": must not already exist in volumeMounts',
        'containers[0].volumeDevices[0].devicePath: Invalid value: "/m0": must not already exist as a path in '
        'volumeMounts',
    ]


@pytest.mark.parametrize(
    "claim, expected",
    [
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, ["resources[storage]: Required value"]),
        ({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}, [MODES]),
        ({}, [MODES, "resources[storage]: Required value"]),
    ],
)
def test_invalid_claims_are_refused_with_causes(try_out, claim, expected):
    causes = try_out([{"metadata": {"name": "data"}, **claim}], container=mounts("data"))
    assert causes == [f"spec.volumeClaimTemplates[0].spec.{text}" for text in expected]


def test_templates_have_no_ephemeral_containers(try_out):
    assert try_out(ephemeralContainers=[{"name": "e", "image": "i"}]) == [
        "ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"
    ]
