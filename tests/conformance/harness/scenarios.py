"""
Scenarios as files: an operator, and what is done to its objects.
"""

import importlib.util
import json
import pathlib
import re
from typing import Any


class Scenario:
    """One file of the scenarios' folder."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.name = path, path.stem
        spec = importlib.util.spec_from_file_location(f'scenario_{path.stem}', path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.script = hasattr(module, 'SCRIPT')
        self.source = module.SCRIPT if self.script else getattr(module, 'OPERATOR', '')
        self.title = (module.__doc__ or '').strip().splitlines()[0]
        self.args = list(getattr(module, 'ARGS', ()))
        self.crds = list(getattr(module, 'CRDS', ()))
        self.drive = module.drive
        self.masks = [(re.compile(regex), text) for regex, text in getattr(module, 'MASKS', ())]
        self.events = getattr(module, 'EVENTS', False)
        self.strict_logs = getattr(module, 'STRICT_LOGS', False)
        self.slack = getattr(module, 'WRITES_SLACK', 0)
        self.order = getattr(module, 'ORDER', 'object')
        self.check_writes = getattr(module, 'CHECK_WRITES', True)
        self._amend = getattr(module, 'amend', None)

    def golden(self, file: pathlib.Path) -> Any:
        """Return the golden trace, as the documentation permits it: see "When a check fails" in the README."""
        trace = json.loads(file.read_text())
        if self._amend:
            self._amend(trace)
        return trace
