"""A thin client of the Kubernetes API, as many teams have one of their own."""

import aiohttp

import kopf


class ApiError(Exception):
    """The API has refused a request."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object exists already, or has changed since it was read."""


ERRORS = {404: NotFound, 409: Conflict}
CONFIGMAPS = "/api/v1/namespaces/{}/configmaps"
SECRETS = "/api/v1/namespaces/{}/secrets"
SERVICES = "/api/v1/namespaces/{}/services"
WEBAPPS = "/apis/example.com/v1/namespaces/{}/webapps"


class Kube:
    """One session with the cluster; the paths are those of collections, with or without a name at the end."""

    def __init__(self, **kwargs):
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        self.server = info.server
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            timeout=aiohttp.ClientTimeout(total=20),
        )

    async def close(self):
        await self.session.close()

    async def request(self, method, path, body=None, content_type="application/json"):
        headers = {"Content-Type": content_type}
        async with self.session.request(method, self.server + path, json=body, headers=headers) as response:
            answer = await response.json()
            if response.status >= 400:
                raise ERRORS.get(response.status, ApiError)(response.status, answer.get("message"))
            return answer

    async def get(self, path):
        return await self.request("GET", path)

    async def list(self, path):
        return (await self.request("GET", path))["items"]

    async def create(self, path, body):
        return await self.request("POST", path, body)

    async def replace(self, path, body):
        return await self.request("PUT", path, body)

    async def patch(self, path, body):
        return await self.request("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, path):
        return await self.request("DELETE", path)
