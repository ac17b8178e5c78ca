"""
Calls of the modules that simulate systems outside of the cluster, such as a fake cloud.

During a course, the functions of these modules and the methods of their classes are wrapped. The wrappers record the
calls. A wrapper can also kill the operator when a call returns, in the middle of a handler: after one change of the
outside system, and before the next one.
"""

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any


class Killed(GeneratorExit):
    """
    Raised by a wrapper in a killed operator, so that the caller does not continue after the call.

    Why a `GeneratorExit`? The framework raises it on, as if the coroutine were closed. It would take any other error
    for a failure of the handler.
    """


class OutsideCalls:
    """
    Wraps the modules, and reports the calls.

    Args:
        modules: the names of the modules.
        note: called with the name of each function that has returned; raises `Killed` to kill the operator.
        may_call: returns false if the operator was killed. Then, all its calls fail, including those in ``finally``
            blocks.
    """

    def __init__(
        self,
        modules: Sequence[str],
        note: Callable[[str], None],
        may_call: Callable[[], bool],
    ) -> None:
        self._modules = modules
        self._note = note
        self._may_call = may_call
        self._depth = 0

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Wrap the functions while the context lasts."""
        with contextlib.ExitStack() as stack:
            for name in self._modules:
                module = importlib.import_module(name)
                for owner, attribute, function in list(_iter_functions(module)):
                    path = f'{name}.{function.__qualname__}'
                    setattr(owner, attribute, self._wrap(function, path))
                    stack.callback(setattr, owner, attribute, function)
            yield

    def _wrap(self, function: FunctionType, name: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                self._check()
                result = await function(*args, **kwargs)
                self._note(name)
                return result

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            self._depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:  # of nested calls, only the outermost one is reported
                self._note(name)
            return result

        return call

    def _check(self) -> None:
        if not self._may_call():
            raise Killed


def _iter_functions(module: ModuleType) -> Iterator[tuple[Any, str, FunctionType]]:
    """Yield the public functions of the module, and the methods of its classes, each with the module or class."""
    for name, value in vars(module).items():
        if name.startswith('_') or getattr(value, '__module__', None) != module.__name__:
            continue
        if isinstance(value, FunctionType) and not inspect.isgeneratorfunction(value):
            yield module, name, value
        elif inspect.isclass(value):
            for method, function in vars(value).items():
                is_usual = isinstance(function, FunctionType) and not inspect.isgeneratorfunction(function)
                if is_usual and not method.startswith('_'):
                    yield value, method, function


def find_modules(observe: Callable[[], Any]) -> list[ModuleType]:
    """Return the modules that a function refers to, such as ``cloud`` of ``lambda: cloud.servers``."""
    code, names = getattr(observe, '__code__', None), getattr(observe, '__globals__', {})
    values = [names.get(name, sys.modules.get(name)) for name in (code.co_names if code is not None else ())]
    return [value for value in values if isinstance(value, ModuleType)]
