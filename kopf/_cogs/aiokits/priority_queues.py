"""
A fair queue with two priorities: urgent values go first, but the other values do not wait forever.

Each priority has its lane. If urgent values always went first, the common ones could wait forever in a busy cluster.
So each `SHARE`-th turn belongs to the common lane. All operations take constant time, since tens of thousands of values
can be queued. This includes removal from the middle and the change of the lane, for which a heap or a deque would need
a search.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar('KeyT', bound=Hashable)
ValueT = TypeVar('ValueT')

SHARE = 8
"""The number of turns of which one goes to the common lane, if both lanes have values."""


class FairPriorityQueue(Generic[KeyT, ValueT]):
    """A queue of values in two lanes, each value under its key; each lane is in the order of arrival."""

    __slots__ = ('_common', '_count', '_urgent')

    def __init__(self) -> None:
        self._urgent: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._common: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._count = 0  # the turns taken while both lanes had values

    def __len__(self) -> int:
        return len(self._urgent) + len(self._common)

    @property
    def is_urgent(self) -> bool:
        """True if any of the values are urgent."""
        return bool(self._urgent)

    def push(self, key: KeyT, value: ValueT, *, urgent: bool) -> None:
        """Add the value to the end of its lane."""
        (self._urgent if urgent else self._common)[key] = value

    def put_back(self, key: KeyT, value: ValueT, *, urgent: bool) -> None:
        """Add the value to the beginning of its lane, for example after it was popped in vain."""
        lane = self._urgent if urgent else self._common
        lane[key] = value
        lane.move_to_end(key, last=False)

    def prioritize(self, key: KeyT) -> None:
        """Move the value to the urgent lane if it waits in the other one."""
        if key in self._common:
            self._urgent[key] = self._common.pop(key)

    def discard(self, key: KeyT) -> bool:
        """Remove the value from the queue; return true if it was there."""
        for lane in (self._urgent, self._common):
            if key in lane:
                del lane[key]
                return True
        return False

    def take(self, key: KeyT) -> ValueT | None:
        """Remove and return the value of this key, out of turn; `None` if it is not there."""
        lane = self._urgent if key in self._urgent else self._common
        return lane.pop(key, None)

    def pop(self, *, urgent_only: bool = False) -> tuple[KeyT, ValueT]:
        """
        Remove and return the next key and its value.

        Raises:
            KeyError: if there are no values.
        """
        urgent = urgent_only or bool(self._urgent)
        if urgent and self._common and not urgent_only:
            self._count += 1
            urgent = self._count % SHARE != 0
        return (self._urgent if urgent else self._common).popitem(last=False)
