"""The client of a cloud. Its databases get their identifiers from the cloud, and are paid for until they are deleted.

For tests, the cloud is a kind of the sandbox: so it is seen what is ordered, and what is left over.
"""

from kube import NotFound

DATABASES = "/apis/cloud.example.com/v1/clouddatabases"


async def create_database(kube, **settings):
    """Order a database; return its identifier."""
    body = {"apiVersion": "cloud.example.com/v1", "kind": "CloudDatabase", "metadata": {"generateName": "db-"}}
    return (await kube.create(DATABASES, {**body, "spec": settings}))["metadata"]["name"]


async def find_database(kube, name):
    """Return the identifier of the database that was ordered with this name, or None."""
    found = [item["metadata"]["name"] for item in await kube.list(DATABASES) if item["spec"].get("name") == name]
    return found[0] if found else None


async def change_database(kube, identifier, **settings):
    await kube.patch(f"{DATABASES}/{identifier}", {"spec": settings})


async def delete_database(kube, identifier):
    """Delete the database; it is no error if it is gone already."""
    try:
        await kube.delete(f"{DATABASES}/{identifier}")
    except NotFound:
        pass
