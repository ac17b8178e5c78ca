"""Loading of the user's files and modules: what is imported, and what is said when it fails."""

import operator
import re
import sys
import textwrap

import pytest

from kopf._cogs.helpers.loaders import LoadError, preload


@pytest.fixture(autouse=True)
def _restored_imports(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture()
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture()
def fail():
    def fail(*paths, modules=()):
        with pytest.raises(LoadError) as err:
            preload(paths, modules)
        return str(err.value)

    return fail


@pytest.fixture()
def order():
    """Yield what the loaded files have appended to ``sys.loaded``."""
    sys.loaded = []
    yield sys.loaded
    del sys.loaded


def test_files_first_then_modules_in_their_order(write, order):
    for name in ['b', 'a', 'd', 'c']:
        write(f'{name}.py', f'import sys; sys.loaded.append({name!r})')
    preload(['b.py', 'a.py'], ['d', 'c'])
    assert order == ['b', 'a', 'd', 'c']


def test_a_file_is_loaded_once(write, order):
    path = write('a.py', "import sys; sys.loaded.append('a')")
    preload(['a.py', './a.py', path], [])
    assert order == ['a']


def test_files_of_the_same_name_are_different(write, order):
    write('x/a.py', "import sys; sys.loaded.append(1)")
    write('y/a.py', "import sys; sys.loaded.append(2)")
    preload(['x/a.py', 'y/a.py'], [])
    assert order == [1, 2]


def test_siblings_can_be_imported(write, order):
    write('x/a.py', "import b_sibling")
    write('x/b_sibling.py', "import sys; sys.loaded.append('sibling')")
    preload(['x/a.py'], [])
    assert order == ['sibling']


def test_modules_are_loaded_with_their_packages(write, order):
    write('pkg_x/__init__.py', "")
    write('pkg_x/sub.py', "import sys; sys.loaded.append(__name__)")
    preload([], ['pkg_x.sub'])
    assert order == ['pkg_x.sub']


def test_classes_find_their_modules(write):
    write(
        'a.py',
        """
        import dataclasses, typing, pickle
        @dataclasses.dataclass
        class Cls:
            field: 'int' = 0
        assert typing.get_type_hints(Cls) == {'field': int}
        assert pickle.loads(pickle.dumps(Cls(5))) == Cls(5)
    """,
    )
    preload(['a.py'], [])


def test_names_of_standard_modules_are_not_taken(write, order):
    write('operator.py', "import operator, sys; sys.loaded.append(operator.itemgetter(0)([1]))")
    preload(['operator.py'], [])
    assert order == [1]
    assert sys.modules['operator'] is operator


def test_names_of_standard_modules_that_are_not_imported_yet_are_not_taken(write, order, monkeypatch):
    monkeypatch.delitem(sys.modules, 'sndhdr', raising=False)
    monkeypatch.delitem(sys.modules, 'colorsys', raising=False)
    write('colorsys.py', "import colorsys, sys; sys.loaded.append(colorsys.rgb_to_hsv(0, 0, 0))")
    preload(['colorsys.py'], [])
    assert order == [(0.0, 0.0, 0)]


def test_exits_pass_through(write):
    write('a.py', "raise SystemExit(7)")
    with pytest.raises(SystemExit, match='7'):
        preload(['a.py'], [])


def test_a_missing_file_is_reported_with_its_folder(fail, tmp_path):
    text = fail('missing.py')
    assert text.startswith(f"Cannot load missing.py: there is no file {tmp_path}/missing.py.")
    assert "-m" in text


def test_a_missing_suffix_is_suggested(fail, write):
    write('handlers.py', "")
    assert "Did you mean handlers.py?" in fail('handlers')


def test_similar_names_are_suggested(fail, write):
    write('handlers.py', "import kopf\n@kopf.on.creat('kopfexamples')\ndef fn(**_): pass")
    assert fail('handlers.py').endswith("Did you mean: 'create'?")


def test_directories_cannot_be_loaded(fail, write):
    write('pkg/__init__.py', "")
    assert "Cannot load pkg: it is a directory" in fail('pkg')


def test_a_missing_module_is_reported_with_the_folders_searched(fail, tmp_path):
    text = fail(modules=['missing_x'])
    assert text.startswith(f"Cannot load the module 'missing_x': there is no module 'missing_x': neither in {tmp_path}")
    assert sys.executable in text


def test_a_missing_submodule_is_reported(fail, write):
    write('pkg_y/__init__.py', "")
    assert "there is no module 'pkg_y.missing'" in fail(modules=['pkg_y.missing'])
    assert "there is no module 'missing_x'" in fail(modules=['missing_x.sub'])


def test_a_missing_submodule_that_its_package_imports_is_located(fail, write):
    path = write('pkg_z/__init__.py', "import pkg_z.missing")
    assert f"No module named 'pkg_z.missing' ({path}:1)" in fail(modules=['pkg_z.missing'])


def test_file_instead_of_a_module(fail, write):
    write('x/handlers.py', "")
    assert "give its path without -m: kopf run x/handlers.py" in fail(modules=['x/handlers.py'])
    assert "give its path without -m: kopf run missing_z.py" in fail(modules=['missing_z.py'])


@pytest.mark.parametrize('args, what', [({}, 'a.py'), ({'modules': ['a_broken']}, 'a_broken')])
def test_a_missing_import_is_reported_with_its_line(fail, write, args, what):
    path = write('a_broken.py' if args else 'a.py', "\nimport missing_x\n")
    text = fail(**args) if args else fail('a.py')
    assert text.startswith(f"Cannot load {what}: ModuleNotFoundError: No module named 'missing_x' ({path}:2)\n")
    assert text.endswith(f"Check the spelling of 'missing_x', or install the package that has it for {sys.executable}.")


def test_only_the_users_part_of_tracebacks_is_shown(fail, write):
    a = write('a.py', "import b_failing\n")
    b = write('b_failing.py', "def fn():\n    raise ValueError('boo')\nfn()\n")
    text = re.sub(r'\n *[~^]+(?=\n)', '', fail('a.py'))  # newer Pythons underline more
    assert (
        text
        == textwrap.dedent(f"""
        Cannot load a.py: ValueError: boo ({b}:2)
        Traceback (most recent call last):
          File "{a}", line 1, in <module>
            import b_failing
          File "{b}", line 3, in <module>
            fn()
          File "{b}", line 2, in fn
            raise ValueError('boo')
        ValueError: boo
    """).strip()
    )


def test_the_line_to_mend_is_not_in_libraries(fail, write):
    path = write('a.py', "import json\n\njson.loads('{')\n")
    text = fail('a.py')
    assert text.partition('\n')[0].endswith(f"({path}:3)")
    assert "json/decoder.py" in text


def test_errors_raised_by_the_framework_are_shown_at_the_line_that_calls_it(fail, write):
    path = write('a.py', "from kopf._cogs.structs import dicts\ndicts.parse_field(123)\n")
    text = fail('a.py')
    assert text.partition('\n')[0].endswith(f"({path}:2)")
    assert "kopf/_cogs" not in text


def test_causes_are_shown(fail, write):
    write(
        'a.py',
        """
        import importlib
        try:
            importlib.import_module('b_broken')
        except Exception as e:
            raise ValueError("boo") from e
    """,
    )
    write('b_broken.py', "1/0")
    text = fail('a.py')
    assert "ZeroDivisionError" in text
    assert "direct cause" in text
    assert "<frozen importlib" not in text


@pytest.mark.parametrize('name', ['a.py', 'imported.py'])
def test_syntax_errors_are_reported_with_their_line(fail, write, name):
    write('a.py', "import imported\n")
    path = write(name, "x = 1\ndef (:\n")
    text = fail('a.py')
    assert text.startswith(f"Cannot load a.py: SyntaxError: invalid syntax ({path}:2)\n")
    assert "    def (:\n        ^" in text


def test_errors_of_several_lines_are_reported_by_their_first_line(fail, write):
    path = write('a.py', "raise ValueError('one\\ntwo')\n")
    text = fail('a.py')
    assert text.startswith(f"Cannot load a.py: ValueError: one ({path}:1)\n")
    assert text.endswith("ValueError: one\ntwo")


def test_failed_files_are_not_left_behind(fail, write):
    write('a.py', "1/0\n")
    before = set(sys.modules)
    fail('a.py')
    assert not {name for name in set(sys.modules) - before if 'kopf_script' in name}


def test_a_forgotten_import_of_the_framework_is_named(tmp_path):
    (tmp_path / 'handlers.py').write_text("@kopf.on.startup()\ndef fn(**_): pass\n")
    with pytest.raises(LoadError, match="Add this line at the top of the file: import kopf"):
        preload([tmp_path / 'handlers.py'], [])
