"""
Files into which running operators write their addresses and tokens, for ``kopf top`` on the same machine.

Only the user who runs the operator can read them: such a file is the permission to inspect the operator.
"""

import contextlib
import json
import os
import pathlib
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from kopf._cogs.helpers.explanations import ExplainedError

ADDRESS_VARIABLE = 'KOPF_INSPECTOR_ADDRESS'
"""
The environment variable with a port and a token, separated by a colon: those of the former process of the operator.

It is set by ``kopf run --reload`` only, so that an open page of the inspector finds the next process.
"""


class RunFileError(ExplainedError):
    """Raised when such a file cannot be written. The message contains the reason and the remedy."""


class RunFile(NamedTuple):
    """The content of a file."""

    pid: int
    url: str
    token: str

    @property
    def link(self) -> str:
        """The link to the inspector. Browsers do not send the part with the token, so it gets into no logs."""
        return f'{self.url}/#token={self.token}'


def get_folder(folder: str | None = None) -> pathlib.Path:
    """Return the folder of the files: by default, the user's runtime directory, or a temporary folder."""
    if folder is not None:
        return pathlib.Path(folder)
    if runtime := os.environ.get('XDG_RUNTIME_DIR'):
        return pathlib.Path(runtime) / 'kopf'
    user = os.geteuid() if hasattr(os, 'geteuid') else os.environ.get('USERNAME', 'user')
    return pathlib.Path(tempfile.gettempdir()) / f'kopf-{user}'


def make_address() -> str:
    """Return a free port and a random token, as they are in `ADDRESS_VARIABLE`."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    return f'{port}:{secrets.token_urlsafe(24)}'


def get_address() -> tuple[int, str]:
    """Return the port and the token of the former process; without one, any free port (zero) and a random token."""
    port, _, token = os.environ.get(ADDRESS_VARIABLE, '').partition(':')
    return int(port) if port.isdecimal() else 0, token or secrets.token_urlsafe(24)


@contextlib.contextmanager
def written(file: RunFile, folder: str | None = None) -> Iterator[pathlib.Path]:
    """
    Keep the file while the context lasts.

    Raises:
        RunFileError: if it cannot be written, or others could read or replace it.
    """
    place = get_folder(folder)
    path = place / f'{file.pid}-{file.url.rpartition(":")[2]}.json'
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(place)
        path.unlink(missing_ok=True)  # the file of a killed process with the same id
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, 'w', encoding='utf-8') as stream:
            json.dump(file._asdict(), stream)
    except OSError as error:
        raise RunFileError(
            f"The token for kopf top cannot be written to {path}: {error.strerror or error}. "
            "Set settings.inspecting.folder to a folder that can be written to."
        ) from error
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _check_folder(place: pathlib.Path) -> None:
    # In a shared temporary folder, another user could have created the folder before, in order to read the token.
    status = place.lstat()
    is_foreign = hasattr(os, 'geteuid') and status.st_uid != os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or is_foreign or (os.name == 'posix' and status.st_mode & 0o022):
        raise RunFileError(
            f"The token for kopf top is not written: other users can write to {place}. Remove it, or set "
            "settings.inspecting.folder to another folder."
        )


def find_files(folder: str | None = None) -> list[RunFile]:
    """Return the files of the running operators of this user. Files of dead processes are left out."""
    found = []
    for path in sorted(get_folder(folder).glob('*.json')):
        with contextlib.suppress(OSError, ValueError, TypeError):
            file = RunFile(**json.loads(path.read_text(encoding='utf-8')))
            if _is_alive(file.pid):
                found.append(file)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
