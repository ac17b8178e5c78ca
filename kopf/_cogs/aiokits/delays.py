"""
Delays between attempts from the settings: any iterable of seconds, whose last item is repeated.

Zeros are replaced by short growing delays. Without any delay, a request that fails at once would be repeated
thousands of times a second, and would flood the API server.
"""

from collections.abc import Iterable
from typing import Final

LEAST: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""The delays (in seconds) that replace zeros."""


class Delays:
    """An endless sequence of delays, from the first failure to the next success."""

    __slots__ = ('_delays', '_last', '_zeros')

    def __init__(self, delays: Iterable[float]) -> None:
        self._delays, self._last, self._zeros = iter(delays), 0.0, 0

    def next(self) -> float:
        """Return the next delay (in seconds)."""
        self._last = next(self._delays, self._last)
        if self._last > 0:
            return self._last
        self._zeros += 1
        return LEAST[min(self._zeros, len(LEAST)) - 1]
