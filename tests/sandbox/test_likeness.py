"""What was found by comparing the sandbox with a real control plane: the same answers to the same requests.

Each row was seen there. `tests/differential/` compares more, and needs a control plane.
"""

import pytest

JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
CONFIGS, PODS = "/api/v1/namespaces/{ns}/configmaps", "/api/v1/namespaces/{ns}/pods"
THINGS = "/apis/things.example.dev/v1/namespaces/{ns}/things"
LABEL = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
FORMATS = "only the following media types are accepted: application/json, application/yaml, "
NO_KIND = (
    "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: "
)
STRUCT = (
    'json: cannot unmarshal array into Go value of type struct { APIVersion string '
    '"json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)


@pytest.mark.parametrize(
    "method, path, params, status, message",
    [
        ("GET", CONFIGS, {"limit": ""}, 400, 'strconv.ParseInt: parsing "": invalid syntax'),
        (
            "GET",
            CONFIGS,
            {"limit": "99999999999999999999"},
            400,
            'strconv.ParseInt: parsing "99999999999999999999": value out of range',
        ),
        ("GET", CONFIGS, {"timeoutSeconds": "x", "limit": "y"}, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        (
            "GET",
            CONFIGS,
            {"continue": "!!"},
            400,
            "invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
        ),
        (
            "GET",
            CONFIGS,
            {"continue": "e30"},
            400,
            "invalid continue token: continue key is not valid: server does not recognize this encoded version ",
        ),
        (
            "GET",
            CONFIGS,
            {"resourceVersion": "-1"},
            400,
            'invalid resource version: resourceVersion: Invalid value: "-1": strconv.ParseUint: parsing "-1": invalid syntax',
        ),
        (
            "GET",
            CONFIGS,
            {"fieldSelector": "x=y"},
            400,
            '"x" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        ("GET", PODS, {"fieldSelector": "x=y"}, 400, "field label not supported: x"),
        ("GET", CONFIGS, {"labelSelector": "n=1,"}, 400, "found '', expected: identifier after ','"),
        ("GET", CONFIGS, {"labelSelector": "!"}, 400, "unable to parse requirement: found '', expected: identifier"),
        (
            "GET",
            CONFIGS,
            {"timeout": "x"},
            400,
            'invalid timeout specified in the request URL - time: invalid duration "x"',
        ),
        ("GET", CONFIGS + "/%25", {}, 400, "Name parameter invalid: \"%\": may not contain '%'"),
        (
            "GET",
            CONFIGS + "/none",
            {"resourceVersion": "x"},
            500,
            'resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax',
        ),
        (
            "DELETE",
            CONFIGS + "/none",
            {"propagationPolicy": "Bad"},
            422,
            'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Bad": supported values: '
            '"Foreground", "Background", "Orphan", "nil"',
        ),
        (
            "POST",
            CONFIGS,
            {"dryRun": "", "fieldManager": "a\nb"},
            422,
            'CreateOptions.meta.k8s.io "" is invalid: [fieldManager: Invalid value: "a\\nb": invalid character U+000A (at '
            'position 1), dryRun: Unsupported value: [""]: supported values: "All"]',
        ),
        ("POST", "/version", {}, 405, "the server does not allow this method on the requested resource"),
        ("OPTIONS", THINGS, {}, 405, ' is not supported on resources of kind "things.things.example.dev"'),
        ("GET", "/apis/apps/v9/deployments", {}, 404, "the server could not find the requested resource"),
    ],
)
async def test_wrong_parameters_and_places_are_refused(client, method, path, params, status, message):
    body = {"metadata": {"name": "x"}} if method == "POST" else None
    url = path.format(ns=client.namespace)
    if "%" in url:  # Otherwise, it would be encoded once more.
        import yarl

        async with client.session.request(method, yarl.URL(client.url + url, encoded=True)) as response:
            assert (response.status, (await response.json())["message"]) == (status, message)
        return
    answer = await client(method, url, body, **params)
    assert (answer.status, answer.message) == (status, message)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", NO_KIND + "unexpected end of JSON input ({)"),
        ("", NO_KIND + "unexpected end of JSON input (<empty>)"),
        ("nope", NO_KIND + "invalid character 'o' in literal null (expecting 'u') (6e6f7065)"),
        ('{"a": 1,}', NO_KIND + "invalid character '}' looking for beginning of object key string ({\"a\": 1,})"),
        ('{"a": [1 2]}', NO_KIND + "invalid character '2' after array element ({\"a\": [1 2]})"),
        ("[]", NO_KIND + STRUCT + " (5b5d)"),
        (
            '{"kind": 5}',
            NO_KIND + 'json: cannot unmarshal number into Go struct field .kind of type string ({"kind": 5})',
        ),
    ],
)
async def test_unreadable_bodies_are_refused_in_the_same_words(client, text, message):
    answer = await client("POST", client.configmaps, data=text)
    assert (answer.status, answer.message) == (400, message)


@pytest.mark.parametrize(
    "type, text, status, message",
    [
        (MERGE, "null", 400, "Invalid JSON Patch"),
        (
            MERGE,
            "[]",
            400,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (MERGE, "{} x", 400, "error decoding patch: invalid character 'x' after top-level value"),
        (
            JSON,
            "[5]",
            400,
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
        ),
        (
            JSON,
            '[{"op": 5}]',
            400,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
        (JSON, "[null]", 422, "the server rejected our request due to an error in our request"),
        ("text/plain", "{}", 415, "415: Unsupported Media Type"),
    ],
)
async def test_unreadable_patches_are_refused_in_the_same_words(client, type, text, status, message):
    await client("POST", client.configmaps, {"metadata": {"name": "c"}})
    answer = await client("PATCH", f"{client.configmaps}/c", data=text, type=type)
    assert (answer.status, answer.message) == (status, message)
    answer = await client("PATCH", f"{client.configmaps}/none", data=text, type=type)
    assert answer.status == (415 if status == 415 else 404)  # What is not there is missed before the patch is read.


@pytest.mark.parametrize(
    "meta, fields, message",
    [
        (
            {"labels": {"a/": ""}},
            ["metadata.labels"] * 2,
            f'[metadata.labels: Invalid value: "a/": name part must be non-empty, metadata.labels: Invalid value: "a/": name '
            f'part {LABEL}]',
        ),
        (
            {"finalizers": ["nodomain"]},
            ["metadata.finalizers[0]"],
            'metadata.finalizers[0]: Invalid value: "nodomain": name is neither a standard finalizer name nor is it fully '
            'qualified',
        ),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "n", "uid": "u"}]},
            ["metadata.ownerReferences"],
            'metadata.ownerReferences: Invalid value: {"apiVersion":"v1","kind":"Event","name":"n","uid":"u"}: /v1, '
            'Kind=Event is disallowed from being an owner',
        ),
        (
            {"generation": -1},
            ["metadata.generation"],
            "metadata.generation: Invalid value: -1: must be greater than or equal to 0",
        ),
    ],
)
async def test_invalid_metadata_is_refused_in_the_same_words(client, meta, fields, message):
    answer = await client("POST", client.configmaps, {"metadata": {"name": "q", **meta}})
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == fields
    assert answer.message == f'ConfigMap "q" is invalid: {message}'


@pytest.mark.parametrize(
    "accept, path, message",
    [
        (
            "image/png",
            CONFIGS + "/none",
            "406: Not Acceptable\n\nAvailable representations: application/json, "
            "application/yaml, application/vnd.kubernetes.protobuf",
        ),
        ("image/png", THINGS, FORMATS + "application/vnd.kubernetes.protobuf"),
        ("application/json;as=Table;v=v9;g=meta.k8s.io", CONFIGS, FORMATS + "application/vnd.kubernetes.protobuf"),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            CONFIGS,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)",
        ),
    ],
)
async def test_what_is_accepted(client, accept, path, message):
    answer = await client("GET", path.format(ns=client.namespace), headers={"Accept": accept})
    assert (answer.status, answer.message) == (406, message)


async def test_pods_are_completed(client):
    spec = {"containers": [{"name": "c", "image": "nginx", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}]}
    answer = await client("POST", PODS.format(ns=client.namespace), {"metadata": {"name": "p"}, "spec": spec})
    container = answer.body["spec"]["containers"][0]
    amounts = {"cpu": "500m", "memory": "1Gi"}
    assert container == {
        "name": "c",
        "image": "nginx",
        "resources": {"limits": amounts, "requests": amounts},
        "imagePullPolicy": "Always",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    assert [item["key"] for item in answer.body["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert (answer.body["spec"]["dnsPolicy"], answer.body["status"]["qosClass"]) == ("ClusterFirst", "Guaranteed")


@pytest.mark.parametrize(
    "plural, body, message",
    [
        (
            "deployments",
            {
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {
                        "metadata": {"labels": {"a": "c"}},
                        "spec": {"containers": [{"name": "c", "image": "i"}]},
                    },
                }
            },
            'spec.template.metadata.labels: Invalid value: {"a":"c"}: `selector` does not match template `labels`',
        ),
        (
            "deployments",
            {
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}},
                }
            },
            "spec.template.spec.containers[0].image: Required value",
        ),
        (
            "deployments",
            {
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {
                        "metadata": {"labels": {"a": "b"}},
                        "spec": {"containers": [{"name": "c", "image": "i", "envFrom": [{}]}]},
                    },
                }
            },
            'spec.template.spec.containers[0].envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`',
        ),
    ],
)
async def test_demands_of_builtin_kinds(client, plural, body, message):
    path = f"/apis/apps/v1/namespaces/{client.namespace}/{plural}"
    answer = await client("POST", path, {"metadata": {"name": "x"}, **body})
    assert answer.status == 422
    assert message in answer.message


async def test_tables_have_all_columns(client):
    await client("POST", client.configmaps, {"metadata": {"name": "c"}, "data": {"a": "b"}})
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = (await client("GET", client.configmaps, headers=headers)).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["c", 1]


SCHEME = 'in scheme "pkg/runtime/scheme.go:111"'


@pytest.mark.parametrize(
    "version, kind, message",
    [
        (
            "v1",
            "Secret",
            'Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to '
            '(core.ConfigMap): unknown conversion',
        ),
        (
            "apps/v1",
            "DeploymentList",
            'DeploymentList in version "v1" cannot be handled as a ConfigMap: converting '
            '(v1.DeploymentList) to (core.ConfigMap): unknown conversion',
        ),
        (
            "v1",
            "Status",
            'Status in version "v1" cannot be handled as a ConfigMap: converting (v1.Status) to '
            '(core.ConfigMap): unknown conversion',
        ),
        (
            "v1",
            "Other",
            f'Other in version "v1" cannot be handled as a ConfigMap: no kind "Other" is registered for '
            f'version "v1" {SCHEME}',
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            'CustomResourceDefinition in version "v1" cannot be handled as a ConfigMap: no kind "CustomResourceDefinition" is '
            f'registered for version "apiextensions.k8s.io/v1" {SCHEME}',
        ),
        (
            "a/b/c",
            "X",
            'the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: '
            'a/b/c ({"apiVersion": "a/b/c", "kind" ...)',
        ),
    ],
)
async def test_objects_of_other_kinds_are_refused(client, version, kind, message):
    answer = await client("POST", client.configmaps, {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}})
    assert (answer.status, answer.message) == (400, message)


@pytest.mark.parametrize(
    "type, text, status, message",
    [
        (MERGE, "5", 400, "Invalid JSON Patch"),
        (MERGE, "{", 400, "Invalid JSON Patch"),
        (
            MERGE,
            "[]",
            422,
            f' "" is invalid: patch: Invalid value: "[]": couldn\'t get version/kind; json parse error: {STRUCT}',
        ),
        (JSON, "[", 400, "unexpected end of JSON input"),
        (JSON, "{}", 400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        (JSON, "[5]", 400, "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
        (JSON, '[{"op": 5}]', 422, "the server rejected our request due to an error in our request"),
    ],
)
async def test_malformed_patches_are_refused_even_if_unknown_fields_are_ignored(client, type, text, status, message):
    await client("POST", client.configmaps, {"metadata": {"name": "c"}})
    answer = await client("PATCH", f"{client.configmaps}/c", data=text, type=type, fieldValidation="Ignore")
    assert (answer.status, answer.message) == (status, message)


async def test_refusals_can_be_in_yaml(client):
    answer = await client("GET", f"{client.configmaps}/none", headers={"Accept": "application/yaml"})
    assert answer.headers["Content-Type"] == "application/yaml"
    assert 'message: configmaps "none" not found\n' in answer.body


async def test_collections_are_deleted_in_pages(client):
    for name in "abc":
        await client("POST", client.configmaps, {"metadata": {"name": name}})
    answer = await client("DELETE", client.configmaps, limit="2")
    assert ([item["metadata"]["name"] for item in answer.body["items"]], "continue" in answer.body["metadata"]) == (
        ["a", "b"],
        True,
    )
    assert (await client("GET", f"{client.configmaps}/c")).status == 200
    answer = await client("DELETE", f"{client.configmaps}/c", uid="other")
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")


async def test_what_is_listed_but_not_emulated(client):
    names = {resource["name"] for resource in (await client("GET", "/api/v1")).body["resources"]}
    assert {"bindings", "componentstatuses", "nodes/proxy", "pods/resize"} <= names
    assert (await client("GET", "/api/v1/componentstatuses")).status == 501
    assert (await client("PATCH", "/api/v1/componentstatuses", {}, type=MERGE)).status == 405
    assert (await client("GET", "/api/v1/nodes/none/proxy")).message == 'nodes "none" not found'


async def test_columns_are_described_once_in_a_stream(client):
    for name in "ab":
        await client("POST", client.configmaps, {"metadata": {"name": name}})
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with client.watch(
        client.configmaps,
        headers=table,
        allowWatchBookmarks="true",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
    ) as watch:
        tables = [(await watch.next())["object"] for _ in range(3)]
    assert [bool(each["columnDefinitions"]) for each in tables] == [True, False, False]
    assert tables[2]["rows"][0]["cells"] == ["", 0, "<unknown>"]


@pytest.mark.parametrize(
    "path, expected",
    [
        (PODS, {"spec": {"containers": None}, "status": {}}),
        (CONFIGS, {}),
        (THINGS, {}),
        (
            "/apis/apps/v1/deployments",
            {
                "status": {},
                "spec": {
                    "replicas": 0,
                    "selector": None,
                    "strategy": {},
                    "template": {"metadata": {}, "spec": {"containers": None}},
                },
            },
        ),
    ],
)
async def test_what_bookmarks_are_about(client, path, expected):
    async with client.watch(
        path.format(ns=client.namespace),
        allowWatchBookmarks="true",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
    ) as watch:
        found = (await watch.next())["object"]
    assert {key: value for key, value in found.items() if key not in ("apiVersion", "kind", "metadata")} == expected


async def test_repeated_structures_are_put_together(client):
    text = '{"metadata": {"name": "a", "labels": {"x": "1"}}, "metadata": {"name": "b"}}'
    answer = await client("POST", client.configmaps, data=text)
    assert (answer.body["metadata"]["name"], answer.body["metadata"]["labels"]) == ("b", {"x": "1"})


async def test_pages_of_selected_objects_end_where_nothing_follows(client):
    for name, label in ("a", "1"), ("b", "0"):
        await client("POST", client.configmaps, {"metadata": {"name": name, "labels": {"n": label}}})
    for limit, goes_on in ("1", True), ("2", False):
        answer = await client("GET", client.configmaps, labelSelector="n=1", limit=limit)
        assert ("continue" in answer.body["metadata"]) is goes_on


async def test_what_was_changed_of_a_claim(client):
    path = f"/api/v1/namespaces/{client.namespace}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await client("POST", path, {"metadata": {"name": "c"}, "spec": spec})
    answer = await client("PATCH", f"{path}/c", {"spec": {"volumeMode": "Block"}}, type=MERGE)
    causes = {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}
    assert causes["volumeMode"] == 'Invalid value: "Block": field is immutable'
    assert causes["spec"].endswith(
        '@@ -11,7 +11,7 @@\n  },\n  "VolumeName": "",\n  "StorageClassName": null,\n- "VolumeMode": "Filesystem",\n'
        '+ "VolumeMode": "Block",\n  "DataSource": null,\n  "DataSourceRef": null,\n'
        '  "VolumeAttributesClassName": null\n'
    )


@pytest.mark.parametrize(
    "backend, message",
    [
        ({}, 'spec.defaultBackend: Invalid value: "": resource or service backend is required'),
        ({"service": {"port": {"number": 1}}}, "spec.defaultBackend.service.name: Required value"),
        ({"service": {"name": "x"}}, "spec.defaultBackend: Required value: port name or number is required"),
    ],
)
async def test_backends_of_ingresses_are_checked(client, backend, message):
    path = f"/apis/networking.k8s.io/v1/namespaces/{client.namespace}/ingresses"
    answer = await client("POST", path, {"metadata": {"name": "x"}, "spec": {"defaultBackend": backend}})
    assert (answer.status, answer.message) == (422, f'Ingress.networking.k8s.io "x" is invalid: {message}')


@pytest.mark.parametrize(
    "place, body, change, message",
    [
        (
            "storage.k8s.io/v1/storageclasses",
            {"provisioner": "a/b"},
            {"reclaimPolicy": "Retain"},
            'reclaimPolicy: Invalid value: "Retain": field is immutable',
        ),
        (
            "scheduling.k8s.io/v1/priorityclasses",
            {"value": 5},
            {"value": 6},
            "value: Forbidden: may not be changed in an update.",
        ),
    ],
)
async def test_classes_stay_as_they_are(client, place, body, change, message):
    path, name = f"/apis/{place}", f"c-{client.namespace}"
    await client("POST", path, {"metadata": {"name": name}, **body})
    answer = await client("PATCH", f"{path}/{name}", change, type=MERGE)
    await client("DELETE", f"{path}/{name}")
    assert (answer.status, answer.message.partition(" is invalid: ")[2]) == (422, message)


async def test_absent_objects_are_missed_before_their_kind_is_looked_at(client):
    body = {"apiVersion": "things.example.dev/v1", "kind": "Other", "metadata": {"name": "none"}}
    assert (await client("PUT", f"{client.things}/none", body)).status == 404
    assert (await client("POST", client.things, body)).status == 422


async def test_changes_of_endpoint_slices_are_counted(client):
    path = f"/apis/discovery.k8s.io/v1/namespaces/{client.namespace}/endpointslices"
    await client(
        "POST",
        path,
        {
            "metadata": {"name": "e"},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.2.3"]}],
            "ports": [{"name": "http", "port": 80}],
        },
    )
    changes = {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"annotations": {"a": "b"}}}, {"ports": []}
    found = [
        (await client("PATCH", f"{path}/e", change, type=MERGE)).body["metadata"]["generation"] for change in changes
    ]
    assert found == [2, 2, 3]
