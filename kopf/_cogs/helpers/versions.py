"""What we call ourselves: the version of the installed package and the user agent made of it.

Both are read on their first use: reading the metadata of installed packages takes longer than importing most of the
framework, and a module with handlers needs neither.
"""
import functools

version: str
"""The version of the installed package, or ``unknown`` when the package runs from its sources without installation."""

user_agent: str
"""The value of the HTTP header ``User-Agent`` of all requests of the framework."""


@functools.cache
def __getattr__(name: str) -> str:
    match name:
        case 'version':
            return _read_version()
        case 'user_agent':
            return f'kopf/{_read_version()}'
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _read_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version('kopf')
    except importlib.metadata.PackageNotFoundError:
        return 'unknown'
