"""PersistentVolumeClaims that are used by pods outlive their deletion."""


async def test_claims_wait_for_their_pods(client):
    core = f"/api/v1/namespaces/{client.namespace}"
    claim = {
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    pod = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "a", "image": "a"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        },
    }
    assert (await client("POST", f"{core}/persistentvolumeclaims", claim)).status == 201
    assert (await client("POST", f"{core}/pods", pod)).status == 201
    async with client.watch(f"{core}/persistentvolumeclaims") as watch:
        assert (await watch.next())["type"] == "ADDED"
        assert "deletionTimestamp" in (await client("DELETE", f"{core}/persistentvolumeclaims/c")).body["metadata"]
        assert (await watch.next())["type"] == "MODIFIED"
        assert (await client("DELETE", f"{core}/pods/p")).status == 200
        assert (await watch.next())["type"] == "DELETED"


async def test_claims_are_resized_when_they_are_bound(client):
    claims = f"/api/v1/namespaces/{client.namespace}/persistentvolumeclaims"
    await client(
        "POST",
        claims,
        {
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    resize = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    merge = "application/strategic-merge-patch+json"
    refused = await client("PATCH", f"{claims}/c", resize, type=merge)
    assert (refused.status, refused.fields) == (422, {"spec"})
    await client("PATCH", f"{claims}/c/status", {"status": {"phase": "Bound"}}, type=merge)
    resized = (await client("PATCH", f"{claims}/c", resize, type=merge)).body
    assert resized["spec"]["resources"]["requests"] == {"storage": "2Gi"}
