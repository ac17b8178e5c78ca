"""The search of the site finds the right page by the words that people search for, after `make docs`."""

import json
import shutil
import subprocess

import pytest
from snippets import ROOT

SITE = ROOT / "docs" / "_build"
QUESTIONS = {
    "helm": "howto/manifests",
    "pydantic": "howto/models",
    "prometheus": "howto/metrics",
    "leader election": "howto/election",
    "finalizer": "reference/handlers",
    "stuck in terminating": "howto/troubleshooting",
    "requeue": "howto/errors",
    "resync": "howto/levels",
    "informer": "howto/indexing",
    "RBAC": "explanation/security",
    "owner references": "howto/hierarchies",
    "server-side apply": "howto/children",
    "webhook": "howto/admission",
    "dockerfile": "howto/deployment",
    "pytest": "howto/testing",
    "chaos": "howto/checking",
    "kubebuilder": "howto/controller-runtime",
    "label selector": "reference/filters",
    "cron": "howto/timers",
    "opentelemetry": "howto/traces",
    "high availability": "howto/election",
    "ready condition": "howto/conditions",
    "backoff": "howto/errors",
    "CRD": "howto/models",
    "rate limit": "howto/networking",
    "debug": "howto/inspection",
    "upgrade": "howto/production",
    "webhook blocks requests": "howto/disasters",
    "glossary": "reference/glossary",
    "log messages": "reference/messages",
    "convert between versions": "howto/conversion",
    "run code every 10 minutes": "howto/timers",
    "blocking library": "explanation/async",
    "give up": "howto/errors",
    "annotation prefix": "howto/prefixes",
    "handler is not called": "howto/troubleshooting",
    "metrics": "howto/metrics",
    "read a secret": "howto/reading",
    "delete an external resource": "howto/deletion",
    "emit an event": "howto/events",
    "fastapi": "howto/embedding",
    "air-gapped": "tutorial/install",
    "kubectl get columns": "howto/models",
    "slow handler blocks others": "howto/threads",
    "without cluster admin": "explanation/security",
    "continuous integration": "howto/testing",
    "triggers itself": "howto/patches",
    "create a namespace": "howto/children",
    "slow start": "explanation/performance",
    "crashloopbackoff": "howto/troubleshooting",
    "stop reconciling": "howto/tips",
    "two operators same kind": "howto/prefixes",
    "exclude namespace": "howto/scopes",
    "share a database connection": "howto/memos",
    "custom finalizer name": "howto/prefixes",
    "watch pods": "howto/watching",
    "update status": "howto/patches",
    "exit code": "howto/shutdown",
    "watch-forbidden": "reference/messages",
    "load-error": "reference/messages",
    "stuck terminating": "howto/troubleshooting",
    "predicates": "reference/filters",
    "informer cache": "howto/indexing",
    "garbage collection": "howto/hierarchies",
    "RBAC forbidden": "explanation/security",
    "webhook certificate": "howto/certificates",
    "webhook timeout": "reference/webhooks",
    "pause": "howto/peering",
    "dry run": "reference/webhooks",
    "structured logging": "howto/logs",
    "sharding": "howto/sharding",
    "multi-tenancy": "howto/scopes",
    "namespaced": "howto/scopes",
    "crd versions": "howto/conversion",
    "status subresource": "howto/patches",
    "graceful shutdown": "howto/shutdown",
    "observed generation": "howto/conditions",
    "cronjob": "howto/timers",
    "mock": "howto/testing",
    "minikube": "howto/tunnels",
    "memory": "explanation/performance",
    "environment variables": "howto/configuration",
    "kubernetes client library": "howto/writes",
    "typing": "reference/kwargs",
    "sub-handlers": "howto/subhandlers",
    "adopt": "howto/hierarchies",
    "liveness probe": "howto/probes",
    "drift": "howto/children",
    "kubectl describe": "howto/events",
    "secondary resources": "howto/children",
    "thread pool": "howto/threads",
    "long-running task": "howto/daemons",
    "service account": "howto/authentication",
}


@pytest.fixture(scope="module")
def answers():
    """Return the first three pages that the search of the site shows for each question."""
    if shutil.which("node") is None or not (SITE / "searchindex.js").exists():
        pytest.skip("it needs node, and the site: make docs")
    process = subprocess.run(
        ["node", ROOT / "tests" / "docs" / "search.js", SITE],
        input="\n".join(QUESTIONS),
        capture_output=True,
        text=True,
        check=True,
    )
    return {question: pages[:3] for question, pages in map(json.loads, process.stdout.splitlines())}


@pytest.mark.thorough
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_among_the_first_three_pages(answers, question):
    assert QUESTIONS[question] in answers[question]
