"""
The state file, with which a sandbox continues where the previous one ended: an SQLite database.

Requests never wait for the disk: a thread writes the gathered changes a moment later. A killed process loses at most
the changes of that moment, and never damages the file. The file is locked while the sandbox runs. Resource versions are
reserved in advance, so that the next sandbox never uses a version again that a client has seen.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kopf._kits.testing.kinds.storage import Change, Record, Storage, Table, TableName

logger = logging.getLogger(__name__)

APPLICATION = 0x6B6F7066
"""The identifier of the application ("kopf"), which the command ``file`` also shows, and the version of the layout."""
LAYOUT = 1
DELAY = 0.02
"""How long changes are gathered before they are written together (seconds)."""
RETRY = 1.0
"""How long to wait before a failed write is repeated (seconds)."""
RESERVE = 10_000
"""How many resource versions are reserved at once."""

_TABLES = '''
CREATE TABLE objects (
    "group" TEXT NOT NULL, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, stored TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY ("group", plural, namespace, name)
) WITHOUT ROWID;
CREATE TABLE versions (last INTEGER NOT NULL, reserved INTEGER NOT NULL);
INSERT INTO versions VALUES (0, 0);
'''

_Key = tuple[TableName, str, str]


class StateError(Exception):
    """Raised when the file cannot be used; the message has the reason and the remedy."""

    __module__ = 'kopf.testing'  # tracebacks show this name, which users import


class Row(NamedTuple):
    """An object in the file; ``body`` is its JSON without ``apiVersion`` and ``kind``."""

    group: str
    plural: str
    version: int
    stored: str
    body: str


class State:
    """A state file; it must be opened before it is read or written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._pending: dict[_Key, Record | None] = {}
        self._reserved = 0
        self._storage: Storage | None = None
        self._database: sqlite3.Connection | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._writer: asyncio.Task[None] | None = None
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix='kopf-sandbox-state')

    def open(self) -> int:
        """Lock or create the file; return the last resource version that a client can know (0 if it is new)."""
        if not self._path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f'there is no such folder: {self._path.parent}')
        try:
            self._database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            return self._prepare(self._database)
        except sqlite3.OperationalError as error:
            if 'locked' in str(error):
                raise StateError(
                    f'{self._path} is in use by another sandbox: end that one, or use another file'
                ) from error
            raise StateError(f'{self._path} cannot be used: {error}') from error
        except sqlite3.DatabaseError as error:
            raise StateError(
                f'{self._path} is not a state file of a sandbox ({error}): use another file, or remove this one'
            ) from error

    def rows(self) -> Iterator[Row]:
        """Yield all objects."""
        assert self._database is not None
        yield from map(
            Row._make,
            self._database.execute(
                'SELECT "group", plural, version, stored, body FROM objects ORDER BY "group", plural, namespace, name'
            ),
        )

    def follow(self, storage: Storage) -> None:
        """Write all further changes of the storage, until `close`."""
        self._storage = storage
        storage.observers.append(self._observe)
        self._reserve(storage.version)
        self._writer = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        """Write the remaining changes, and unlock the file."""
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer
        if self._pending:
            logger.error(
                f'{len(self._pending)} objects could not be written to {self._path}: their last changes are lost.'
            )
        self._pool.shutdown()
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                if self._storage is not None and not self._pending:
                    self._database.execute('UPDATE versions SET last = ?, reserved = 0', [self._storage.version])
            self._database.close()

    def _prepare(self, database: sqlite3.Connection) -> int:
        # All of these are settings of the connection, except the journal mode, which survives killed processes.
        database.execute('PRAGMA locking_mode = EXCLUSIVE')
        application, layout, known = [
            database.execute(query).fetchone()[0]
            for query in ('PRAGMA application_id', 'PRAGMA user_version', 'SELECT count(*) FROM sqlite_master')
        ]
        if (application, layout) not in ((APPLICATION, LAYOUT), (0, 0)) or (known and not application):
            if application == APPLICATION:
                raise StateError(
                    f'{self._path} was written by another version of kopf (its layout is {layout}, not '
                    f'{LAYOUT}): use that version, or another file'
                )
            raise StateError(f'{self._path} is a database, but not a state file of a sandbox: use another file')
        database.execute('PRAGMA journal_mode = WAL')
        database.execute('PRAGMA synchronous = NORMAL')
        if not application:
            database.executescript(
                f'BEGIN EXCLUSIVE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {LAYOUT}; {_TABLES}'
                'COMMIT;'
            )
        else:
            database.execute('BEGIN EXCLUSIVE')  # The lock is held from now on, whatever the journal mode is.
            database.execute('COMMIT')
        last, reserved = database.execute('SELECT last, reserved FROM versions').fetchone()
        return int(max(last, reserved))

    def _reserve(self, version: int) -> None:
        assert self._database is not None
        self._reserved = version + RESERVE
        self._database.execute('UPDATE versions SET last = ?, reserved = ?', [version, self._reserved])

    def _observe(self, table: Table, change: Change) -> None:
        record = change.record
        self._pending[table.name, record.namespace, record.name] = record if change.type != 'DELETED' else None
        self._wake.set()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._closing:
                await self._wake.wait()
                await asyncio.sleep(DELAY)
            self._wake.clear()
            batch, self._pending = self._pending, {}
            try:
                await loop.run_in_executor(self._pool, self._write, batch)
            except sqlite3.Error as error:
                self._pending = {**batch, **self._pending}
                logger.error(f'The state of the sandbox cannot be written to {self._path}: {error}')
                if self._closing:
                    return
                await asyncio.sleep(RETRY)
                self._wake.set()
            if self._closing and not self._pending:
                return

    def _write(self, batch: dict[_Key, Record | None]) -> None:
        assert self._database is not None and self._storage is not None
        version = self._storage.version
        if version > self._reserved - RESERVE // 2:
            self._reserved = version + RESERVE
        database = self._database
        database.execute('BEGIN')
        try:
            database.executemany(
                'DELETE FROM objects WHERE "group" = ? AND plural = ? AND namespace = ? AND name = ?',
                [(*table, namespace, name) for (table, namespace, name), record in batch.items() if record is None],
            )
            database.executemany(
                'INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)',
                [
                    (*table, namespace, name, record.version, record.stored, '{' + record.rest.decode())
                    for (table, namespace, name), record in batch.items()
                    if record is not None
                ],
            )
            database.execute('UPDATE versions SET last = ?, reserved = ?', [version, self._reserved])
            database.execute('COMMIT')
        except BaseException:
            if database.in_transaction:  # After some errors, SQLite has already ended the transaction.
                database.execute('ROLLBACK')
            raise
