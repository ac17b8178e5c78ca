"""Discovery of groups, versions and resources, as clients use it."""

import pytest

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
GROUP = "things.example.dev"


async def test_version_and_health_can_be_asked_for(client):
    assert "gitVersion" in (await client("GET", "/version")).body
    for path in ("/healthz", "/livez", "/readyz"):
        answer = await client("GET", path)
        assert (answer.status, answer.body) == (200, "ok")


async def test_legacy_documents_list_groups_and_resources(client):
    assert (await client("GET", "/api")).body["versions"] == ["v1"]
    groups = {group["name"]: group for group in (await client("GET", "/apis")).body["groups"]}
    assert {"apps", "batch", "events.k8s.io", "coordination.k8s.io", GROUP} <= set(groups)
    assert groups["autoscaling"]["preferredVersion"]["version"] == "v2"
    resources = {item["name"]: item for item in (await client("GET", "/api/v1")).body["resources"]}
    assert resources["pods"]["shortNames"] == ["po"]
    assert not resources["namespaces"]["namespaced"]
    assert "deletecollection" not in resources["namespaces"]["verbs"]
    assert resources["pods/status"]["verbs"] == ["get", "patch", "update"]


async def test_custom_resources_in_legacy_documents(client):
    resources = {item["name"]: item for item in (await client("GET", f"/apis/{GROUP}/v1")).body["resources"]}
    assert resources["things"]["kind"] == "Thing"
    assert resources["things"]["singularName"] == "thing"
    assert resources["things"]["shortNames"] == ["th"]
    assert resources["things"]["categories"] == ["all"]
    assert "things/status" in resources


async def test_aggregated_documents_list_all_at_once(client):
    answer = await client("GET", "/apis", headers={"Accept": f"{AGGREGATED},application/json"})
    assert answer.headers["Content-Type"] == AGGREGATED
    assert answer.body["kind"] == "APIGroupDiscoveryList"
    groups = {group["metadata"]["name"]: group for group in answer.body["items"]}
    (resource,) = groups[GROUP]["versions"][0]["resources"]
    assert resource["responseKind"] == {"group": GROUP, "version": "v1", "kind": "Thing"}
    assert [sub["subresource"] for sub in resource["subresources"]] == ["status"]
    core = await client("GET", "/api", headers={"Accept": AGGREGATED})
    assert any(item["resource"] == "pods" for item in core.body["items"][0]["versions"][0]["resources"])


async def test_unknown_versions_of_the_aggregated_form_fall_back(client):
    other = AGGREGATED.replace("v=v2", "v=v2beta1")
    answer = await client("GET", "/apis", headers={"Accept": f"{other},application/json"})
    assert answer.body["kind"] == "APIGroupList"


async def test_versions_are_ordered_by_maturity(client, make_crd):
    definition = make_crd("ages", "Age")
    first = definition["spec"]["versions"][0]
    definition["spec"]["versions"] = [
        {**first, "name": name, "storage": name == "v1beta1"} for name in ("v1beta1", "v2alpha1", "v10", "v2", "old")
    ]
    await client("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for version in ("v10", "v2", "v1beta1", "v2alpha1", "old"):
        resources = (await client("GET", f"/apis/{GROUP}/{version}")).body["resources"]
        assert "ages" in [item["name"] for item in resources]
    group = (await client("GET", f"/apis/{GROUP}")).body
    assert [item["version"] for item in group["versions"]] == ["v10", "v2", "v1", "v1beta1", "v2alpha1", "old"]


async def test_openapi_documents_have_the_custom_kinds(client):
    index = (await client("GET", "/openapi/v3")).body["paths"]
    document = (await client("GET", index[f"apis/{GROUP}/v1"]["serverRelativeURL"].partition("?")[0])).body
    patch = document["paths"][f"/apis/{GROUP}/v1/namespaces/{{namespace}}/things/{{name}}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": GROUP, "version": "v1", "kind": "Thing"}
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert (await client("GET", "/openapi/v2")).body["swagger"] == "2.0"
    accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    assert (await client("GET", "/openapi/v2", headers={"Accept": accept})).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/apis/nope",
        "/apis/nope/v1",
        "/apis/nope/v1/things",
        f"/apis/{GROUP}/v9/things",
        f"/apis/{GROUP}/v1/nope",
        f"/apis/{GROUP}/v1/things/a",
    ],
)
async def test_unknown_paths_are_not_found(client, path):
    answer = await client("GET", path)
    assert (answer.status, answer.body) == (404, "404 page not found\n")


@pytest.mark.parametrize("path", ["/api/v1/nope", "/apis/apps/v1/nope", "/api/v1/pods/x", "/api/v1/namespaces/x/nodes"])
async def test_unknown_resources_of_known_groups_are_not_found(client, path):
    answer = await client("GET", path)
    assert answer.status == 404
    assert answer.body["kind"] == "Status"
    assert answer.message == "the server could not find the requested resource"


@pytest.mark.parametrize(
    "method, path",
    [
        ("PUT", "/api/v1/namespaces"),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", "/api/v1/configmaps"),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
    ],
)
async def test_unknown_verbs_are_not_allowed(client, method, path):
    answer = await client(method, path, {})
    assert (answer.status, answer.body["reason"]) == (405, "MethodNotAllowed")


@pytest.mark.parametrize(
    "path, accept, status",
    [
        ("/api/v1", "text/plain", 406),
        ("/apis/apps/v1", "application/yaml", 200),
        ("/version", "application/yaml", 406),
        ("/apis/apps/v1", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 406),
        ("/openapi/v2", "text/plain", 406),
        ("/healthz", "text/plain", 200),
        ("/apis", "text/html, */*", 200),
    ],
)
async def test_the_forms_of_documents(client, path, accept, status):
    answer = await client("GET", path, headers={"Accept": accept})
    assert answer.status == status
    if status == 200 and "yaml" in accept:
        assert answer.headers["Content-Type"] == "application/yaml"
