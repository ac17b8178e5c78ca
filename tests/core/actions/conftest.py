import logging

import pytest

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._core.actions.loggers import ObjectLogger


@pytest.fixture
def restored_logging():
    """Undo after the test what `configure` does to the loggers of the process."""
    root = logging.getLogger()
    loggers = [root, logging.getLogger('asyncio'), logging.getLogger('aiohttp')]
    levels = [logger.level for logger in loggers]
    handlers = list(root.handlers)
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def raw():
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1', 'resourceVersion': '1'},
        'spec': {'field': 'value'},
    }


@pytest.fixture
def logger(raw):
    return ObjectLogger(body=Body(raw), settings=OperatorSettings())


@pytest.fixture
def lines(capsys):
    return lambda: capsys.readouterr().err.splitlines()
