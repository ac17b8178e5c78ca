"""Names: of modules, so that one can be found, and its tests too; and of tests, which say what is tested."""

import ast
import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
KOPF = ROOT / 'kopf'

FACES = {
    'testing': "kopf.testing is what users import of the package kopf._kits.testing",
    'kinds': "the module that gives the package kopf._kits.testing.kinds its name",
    'objects': "the module that gives the package kopf._kits.testing.objects its name",
    'schemas': "the module that gives the package kopf._kits.testing.schemas its name",
}
"""The stems that a module shares with a package, and why that misleads no reader."""


def get_stem(path: pathlib.Path) -> str:
    """Return the name without its plural: ``watch`` and ``watches`` are mistaken for each other, too."""
    name = path.parent.name if path.name == '__init__.py' else path.stem
    return name.removesuffix('s')


def test_no_two_modules_share_a_stem():
    stems = collections.defaultdict(list)
    for path in KOPF.rglob('*.py'):
        if not path.name.startswith('__'):
            stems[get_stem(path)].append(str(path.relative_to(ROOT)))
    assert [paths for paths in stems.values() if len(paths) > 1] == []


def test_no_module_shares_a_stem_with_a_package_except_for_listed_ones():
    packages = {get_stem(path): path.parent.name for path in KOPF.rglob('*/__init__.py')}
    modules = {get_stem(path) for path in KOPF.rglob('*.py') if not path.name.startswith('__')}
    assert {packages[stem] for stem in packages.keys() & modules} == FACES.keys()


TESTED_ELSEWHERE = {
    '_core/intents/contexts.py': ("a bundle of what operators own", 'core/reactor/test_processing.py'),
    '_core/intents/cycles.py': ("cycles are seen only by the decisions made in them", 'core/intents/test_decisions.py'),
    '_core/intents/handlers.py': ("data, which the declarations fill", 'core/intents/test_declarations.py'),
    '_core/intents/options.py': ("types, which the declarations check", 'core/intents/test_declarations.py'),
    '_core/intents/typed_functions.py': ("types", 'public/test_typing.py'),
    '_core/reactor/child_release.py': ("a step of leveling, seen with real children", 'core/engines/test_children.py'),
    '_core/reactor/level_runs.py': ("a step of leveling, seen only as a part of it", 'core/reactor/test_leveling.py'),
    '_core/reactor/sinks.py': ("interfaces", 'core/reactor/test_watches.py'),
    '_cogs/clients/aiosessions.py': ("one of two sessions with the same behaviour", 'cogs/clients/test_api.py'),
    '_cogs/clients/execplugins.py': ("a part of kubeconfigs", 'cogs/clients/test_kubeconfigs.py'),
    '_cogs/helpers/typedefs.py': ("an alias that operators import", 'public/test_private_names.py'),
    '_cogs/helpers/versions.py': ("the version, as the command line shows it", 'public/test_cli.py'),
    '_cogs/structs/ids.py': ("a type", 'core/intents/test_registries.py'),
    '_cogs/structs/reviews.py': ("types, and what webhook servers need", 'kits/test_webhooks.py'),
}
"""The modules without a test module of their name: the reason, and the module that tests them."""


def test_every_module_of_the_framework_has_a_test_module_of_its_name():
    missing = set()
    for path in [*(KOPF / '_core').rglob('*.py'), *(KOPF / '_cogs').rglob('*.py')]:
        folder = ROOT / 'tests' / path.parent.relative_to(KOPF).as_posix().lstrip('_')
        if path.name != '__init__.py' and not (folder / f'test_{path.name}').exists():
            missing.add(path.relative_to(KOPF).as_posix())
    assert missing == TESTED_ELSEWHERE.keys()


@pytest.mark.parametrize('path', TESTED_ELSEWHERE)
def test_what_is_tested_elsewhere_is_tested_there(path):
    assert (ROOT / 'tests' / TESTED_ELSEWHERE[path][1]).exists()


NO_SENTENCE = re.compile(
    r'test_([^_]+_)?[^_]+'
    r'|test_[^_]+_(and|as|by|for|from|in|of|or|that|to|who|with|without)_[^_]+'
    r'|test_((a|an|the)_)?[^_]+_that_(are|come|comes|do|does|has|have|is|make)(_(no|not))?_[^_]+'
)
"""
The names of tests that are no sentences: one or two words, two nouns with a preposition between them, or a noun with a
relative clause.
"""


def find_test_names(source: str) -> list[str]:
    """Return the names of all tests of a module, those of its classes included."""
    # Why not all nodes? Tests are in modules and in classes, and most nodes are parts of expressions.
    tree = ast.parse(source)
    nodes = [*tree.body, *(node for each in tree.body if isinstance(each, ast.ClassDef) for node in each.body)]
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in names if name.startswith('test_')]


DEFINITION = re.compile(r'def (test_\w+)\(')


def find_odd_names(source: str) -> list[str]:
    """Return the names of tests that are no sentences; to parse all modules would take seconds."""
    if not any(map(NO_SENTENCE.fullmatch, DEFINITION.findall(source))):
        return []
    return [name for name in find_test_names(source) if NO_SENTENCE.fullmatch(name)]


@pytest.mark.parametrize('folder', sorted(path.name for path in (ROOT / 'tests').iterdir() if path.is_dir()))
def test_the_name_of_a_test_is_a_sentence(folder):
    names = {
        f'{path.relative_to(ROOT)}: {name}'
        for path in (ROOT / 'tests' / folder).rglob('test_*.py')
        for name in find_odd_names(path.read_text())
    }
    assert names == set()


def test_names_that_are_no_sentences_are_found():
    source = (
        'def test_it(): ...\nasync def test_the_change(): ...\nclass Test:\n  def test_errors_of_groups(self): ...\n'
    )
    assert len(find_odd_names(source)) == len(find_test_names(source)) == 3
    assert NO_SENTENCE.fullmatch('test_pods_that_are_late') and NO_SENTENCE.fullmatch('test_jobs_that_do_not_end')
    assert not NO_SENTENCE.fullmatch('test_errors_are_logged') and not NO_SENTENCE.fullmatch('test_a_log_of_all_errors')
