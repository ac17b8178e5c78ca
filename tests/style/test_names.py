"""Names of modules: each says what its module contains, so that one can be found, and its tests too."""

import collections
import pathlib

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
