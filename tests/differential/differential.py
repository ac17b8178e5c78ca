"""Does the sandbox answer as a real control plane does? The same random requests, bad ones included, are sent to both.

    python tests/differential/differential.py --seed 7 --requests 1000 [--real KUBECONFIG] [--least 98 97]

Episodes of some dozens of requests, each in a namespace of its own, depend only on the seed and their number: what one
of them has found, `--seed S --episode N` shows again. The agreement is printed by class, and what differs, by what it
is.
The real control plane is that of $KUBECONFIG; the sandbox is started here, unless --sandbox names another.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.parse
from collections.abc import AsyncIterator, Iterable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import normal
import worlds
from episodes import Episode
from ownership import OwnershipEpisode, sort_owners
from steps import Memory, Step
from twins import HEADERS, Answer, Twins

LENGTH = 50
CONCURRENCY = 4
SANDBOX, REAL = 0, 1
PROTECTED = ("persistentvolumes", "persistentvolumeclaims")
PROTECTIONS = (["kubernetes.io/pv-protection"], ["kubernetes.io/pvc-protection"])


@dataclasses.dataclass
class Comparison:
    """One request and both answers, as far as they can be compared."""

    episode: str
    step: Step
    answers: list[Answer]
    bodies: list[Any]
    headers: list[dict[str, str]]

    @property
    def same_status(self) -> bool:
        one, other = self.answers
        return one.status == other.status and one.reason == other.reason

    @property
    def same_body(self) -> bool:
        return self.same_status and (self.step.shallow or self.bodies[SANDBOX] == self.bodies[REAL])

    @property
    def same_headers(self) -> bool:
        return self.headers[SANDBOX] == self.headers[REAL]

    def differences(self) -> list[tuple[str, Any, Any]]:
        one, other = self.answers
        if not self.same_status:
            return [
                (
                    "status",
                    f"{one.status} {one.reason} {_message(one)}",
                    f"{other.status} {other.reason} {_message(other)}",
                )
            ]
        if not self.same_body:
            return list(normal.differences(*self.bodies))
        return [
            (f"header {key}", *pair)
            for key in HEADERS
            if (pair := tuple(headers.get(key) for headers in self.headers))[0] != pair[1]
        ]

    def as_line(self) -> str:
        """All of it, as a line of JSON."""
        step = self.step
        body = step.body.decode(errors="replace") if isinstance(step.body, bytes) else step.body
        return json.dumps(
            {
                "episode": self.episode,
                "label": step.label,
                "method": step.method,
                "path": step.path,
                "params": step.params,
                "accept": step.accept,
                "type": step.type,
                "body": body,
                "same_status": self.same_status,
                "same_body": self.same_body,
                "statuses": [[answer.status, answer.reason, _message(answer)] for answer in self.answers],
                "differences": [(path, _short(one), _short(other)) for path, one, other in self.differences()],
            },
            default=lambda _: "(given by the server)",
        )

    def signature(self) -> str:
        """Return what the difference is, without the names."""
        kind = self.step.label if not self.same_status else ""
        return kind + " | ".join(sorted({re.sub(r"\[\d+]", "[]", path) for path, _, _ in self.differences()})[:4])


def _headers(names: normal.Names, answer: Answer) -> dict[str, str]:
    return {key: names.normal(", ".join(answer.headers.getall(key))) for key in HEADERS if key in answer.headers}


def _message(answer: Answer) -> str:
    return str(answer.body.get("message", "")) if isinstance(answer.body, dict) else str(answer.body)[:100]


class Run:
    """All episodes of a seed."""

    def __init__(self, twins: Twins, seed: int, options: argparse.Namespace) -> None:
        self._twins = twins
        self._seed = seed
        self._options = options
        self.results: list[Comparison] = []

    async def episodes(self, numbers: Iterable[int], length: int) -> None:
        """Run the episodes, some at a time."""
        waiting = iter(numbers)

        async def work() -> None:
            for number in waiting:
                cls = OwnershipEpisode if self._options.ownership else Episode
                await self._episode(cls(self._seed, number, length, applies=self._options.applies))

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(work())

    async def _episode(self, episode: Episode) -> None:
        memories = [Memory(), Memory()]
        names = [normal.Names(managed=self._options.applies or self._options.ownership) for _ in memories]
        results = []
        await self._twins.ask(Step("-", "GET", f"/api/v1/namespaces/{episode.namespace}", until=404), memories)
        for step in episode.steps():
            answers = await self._twins.ask(step, memories)
            bodies = [sort_owners(name.normal(answer.body)) for name, answer in zip(names, answers, strict=True)]
            headers = [_headers(name, answer) for name, answer in zip(names, answers, strict=True)]
            result = Comparison(episode.name, step, answers, bodies, headers)
            results.append(result)
            if any(plural in step.path for plural in PROTECTED) and step.method != "GET":
                await self._unprotected(episode)
            if (
                not result.same_status
                and step.method != "GET"
                and step.target[:1] == "/"
                and any(answer.status < 300 for answer in answers)
            ):
                await self._forget(step.target, memories)
        for collection in episode.collections():
            await _release(self._twins, collection)
        for step in episode.cleanup():
            await self._twins.ask(step, memories)
        self.results += results

    async def _unprotected(self, episode: Episode) -> None:
        """Wait until the real control plane has let go of what only its protection holds: it takes its time."""
        real = self._twins.servers[REAL]
        for path in ("/api/v1/persistentvolumes", f"/api/v1/namespaces/{episode.namespace}/persistentvolumeclaims"):
            for _ in range(100):
                listed = (await real.ask(Step("-", "GET", path), Memory())).body
                held = [item["metadata"] for item in listed.get("items", ())] if isinstance(listed, dict) else []
                if not any(meta.get("finalizers") in PROTECTIONS and "deletionTimestamp" in meta for meta in held):
                    break
                await asyncio.sleep(0.05)

    async def _forget(self, path: str, memories: list[Memory]) -> None:
        """Have the object away on both sides, so that one difference is not told of many times."""
        merge = "application/merge-patch+json"
        await self._twins.ask(Step("-", "PATCH", path, body={"metadata": {"finalizers": None}}, type=merge), memories)
        await self._twins.ask(Step("-", "DELETE", path, [("gracePeriodSeconds", "0")]), memories)


async def prepare(twins: Twins) -> None:
    """Define the custom kinds, anew, and wait until they are served."""
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    memories = [Memory(), Memory()]
    for body in worlds.DEFINITIONS:
        name = body["metadata"]["name"]
        await _release(twins, f"/apis/{worlds.GROUP}/v1/{body['spec']['names']['plural']}")
        await twins.ask(Step("-", "DELETE", f"{base}/{name}"), memories)
        await twins.ask(Step("-", "GET", f"{base}/{name}", until=404), memories)
        for answer in await twins.ask(Step("-", "POST", base, body=body), memories):
            if answer.status != 201:
                raise SystemExit(f"{name} is not accepted: {answer.status} {answer.body}")
        collection = f"/apis/{worlds.GROUP}/v1/{body['spec']['names']['plural']}"
        await twins.ask(Step("-", "GET", collection, until=200), memories)
    await asyncio.sleep(1)  # Until the last one is in the discovery, too.


async def _release(twins: Twins, collection: str) -> None:
    """Let go of what is held by finalizers."""
    for server in twins.servers:
        listed = (await server.ask(Step("-", "GET", collection), Memory())).body
        for item in listed.get("items", ()) if isinstance(listed, dict) else ():
            if not (meta := item["metadata"]).get("finalizers"):
                continue
            base, _, plural = collection.rpartition("/")
            inside = "namespace" in meta and "/namespaces/" not in collection
            place = f"{base}/namespaces/{meta['namespace']}/{plural}" if inside else collection
            path = f"{place}/{urllib.parse.quote(meta['name'])}"
            await server.ask(
                Step("-", "PATCH", path, body={"metadata": {"finalizers": None}}, type="application/merge-patch+json"),
                Memory(),
            )


def report(results: list[Comparison], options: argparse.Namespace) -> tuple[float, float]:
    """Print what has come of it; the shares of equal statuses and bodies in percent."""
    classes: dict[str, list[Comparison]] = collections.defaultdict(list)
    for result in results:
        classes[result.step.label.split()[0]].append(result)
    print(f"{'class':22}{'requests':>9}{'status':>9}{'body':>9}{'headers':>9}")
    for label, some in [*sorted(classes.items()), ("all", results)]:
        shares = "".join(f"{_share(some, key):9.2f}" for key in ("same_status", "same_body", "same_headers"))
        print(f"{label:22}{len(some):9}{shares}")
    groups: dict[str, list[Comparison]] = collections.defaultdict(list)
    for result in results:
        if not result.same_body or (options.headers and not result.same_headers):
            groups[result.signature()].append(result)
    for signature, some in sorted(groups.items(), key=lambda pair: -len(pair[1]))[: options.show]:
        print(f"\n{len(some)} x {signature}")
        for result in some[: options.each]:
            print(f"   {result.episode} {result.step.label}: {result.step}")
            for path, one, other in result.differences()[: options.lines]:
                print(f"      {path}:\n         sandbox {_short(one)}\n         real    {_short(other)}")
    return _share(results, "same_status"), _share(results, "same_body")


def _share(results: list[Comparison], key: str) -> float:
    return 100 * sum(getattr(result, key) for result in results) / max(1, len(results))


def _short(value: Any) -> str:
    text = "nothing" if value is ... else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 700 else f"{text[:700]}..."


@contextlib.asynccontextmanager
async def sandbox(path: str) -> AsyncIterator[str]:
    """Yield the kubeconfig of the sandbox, a new one if it was not named."""
    if path:
        yield path
        return
    from kopf.testing import Sandbox

    with tempfile.TemporaryDirectory() as folder:
        async with Sandbox(kubeconfig=f"{folder}/kubeconfig", rbac=True):
            yield f"{folder}/kubeconfig"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, action="append", help="can be repeated; any if none is given")
    parser.add_argument("--fresh", type=int, default=0, help="how many random seeds are added")
    parser.add_argument("--requests", type=int, default=1000, help="how many for each seed")
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--length", type=int, default=LENGTH, help="requests of an episode")
    parser.add_argument("--real", default=os.environ.get("KUBECONFIG"), help="the kubeconfig of the control plane")
    parser.add_argument("--sandbox", default="", help="the kubeconfig of a sandbox that runs already")
    parser.add_argument("--applies", action="store_true", help="with apply and strategic patches, and managedFields")
    parser.add_argument("--ownership", action="store_true", help="only writes by several managers of the same objects")
    parser.add_argument("--headers", action="store_true", help="show differences of headers, too")
    parser.add_argument("--show", type=int, default=25, help="how many kinds of differences")
    parser.add_argument("--each", type=int, default=2, help="how many examples of each")
    parser.add_argument("--lines", type=int, default=3, help="how many differences of each example")
    parser.add_argument("--output", type=pathlib.Path, help="a file for all differences, a line of JSON for each")
    parser.add_argument("--all", action="store_true", help="show all requests of the episode")
    parser.add_argument(
        "--least",
        type=float,
        nargs=2,
        default=(0, 0),
        metavar=("STATUS", "BODY"),
        help="fail below these shares, in percent",
    )
    options = parser.parse_args()
    if not options.real:
        parser.error("name the control plane by --real or KUBECONFIG")
    return options


async def main(options: argparse.Namespace) -> int:
    fresh = options.fresh or not options.seed
    seeds = [*(options.seed or []), *(int.from_bytes(os.urandom(3)) for _ in range(fresh))]
    results: list[Comparison] = []
    async with sandbox(options.sandbox) as path, Twins(path, options.real) as twins:
        await prepare(twins)
        for seed in seeds:
            run = Run(twins, seed, options)
            count = max(1, options.requests // options.length)
            numbers = range(count) if options.episode is None else [options.episode]
            await run.episodes(numbers, options.length)
            results += run.results
    if options.all:
        for number, result in enumerate(itertools.chain(results)):
            verdict = "ok " if result.same_body else "BAD"
            print(number, verdict, result.step.label, result.step, result.answers[REAL].status)
    if options.output:
        options.output.write_text("".join(f"{result.as_line()}\n" for result in results if result.differences()))
    print(f"seeds: {' '.join(map(str, seeds))}")
    status, body = report(results, options)
    print(f"\nagreement: status and reason {status:.2f} %, bodies {body:.2f} %")
    return int(status < options.least[0] or body < options.least[1])


if __name__ == "__main__":
    sys.exit(asyncio.run(main(arguments())))
