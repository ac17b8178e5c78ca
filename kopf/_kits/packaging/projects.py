"""New projects: ``kopf init`` writes an operator with a kind, a test that passes, and a Dockerfile."""

import importlib.metadata
import json
import keyword
import pathlib
import re
import shlex
import urllib.parse
import urllib.request
from collections.abc import Mapping

import click

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.helpers.versions import version
from kopf._core.intents.declared_kinds import DOMAIN, KIND, PLURAL, pluralize

FILES: Mapping[str, str] = {
    'app.py': '''"""The operator NAME: each KIND has a config map with its greeting."""

import dataclasses
from typing import Any

import kopf


@dataclasses.dataclass
class KINDSpec:
    """The desired state, which users set."""

    greeting: str = "Hello!"
    repeats: int = 1


@dataclasses.dataclass
class KINDStatus:
    """The observed state, which the operator sets."""

    greeting: str | None = None


@kopf.kind(
    "GROUP/v1",NAMING
    conditions=True,
    columns={"Greeting": ".status.greeting", "Ready": '.status.conditions[?(@.type=="Ready")].status'},
    rules=[("self.spec.repeats > 0", "repeats must be above zero")],
)
@dataclasses.dataclass
class KIND:
    """A greeting in a config map."""

    spec: KINDSpec
    status: KINDStatus | None = None


# Called whenever a SINGULAR or its config map can have changed: it only declares the children that must exist.
@kopf.on.reconcile(KIND, owns=["configmaps"], conditions=True)
async def reconcile(name: str, spec: KINDSpec, children: kopf.AsyncChildren, patch: kopf.Patch[KIND], **_: Any) -> None:
    greeting = " ".join([spec.greeting] * spec.repeats)
    await children.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"greeting": greeting}}
    )
    patch.status["greeting"] = greeting
''',
    'test_app.py': '''"""The operator as users see it, in a sandbox: without a cluster."""

import pathlib

import kopf.testing
import pytest

APP = pathlib.Path(__file__).with_name("app.py")


def test_a_SINGULAR_gets_its_config_map(kopf_sandbox, kopf_operator):
    with kopf_operator(APP):
        kopf_sandbox.create("PLURAL", "mine", spec={"greeting": "Hi!", "repeats": 2})
        kopf_sandbox.wait_for("PLURAL", "mine", lambda body: body["status"]["greeting"] == "Hi! Hi!")
        assert kopf_sandbox.get("configmaps", "mine")["data"] == {"greeting": "Hi! Hi!"}


def test_a_changed_config_map_is_restored(kopf_sandbox, kopf_operator):
    with kopf_operator(APP):
        kopf_sandbox.create("PLURAL", "mine", spec={})
        kopf_sandbox.wait_for("configmaps", "mine", lambda body: body["data"]["greeting"] == "Hello!")
        kopf_sandbox.patch("configmaps", "mine", {"data": {"greeting": "Bye!"}})
        kopf_sandbox.wait_for("configmaps", "mine", lambda body: body["data"]["greeting"] == "Hello!")


def test_a_SINGULAR_without_repeats_is_refused(kopf_sandbox, kopf_operator):
    with kopf_operator(APP), pytest.raises(kopf.testing.Refusal, match="repeats must be above zero"):
        kopf_sandbox.create("PLURAL", "mine", spec={"repeats": 0})
''',
    'obj.yaml': '''apiVersion: GROUP/v1
kind: KIND
metadata:
  name: mine
spec:
  greeting: Good morning!
  repeats: 2
''',
    'pytest.ini': '''[pytest]
# Without this file, pytest would use the settings of a folder above, such as those of a checkout.
''',
    'requirements.txt': '''# Until kopf VERSION is on your package index, put its wheel beside this file. In a checkout:
# pip wheel --no-deps --wheel-dir path/to/NAME .
--find-links .
kopf[dev,msgspec,cel,metrics,uvloop]>=VERSION
''',
    'Dockerfile': '''FROM python:3.13-slim
WORKDIR /app
# Wheels in this folder, if there are any, go before those of the package index.
COPY requirements.txt *.whl ./
RUN pip install --no-cache-dir -r requirements.txt
COPY app.py ./
# A user without rights: operators need none in their containers.
USER 65534
CMD ["kopf", "run", "--all-namespaces", "--liveness=http://0.0.0.0:8080/healthz", "/app/app.py"]
''',
    '.dockerignore': '''*
!app.py
!requirements.txt
!*.whl
''',
    'README.md': '''# NAME

A Kubernetes operator: each `KIND` has a config map with its greeting. Begin with `app.py`.

If kopf VERSION is not on your package index, put its wheel into this folder first, where `requirements.txt` and the
`Dockerfile` find it. In a checkout of kopf: `pip wheel --no-deps --wheel-dir path/to/NAME .`

```bash
pip install -r requirements.txt pytest
pytest                                                 # without a cluster
kopf run --sandbox --reload --load obj.yaml app.py     # without a cluster, to play with it
```

On a cluster, from your machine:

```bash
kopf crd app.py | kubectl apply -f -
kopf run -A app.py
kubectl apply -f obj.yaml
```

In the cluster:

```bash
docker build -t registry.example.com/NAME:1.0 .
kopf manifests app.py --image registry.example.com/NAME:1.0 | kubectl apply -f -
```
''',
}


def create_project(name: str, *, group: str, kind: str | None, plural: str | None = None) -> None:
    """
    Write the files of a new operator into a new folder.

    Args:
        name: the path of the folder; its last part is the name of the operator.
        group: the API group of its kind.
        kind: the kind; by default, it is made from the name.
        plural: the plural name of the kind; by default, it is made from the kind.

    Raises:
        ExplainedError: if the folder has files, a name is wrong, or the files cannot be written.
    """
    folder = pathlib.Path(name)
    own = re.sub(r'[^a-z0-9]+', '-', folder.resolve().name.lower()).strip('-')
    if kind is None:
        kind = ''.join(word.capitalize() for word in own.removesuffix('-operator').split('-')).lstrip('0123456789')
    if not KIND.fullmatch(kind) or len(kind) > 60 or keyword.iskeyword(kind):
        raise ExplainedError(f"{kind!r} cannot be the name of a kind. Name one in CamelCase by --kind, e.g. WebApp.")
    if not DOMAIN.fullmatch(group):
        raise ExplainedError(f"--group: {group!r} is not a domain with a dot, such as example.com.")
    if plural is not None and not PLURAL.fullmatch(plural):
        raise ExplainedError(f"--plural: {plural!r} cannot be a plural name. Use lower-case letters, such as webapps.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExplainedError(f"{folder} exists already and is not empty. Name a new folder.")
    known = pluralize(kind)
    words = {
        'GROUP': group,
        'PLURAL': plural or known,
        'SINGULAR': kind.lower(),
        'NAMING': f'\n    plural="{plural}",' if plural not in (None, known) else '',
        'NAME': own,
        'VERSION': version,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            filled = re.sub('|'.join(words), lambda match: words[match[0]], text)
            folder.joinpath(file).write_text(filled.replace('KIND', kind))
    except OSError as error:
        raise ExplainedError(f"The project cannot be written to {folder}: {error}") from error
    click.echo(
        f"Written to {folder}: an operator with the kind {kind}. Begin with:\n"
        f"  cd {shlex.quote(str(folder))}\n{_tell_source()}  pip install -r requirements.txt pytest\n  pytest\n"
        f"  kopf run --sandbox --reload --load obj.yaml app.py"
    )


def _tell_source() -> str:
    """
    Return the line with the command that puts the wheel of this package into the new folder.

    It is empty if this package was installed from a package index: then, pip finds it there again.
    """
    try:
        text = importlib.metadata.distribution('kopf').read_text('direct_url.json')
        url = urllib.parse.urlsplit(json.loads(text)['url']) if text else None
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        return ''
    if url is None or url.scheme != 'file':
        return ''
    source = pathlib.Path(urllib.request.url2pathname(url.path))
    command = 'pip wheel --no-deps --wheel-dir .' if source.is_dir() else 'pip download --no-deps --dest .'
    return f'  {command} {shlex.quote(str(source))}\n' if source.exists() else ''
