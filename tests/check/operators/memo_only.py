"""Planted: a password that is only in memory. After a restart, the secret gets another one."""

import secrets

import kopf


@kopf.on.reconcile("databases", owns=["secrets"])
async def reconcile(name, memo, children, **_):
    if "password" not in memo:
        memo.password = secrets.token_urlsafe(16)
    await children.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{name}-login"},
            "stringData": {"user": "admin", "password": memo.password},
        }
    )
