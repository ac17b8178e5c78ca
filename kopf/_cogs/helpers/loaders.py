"""
Loading of the user's files and modules, so that the handlers declared there are registered.

Files are imported as Python runs a script: the modules next to a file can be imported. The file itself gets a unique
name in ``sys.modules``, so that a file such as ``operator.py`` does not hide a module that other code imports.

When loading fails, the user must fix their own code. So the error names the line and the reason. It shows only the
user's part of the traceback, without the frames of the framework and of the import system.
"""

import contextlib
import contextvars
import errno
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Collection, Iterable

from kopf._cogs.helpers.explanations import ExplainedError

_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
_SCRIPT_PREFIX = '__kopf_script_'
_MACHINERY = (_PACKAGE, '<frozen importlib', str(importlib.__file__))


_loading_var: contextvars.ContextVar[str | None] = contextvars.ContextVar('_loading_var', default=None)


def get_loading() -> str | None:
    """Return the path of the file that is being loaded now, if any is."""
    return _loading_var.get()


class LoadError(ExplainedError):
    """Raised if a file or a module of the user cannot be loaded; the text has the line, the reason, and the remedy."""


def preload(paths: Iterable[str | os.PathLike[str]], modules: Iterable[str]) -> None:
    """
    Import the files first and then the modules, each in the given order; the same file is imported once.

    ``SystemExit`` and ``KeyboardInterrupt`` are passed through.

    Raises:
        LoadError: if a file or a module is missing, or fails at import.
    """
    loaded: set[pathlib.Path] = set()
    for path in paths:
        file = pathlib.Path(path).resolve()
        if file not in loaded:
            loaded.add(file)
            _load_file(path, file, f'{_SCRIPT_PREFIX}{len(loaded) - 1}__{file.stem}')
    for name in modules:
        _load_module(name)


def is_of_script(fn: object) -> bool:
    """Check whether the function is from a file given by its path: each `preload` executes such files again."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, '__module__', '')).startswith(_SCRIPT_PREFIX)


def list_loaded(modules: Collection[str]) -> list[types.ModuleType]:
    """Return these modules, and those of all files that were loaded by their paths, the latest ones of each file."""
    return [module for name, module in list(sys.modules.items()) if name in modules or name.startswith(_SCRIPT_PREFIX)]


def _load_file(path: str | os.PathLike[str], file: pathlib.Path, name: str) -> None:
    if not file.is_file():
        code = errno.EISDIR if file.is_dir() else errno.ENOENT
        cause = OSError(code, os.strerror(code), os.fspath(path))  # Python selects the subclass by the code
        raise LoadError(f"Cannot load {os.fspath(path)}: {_explain_missing_file(file)}") from cause
    if file.suffix in ('.yaml', '.yml', '.json'):
        raise LoadError(
            f"Cannot load {os.fspath(path)}: it is not a file of Python. Objects are put into a cluster by "
            f"kubectl apply -f, and into the sandbox by --crd and --load."
        )
    expose(file.parent)
    # Why an explicit loader? Files without the suffix of Python have none by default.
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None  # it is never None if a loader is given
    module = importlib.util.module_from_spec(spec)
    # Why register it? Dataclasses, pickling and typing look up the modules of classes there.
    sys.modules[name] = module
    token = _loading_var.set(os.fspath(path))
    try:
        loader.exec_module(module)
    except Exception as exc:
        del sys.modules[name]
        raise LoadError(_explain_failure(os.fspath(path), exc)) from exc
    finally:
        _loading_var.reset(token)


def _load_module(name: str) -> None:
    # Modules of the current directory can be imported, as with `python -m`. The console script alone would not find
    # them.
    expose(pathlib.Path.cwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name and f'{name}.'.startswith(f'{exc.name}.') and not _user_frames(exc):
            raise LoadError(f"Cannot load the module {name!r}: {_explain_missing_module(name, exc.name)}") from exc
        raise LoadError(_explain_failure(name, exc)) from exc
    except Exception as exc:
        raise LoadError(_explain_failure(name, exc)) from exc


def expose(directory: pathlib.Path) -> None:
    """Make the modules of the directory importable, except for those that would hide the standard library's."""
    if str(directory) in sys.path:
        return
    with contextlib.suppress(OSError):
        for name in sorted({entry.name.partition('.')[0] for entry in os.scandir(directory)}):
            # Otherwise, a file such as `types.py` next to the handlers would break the imports of other modules.
            if name in sys.stdlib_module_names and name not in sys.modules:
                # Import it now, so that later imports find the standard module, and not the user's file with this
                # name. Some modules of the list do not exist on this system.
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()


def _explain_missing_file(file: pathlib.Path) -> str:
    if file.is_dir():
        return f"it is a directory ({file}). Name the files in it, or use -m to load it as a package."
    if (script := file.with_name(f'{file.name}.py')).is_file():
        return f"there is no file {file}. Did you mean {script.name}?"
    return f"there is no file {file}. Check the path and the current directory; to load a module by its name, use -m."


def _explain_missing_module(name: str, missing: str) -> str:
    if os.sep in name or name.endswith('.py'):
        return f"this is not a name of a module. To load a file, give its path without -m: kopf run {name}"
    return (
        f"there is no module {missing!r}: neither in {pathlib.Path.cwd()}, nor in PYTHONPATH, "
        f"nor among the packages of {sys.executable}. Check the name, or install the package that has it."
    )


def _explain_failure(what: str, exc: Exception) -> str:
    report = traceback.TracebackException.from_exception(exc)
    frames = _user_frames(exc)
    line = f'{exc.filename}:{exc.lineno}' if isinstance(exc, SyntaxError) and exc.filename else _locate(frames)
    text = (exc.msg if isinstance(exc, SyntaxError) else str(exc)).partition('\n')[0]
    lines = [f"Cannot load {what}: {type(exc).__name__}: {text}"]
    if line and line not in text:
        lines[0] += f" ({line})"
    if not _is_declaration_error(exc):
        lines.append(_format_user_part(report))
    if remedy := _find_remedy(what, exc, frames):
        lines.append(remedy)
    if isinstance(exc, ModuleNotFoundError) and exc.name:
        lines.append(f"Check the spelling of {exc.name!r}, or install the package that has it for {sys.executable}.")
    # Since Python 3.12, tracebacks suggest names; for older versions, the same words are added here.
    if isinstance(exc, AttributeError) and exc.name and 'Did you mean' not in lines[-1]:
        import difflib

        lines += [f"Did you mean: {name!r}?" for name in difflib.get_close_matches(exc.name, dir(exc.obj), n=1)]
    return '\n'.join(lines)


def _find_remedy(what: str, exc: Exception, frames: list[traceback.FrameSummary]) -> str | None:
    """Return what to do about a frequent mistake, where the text of Python does not say it."""
    if isinstance(exc, NameError) and exc.name == 'kopf':
        return "Add this line at the top of the file: import kopf"
    if isinstance(exc, NameError) and frames and (frames[-1].line or '').lstrip().startswith('@kopf.'):
        return f"If it is the name of a resource, write it as a text: {exc.name!r}"
    if isinstance(exc, KeyError) and frames and frames[-1].filename in ('<frozen os>', os.__file__):
        return f"The variable {exc.args[0]!r} is not set in the environment: export {exc.args[0]}=..."
    if isinstance(exc, ImportError) and 'no known parent package' in str(exc):
        return (
            f"A file that is given by its path is in no package. Import the module without the dot; or load the file "
            f"as a part of its package: kopf run -m PACKAGE.{pathlib.Path(what).stem}"
        )
    return None


def _is_declaration_error(exc: Exception) -> bool:
    """Check whether the framework itself rejects a declaration; then the text and the line are sufficient."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        isinstance(exc, TypeError | ValueError | LookupError)
        and (exc.__context__ is None or exc.__suppress_context__)
        and trace is not None
        and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
    )


def _user_frames(exc: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith(_MACHINERY)]


def _locate(frames: list[traceback.FrameSummary]) -> str | None:
    """Return the file and line to be fixed: the innermost ones outside of installed libraries, if there are any."""
    import sysconfig

    installed = tuple(sysconfig.get_path(name) + os.sep for name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))
    # Frozen modules and generated code, such as of dataclasses, have no files.
    own = [frame for frame in frames if not frame.filename.startswith((*installed, '<'))] or frames
    return f'{own[-1].filename}:{own[-1].lineno}' if own else None


def _format_user_part(report: traceback.TracebackException) -> str:
    """Format the traceback with its causes, without the frames of the framework and of the import system."""
    # Causes and contexts are printed, too, each with its own frames.
    nodes: list[traceback.TracebackException | None] = [report]
    while nodes:
        if (node := nodes.pop()) is not None:
            node.stack[:] = [frame for frame in node.stack if not frame.filename.startswith(_MACHINERY)]
            nodes += [node.__cause__, node.__context__]
    chained = report.__cause__ or (report.__context__ and not report.__suppress_context__)
    parts = report.format() if report.stack or chained else report.format_exception_only()
    return ''.join(parts).rstrip()
