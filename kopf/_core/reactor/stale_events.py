"""
The filter that keeps stale events of the watches from the processing of objects.

`echoes` compares one event with the state after the operator's last patch. This module acts on the verdict: it ends
expectations, and holds events back until the echo of the patch, or until a timeout. When other processors continue with
the objects, each one has its own filter, linked from the filter of its predecessor.
"""

import asyncio
import weakref
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Protocol

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import RawEvent
from kopf._core.reactor.echoes import Expectation, Verdict
from kopf._core.reactor.object_records import ObjectRecord

if TYPE_CHECKING:
    from kopf._core.reactor.watches import ResourceWatch


class Receiver(Protocol):
    """The function that receives an event from the watch, or one that was held back."""

    def __call__(self, record: ObjectRecord, event: RawEvent, /, *, listed_since: float | None) -> None: ...


class StaleEventFilter:
    """
    Drops the stale events of the objects of one resource, and holds back the doubtful ones.

    Args:
        settings: the settings.
        receive: called with each event that was held back and turns out not to be stale.
    """

    def __init__(self, settings: OperatorSettings, receive: Receiver) -> None:
        self._settings = settings
        self._receive: Receiver | None = receive
        self._inherited: set[ObjectRecord] = set()
        """The records from a predecessor, whose echoes must be handled, too."""
        self._watch: weakref.ref[ResourceWatch] | None = None
        self._successor: StaleEventFilter | None = None

    def attach_watch(self, watch: 'ResourceWatch') -> None:
        """Set the watch that the events come from."""
        self._watch = weakref.ref(watch)  # no reference cycle, as watches come and go

    def note(self, record: ObjectRecord, event: RawEvent, *, listed_since: float | None) -> None:
        """Adjust the expectation to an event that has just arrived, before the check whether the event is stale."""
        if listed_since is not None and record.expected is not None:
            record.expect(record.expected.after_list(since=listed_since))
        if event['type'] != 'DELETED' and record.expected is not None:
            record.expected.note_return()

    def drop_stale(self, record: ObjectRecord, event: RawEvent) -> bool:
        """
        Return whether the event is stale: older than the operator's last patch, or the echo of that patch.

        An event that cannot be compared is held back as if it were stale. A new event ends the expectation.
        """
        expected = record.expected
        if expected is not None:
            verdict = expected.compare(event)
            if verdict is Verdict.OLDER:
                return True
            if verdict is Verdict.UNSURE:
                if expected.unsure is None:
                    self._reconsider_later(record, expected)
                expected.hold_back(event)
                return True
            if verdict is Verdict.ECHO and record not in self._inherited:
                expected.take_unsure()
                if not expected.is_ordered:
                    record.expect(None)  # all events after the echo are new
                return True
            record.expect(None)
        self._inherited.discard(record)
        return False

    def _reconsider_later(self, record: ObjectRecord, expected: Expectation) -> None:
        asyncio.get_running_loop().call_later(expected.remaining, self._reconsider, record)

    def _reconsider(self, record: ObjectRecord) -> None:
        """Handle the event that was held back, because the echo has not come in time."""
        expected = record.expected
        if expected is None or expected.unsure is None:
            return
        if expected.remaining:  # another patch was made meanwhile
            self._reconsider_later(record, expected)
            return
        event = expected.take_unsure()
        if event is not None and record.pending is None:
            # Why the last one? The processor of this filter can have retired while the event was held back.
            receive = self._find_last()._receive
            if receive is not None:
                receive(record, event, listed_since=None)

    # Deleted objects.

    def supersede(self, record: ObjectRecord) -> None:
        """Called when the worker takes the DELETED event of an object: drop the older event that is held back."""
        # Why not in `forget`? Before that, handlers of raw events run. If the timeout was over meanwhile, the older
        # event would be received after the deletion, and the object would seem to exist again.
        if record.expected is not None:
            record.expected.take_unsure()

    def forget(self, record: ObjectRecord, event: RawEvent) -> None:
        """Called when the DELETED event of an object is processed, after its state is forgotten."""
        self._disinherit(record)
        expected = record.expected
        if expected is None:
            return
        rest = expected.after_deletion(event, timeout=self._settings.persistence.consistency_timeout)
        record.expect(rest)
        if rest is not None:
            asyncio.get_running_loop().call_later(rest.remaining, self._stop_expecting, record, rest)

    def _stop_expecting(self, record: ObjectRecord, expected: Expectation) -> None:
        # If the object is being indexed, it exists again, and the informer will pass its event on.
        if not expected.is_absent or record.indexing is not None:
            return
        if record.expected is expected:
            # If the stream lags behind for longer than the timeout, it can still bring older states of the object.
            if self._is_lagging(expected):
                timeout = self._settings.persistence.consistency_timeout
                asyncio.get_running_loop().call_later(timeout, self._stop_expecting, record, expected)
                return
            self._disinherit(record)  # the object has not appeared again, so it needs no record
        record.stop_expecting(expected)

    def _is_lagging(self, expected: Expectation) -> bool:
        """Check whether the stream is known to bring the expected state only later."""
        last = self._find_last()
        watch = None if last._watch is None else last._watch()
        return watch is not None and not watch.has_reached(expected.version)

    # Succession.

    def inherit(self, record: ObjectRecord) -> None:
        """
        Called when the processor of this filter takes over an object that expects an echo, or has a worker.

        The echo of the predecessor's patch must be handled, because this processor can have other handlers.
        """
        self._inherited.add(record)

    def disown(self, records: Collection[ObjectRecord]) -> None:
        """Release the records of objects that another operator handles from now on."""
        self._inherited.difference_update(records)

    def reset(self) -> None:
        """Release all inherited records: after a pause, no echoes are expected any more."""
        self._inherited.clear()

    def retire(self, successor: 'StaleEventFilter') -> None:
        """Called when another processor takes over the objects; this is its filter."""
        self._successor = successor

    def release(self) -> None:
        """Called when the objects are not served here any more: break the reference cycle."""
        self._receive = None

    def _disinherit(self, record: ObjectRecord) -> None:
        """Release the record of a deleted object, also in successors that have inherited it since the deletion."""
        for each in self._iter_chain():
            each._inherited.discard(record)

    def _find_last(self) -> 'StaleEventFilter':
        *_, last = self._iter_chain()
        return last

    def _iter_chain(self) -> Iterator['StaleEventFilter']:
        """Yield this filter, that of the successor, that of the successor's successor, and so on."""
        filter_: StaleEventFilter | None = self
        while filter_ is not None:
            yield filter_
            filter_ = filter_._successor
