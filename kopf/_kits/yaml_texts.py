"""
YAML for other programs: kubectl, Helm, kustomize, Prometheus.

PyYAML quotes the strings that PyYAML itself would read as values of other types. Other libraries resolve more of them:
those of Go, in kubectl and in the API server, read ``y`` and ``n`` as booleans, and ``1e3`` and ``0o17`` as numbers.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

_AMBIGUOUS = re.compile(
    r"""
      [yn~=] | yes | no | on | off | true | false | null | <<
    | [-+]? \.? (?: inf | nan )
    | [-+._]* \d [-+.,:_\da-fox \tptz]*     # numbers in all notations and bases, sexagesimals, dates, times
    """,
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
"""The strings that some reader takes for values of other types, and some that only look so: quotes do no harm."""

_BREAKS = re.compile('[\x85\u2028\u2029\ufeff]')
"""The characters that a reader drops or converts to other ones, unless they are escaped."""


def dump_yaml(documents: Iterable[Any], *, sort_keys: bool = False, width: int = 120) -> str:
    """Return the objects as a stream of YAML documents; the result is equal for equal objects."""
    import yaml

    options: Mapping[str, Any] = {'sort_keys': sort_keys, 'width': width, 'allow_unicode': True}
    return '---\n'.join(yaml.dump(each, Dumper=_make_dumper(), **options) for each in documents)


@functools.cache
def _make_dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """A dumper that quotes all strings that a reader could take for something else, and has no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Dumper, text: str) -> Any:
        style = '"' if _BREAKS.search(text) else "'" if _AMBIGUOUS.fullmatch(text) else None
        return dumper.represent_scalar('tag:yaml.org,2002:str', text, style=style)

    Dumper.add_representer(str, represent)
    return Dumper
