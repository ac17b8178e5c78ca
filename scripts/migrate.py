"""Move objects between this package and upstream kopf 1.45: `python scripts/migrate.py to-upstream secrets`.

Nearly all that operators leave on objects has one format in both. What upstream cannot read is written as it would
write it: the last handled state of Secrets, of which we keep digests, and states that were too large for an annotation.
In the other direction, nothing has to be done; `from-upstream` replaces the copies of Secrets' data by digests at once.

Run it while no operator runs. It changes nothing but annotations, each object only if it is still as it was read, and
it can be run again. `--dry-run` only says what would be done. The exit code is 1 if some objects cannot be moved.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import kopf
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.discovery import discover
from kopf._cogs.clients.errors import APIConflictError, APIError
from kopf._cogs.configs import digests, storage_formats
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Resource, Selector

STATE, PACKED = "last-handled-configuration", "last-handled-configuration-packed"
OURS_ONLY = {"base", "delay", "digest", "waits"}
SECRET_FIELDS = ("data", "stringData")


class Stuck(Exception):
    """The object cannot be moved; the text says why, and what to do."""


def to_upstream(body: Body, prefix: str) -> dict[str, str | None]:
    """Give the annotations to be changed so that upstream kopf can go on with the object."""
    changes: dict[str, str | None] = {}
    for name, key, text in list_annotations(body, prefix):
        if name == PACKED or name.startswith(f"{PACKED}-"):
            changes |= {key: None, key.replace(PACKED, STATE): unpack(text, body)}
        elif name == STATE or name.startswith(f"{STATE}-"):
            stored = storage_formats.load_json(text)
            revealed = digests.reveal(stored, current_state(body), body)
            if revealed != stored:
                changes[key] = dump(revealed)
        else:
            record = storage_formats.load_json(text)
            if isinstance(record, dict) and OURS_ONLY & set(record):
                changes[key] = storage_formats.dump_json({k: v for k, v in record.items() if k not in OURS_ONLY})
    annotations = storage_formats.get_annotations(body)
    if (
        changes
        and storage_formats.measure_annotations({**annotations, **changes}) > storage_formats.MAX_ANNOTATIONS_SIZE
    ):
        raise Stuck(
            "its last handled state does not fit into annotations: with upstream kopf, it is handled as a new "
            "object. Let this operator handle it with StatusDiffBaseStorage or ignored_fields= in both first"
        )
    return changes


def from_upstream(body: Body, prefix: str) -> dict[str, str | None]:
    """Give the annotations to be changed so that the object is as we would have left it."""
    if body.get("kind") != "Secret" or body.get("apiVersion") != "v1":
        return {}
    changes: dict[str, str | None] = {}
    for name, key, text in list_annotations(body, prefix):
        if name == STATE or name.startswith(f"{STATE}-"):
            concealed = dump(digests.conceal(storage_formats.load_json(text), SECRET_FIELDS, body))
            if concealed != text:
                changes[key] = concealed
    return changes


DIRECTIONS = {"to-upstream": to_upstream, "from-upstream": from_upstream}


def list_annotations(body: Body, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Give the names, the keys and the texts of those annotations that operators with this prefix have written."""
    for key, text in storage_formats.get_annotations(body).items():
        if key.startswith(f"{prefix}/") and text.startswith(("{", "e")):  # JSON, or compressed
            yield key[len(prefix) + 1 :], key, text


def current_state(body: Body) -> Any:
    """Give all of the object that can be a part of the last handled state."""
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def unpack(text: str, body: Body) -> str:
    if not text.startswith("{"):
        return digests.unpack(text)
    revealed = digests.reveal(json.loads(text), current_state(body), body)
    if digests.PREFIX in json.dumps(revealed):
        raise Stuck(
            "its last handled state was too large, so that only digests of it are known, and the object has "
            "changed since. Let this operator handle the change first"
        )
    return dump(revealed)


def dump(state: Mapping[str, Any]) -> str:
    return storage_formats.dump_json(state) + "\n"


async def list_objects(client: ApiClient, resource: Resource, namespace: str | None) -> AsyncIterator[Body]:
    token: str | None = None
    while True:
        url = resource.get_url(namespace=namespace if resource.namespaced else None)
        page = await client.get_json(url, {"limit": "500", "continue": token})
        for item in page["items"]:
            yield Body({"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List"), **item})
        if not (token := page["metadata"].get("continue")):
            return


async def migrate(args: argparse.Namespace) -> int:
    settings, stuck = kopf.OperatorSettings(), 0
    info = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise SystemExit("There is no cluster to be found: neither a service account nor a kubeconfig.")
    vault = Vault({HandlerId("migrate"): info})
    async with ApiClient(vault, settings) as client:
        found = await discover(client)
        for name in args.resources:
            resources = Selector(name).select(found.resources)
            if len(resources) != 1:
                raise SystemExit(f"{name}: there {'is no such kind' if not resources else 'are several such kinds'}.")
            for resource in resources:
                async for body in list_objects(client, resource, args.namespace):
                    stuck += not await move(client, resource, body, args)
    await vault.close()
    return 1 if stuck else 0


async def move(client: ApiClient, resource: Resource, body: Body, args: argparse.Namespace) -> bool:
    """Change the object if it has to be changed; tell if it is, or if there was no need."""
    who = storage_formats.describe_object(body)
    try:
        changes = DIRECTIONS[args.direction](body, args.prefix)
        if changes and not args.dry_run:
            meta = {"annotations": changes, "resourceVersion": body.meta["resourceVersion"], "uid": body.meta.uid}
            url = resource.get_url(namespace=body.meta.namespace, name=body.meta.name)
            await client.patch(url, {"metadata": meta}, "application/merge-patch+json")
    except Stuck as error:
        print(f"{who} is left as it is: {error}.")
        return False
    except APIConflictError:
        print(f"{who} is left as it is: it has changed in this moment. Run it again.")
        return False
    except (APIError, ValueError) as error:
        print(f"{who} is left as it is: {error}")
        return False
    if changes:
        print(f"{who} {'would be' if args.dry_run else 'is'} moved: {', '.join(sorted(changes))}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Move objects between this package and upstream kopf 1.45.")
    parser.add_argument("direction", choices=DIRECTIONS)
    parser.add_argument("resources", nargs="+", metavar="RESOURCE", help="as decorators name them, e.g. kopfexamples")
    parser.add_argument("-n", "--namespace", help="only the objects of this namespace")
    parser.add_argument("--prefix", default="kopf.zalando.org", help="the prefix of the operator's annotations")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    return asyncio.run(migrate(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
