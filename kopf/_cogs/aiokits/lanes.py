"""
A queue with two lanes: what is urgent goes first, but what is not is never stuck.

If only the urgent were taken as long as there is any, then a busy cluster would keep the others waiting for ever. So
each `SHARE`-th place is theirs. Everything is done in constant time, for tens of thousands can wait: both removal
from the middle and the change of the lane.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar('KeyT', bound=Hashable)
ValueT = TypeVar('ValueT')

SHARE = 8
"""Of so many places, one is given to those who are not urgent, if there are both."""


class Lanes(Generic[KeyT, ValueT]):
    """The values in two lanes, each under its key, in the order in which they have come."""

    __slots__ = ('_common', '_count', '_urgent')

    def __init__(self) -> None:
        self._urgent: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._common: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._count = 0  # of those taken while there were both

    def __len__(self) -> int:
        return len(self._urgent) + len(self._common)

    @property
    def is_urgent(self) -> bool:
        """Whether any of the values are urgent."""
        return bool(self._urgent)

    def push(self, key: KeyT, value: ValueT, *, urgent: bool) -> None:
        """Put the value to the end of its lane."""
        (self._urgent if urgent else self._common)[key] = value

    def hurry(self, key: KeyT) -> None:
        """Move the value to the urgent lane if it waits in the other one."""
        if key in self._common:
            self._urgent[key] = self._common.pop(key)

    def discard(self, key: KeyT) -> bool:
        """Take the value out of the queue; tell if it was there."""
        for lane in (self._urgent, self._common):
            if key in lane:
                del lane[key]
                return True
        return False

    def pop(self, *, urgent_only: bool = False) -> tuple[KeyT, ValueT]:
        """Take the next value with its key; `KeyError` if there are none."""
        urgent = urgent_only or bool(self._urgent)
        if urgent and self._common and not urgent_only:
            self._count += 1
            urgent = self._count % SHARE != 0
        return (self._urgent if urgent else self._common).popitem(last=False)
