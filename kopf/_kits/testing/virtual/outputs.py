"""The outputs of operators in the process of the test: each collects the texts of one operator's tasks and threads."""

import contextlib
import contextvars
import io
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

output_var: contextvars.ContextVar[TextIO | None] = contextvars.ContextVar('output_var', default=None)
"""The output of the operator that the current task or thread belongs to."""


class _Router(io.TextIOBase):
    """A stream that passes texts on to the output of the current operator, or else to the replaced stream."""

    def __init__(self, former: TextIO) -> None:
        self._former = former

    def write(self, text: str) -> int:
        return (output_var.get() or self._former).write(text)

    def flush(self) -> None:
        (output_var.get() or self._former).flush()

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def routed() -> Iterator[None]:
    """
    Replace the standard streams for the time of the context.

    Why not as long as the simulation is open? Pytest also replaces and restores them, between the steps of a test.
    """
    with contextlib.redirect_stdout(_Router(sys.stdout)), contextlib.redirect_stderr(_Router(sys.stderr)):
        yield


class OutputHandler(logging.Handler):
    """
    Passes the records of one operator on to its own log handler.

    Args:
        target: the log handler, as the command line has configured it.
        output: the output of the operator.
    """

    def __init__(self, target: logging.Handler, output: TextIO) -> None:
        super().__init__()
        self._target = target
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on if this operator has logged it."""
        if output_var.get() is self._output:
            self._target.handle(record)
