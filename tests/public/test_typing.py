"""
The public surface is typed: strict checkers find no fault in an operator, and find the mistakes in a wrong one.

Pyright is run as basedpyright, in the strict mode of both: its package has all that it needs, and downloads nothing.
"""

import inspect
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import kopf
from kopf._core.intents.handlers import KINDS, ConversionHandler, ResourceHandler
from kopf._core.intents.mistakes import list_arguments
from kopf._core.intents.typed_functions import Arguments, NamingFn

SAMPLE = pathlib.Path(__file__).parent / 'typing_sample.py'
EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples/22-models/example.py'
MISTAKES = '''
import dataclasses
import kopf
from typing import Any

@kopf.on.create('kopfexamples', nonsense=1)
def fn1(**_: Any) -> None: ...

@kopf.timer('kopfexamples', interval='soon')
def fn2(**_: Any) -> None: ...

@kopf.on.event('kopfexamples', labels={'a': 1})
def fn3(spec: kopf.Spec, **_: Any) -> None:
    spec['x'] = 1

kopf.adopt(123)
print(kopf.PermanentErr)

@kopf.on.startup()
def fn4(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enable = False

@dataclasses.dataclass
class Spec:
    field: str

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class Thing:
    spec: Spec

@kopf.on.create(Thing)
def fn5(spec: Spec, **_: Any) -> None:
    print(spec.feild)

@kopf.on.update(Thing)
def fn6(spec: kopf.Spec, **_: Any) -> None: ...

@kopf.timer(Thing, interval=1)
async def fn7(name: str, spec: dict[str, str], **_: Any) -> None: ...

@kopf.on.reconcile(Thing, owns=['pods'])
def fn8(name: str) -> None: ...

@kopf.on.reconcile(Thing, own=['pods'])
def fn9(**_: Any) -> None: ...

@kopf.on.create(Thing)
def fn10(spec: Spec) -> None: ...

@kopf.on.update(Thing)
def fn11(spec: Spec, obj: Spec, **_: Any) -> None: ...

@kopf.on.event(Thing)
def fn12(spec: Spec, patch: kopf.Patch[Spec], **_: Any) -> None: ...

@dataclasses.dataclass
class Status:
    field: str

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class Stateful:
    spec: Spec
    status: Status | None = None

@kopf.daemon(Stateful)
async def fn13(spec: Spec, status: Status, **_: Any) -> None: ...

@kopf.on.field(Stateful, field='spec')
def fn14(spec: Spec, by_name: kopf.Index[str, str], obj: Thing, **_: Any) -> None: ...

@kopf.index(Stateful)
def fn15(status: str | None, **_: Any) -> None: ...
'''
LINES = {6, 9, 12, 14, 16, 17, 21, 34, 36, 39, 42, 45, 48, 51, 54, 67, 70, 73}

pytestmark = pytest.mark.timeout(900)  # nothing is cached where the tests run for the first time


@pytest.fixture(scope='module', params=['mypy', 'basedpyright'])
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return what the checker says of the two files, in one run."""
    folder = tmp_path_factory.mktemp(request.param)
    mistakes = folder / 'mistakes.py'
    mistakes.write_text(MISTAKES)
    config = folder / 'config.json'
    if request.param == 'mypy':
        config.write_text('[mypy]\nstrict = true\n')
        args = ['mypy', '--config-file', str(config), '--no-error-summary', '--hide-error-context']
    else:
        config.write_text(
            json.dumps(
                {'typeCheckingMode': 'strict', 'include': [str(SAMPLE.parent), str(EXAMPLE.parent), str(folder)]}
            )
        )
        args = ['basedpyright', '--project', str(config), '--pythonpath', sys.executable, '--level', 'error']
    done = subprocess.run(
        [sys.executable, '-m', *args, str(SAMPLE), str(EXAMPLE), str(mistakes)], capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if ' error: ' in line or ' - error: ' in line]
    return lambda name: [line for line in lines if f'{name}:' in line]


def test_all_public_names_are_used() -> None:
    used = set(re.findall(r'\bkopf\.(\w+)', SAMPLE.read_text()))
    assert not set(kopf.__all__) - used


def test_the_protocol_of_typed_handlers_has_all_their_arguments() -> None:
    parameters = inspect.signature(NamingFn.__call__).parameters
    # The kinds of handlers that can be for a class, except conversions, which have classes of two versions.
    kinds = [kind for kind in KINDS if issubclass(kind, ResourceHandler) and kind is not ConversionHandler]
    arguments = {name for kind in kinds for name in list_arguments(kind)}
    assert set(parameters) - {'self', 'indices'} == {*arguments, 'type'} == Arguments.__required_keys__


@pytest.mark.thorough
def test_operators_can_be_strictly_typed(complaints: Callable[[str], list[str]]) -> None:
    assert complaints(SAMPLE.name) == []
    assert complaints(f'{EXAMPLE.parent.name}/{EXAMPLE.name}') == []


@pytest.mark.thorough
def test_mistakes_are_found(complaints: Callable[[str], list[str]]) -> None:
    found = '\n'.join(complaints('mistakes.py'))
    lines = {int(line) for line in re.findall(r'mistakes\.py:(\d+):', found)}
    assert lines == LINES, found
