"""
The handlers that are running now: the duration, the object, and the current line of the user's code.

This is an instrument: the framework notifies it of each attempt of a handler. Other facts are computed on request.
"""

import asyncio
import time
from typing import Any

from kopf._cogs.structs.instruments import HandlerCall, Instrument
from kopf._cogs.structs.meters import name_resource
from kopf._core.engines.stacks import Call, read_stack


class RunningCalls(Instrument):
    """Records the running attempts of handlers."""

    def __init__(self) -> None:
        self._tasks: dict[HandlerCall, asyncio.Task[Any] | None] = {}

    def handler_begins(self, call: HandlerCall) -> None:
        """Add the attempt."""
        self._tasks[call] = asyncio.current_task()

    def handler_ends(self, call: HandlerCall) -> None:
        """Remove the attempt."""
        self._tasks.pop(call, None)

    def __len__(self) -> int:
        return len(self._tasks)

    def describe(
        self,
        blocker: asyncio.Task[Any] | None,
        loop_thread: int,
        *,
        uid: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Return the facts about the attempts, the longest first; callable from any thread.

        Args:
            blocker: the task that blocks the event loop now, if any.
            loop_thread: the thread of the event loop.
            uid: the only object whose attempts are described; by default, those of all objects.
            limit: how many attempts are described at most: each needs the stack of a task, or of a thread.
        """
        calls = [
            (call, task)
            for call, task in list(self._tasks.items())
            if uid is None or (call.key is not None and call.key.uid == uid)
        ]
        calls.sort(key=lambda item: (item[1] is not blocker or blocker is None, item[0].began))
        found = []
        for call, task in calls[:limit]:
            is_blocking = task is not None and task is blocker
            found.append(_describe_call(call, task, loop_thread if is_blocking else None))
        return sorted(found, key=lambda facts: -facts['seconds'])


def _describe_call(call: HandlerCall, task: asyncio.Task[Any] | None, loop_thread: int | None) -> dict[str, Any]:
    stack = None if task is None else read_stack(task, loop_thread)
    place = None if stack is None else stack.find_place(call.fn)
    stopped = getattr(call.cause, 'stopped', None)
    reason = getattr(stopped, 'reason', None)
    facts = {
        'handler': call.id,
        'kind': call.kind,
        'reason': call.reason,
        'retry': call.retry,
        'seconds': round(time.monotonic() - call.began, 3),
        'blocking': loop_thread is not None,
        'stopping': None if not reason else str(reason),
        'thread': None if stack is None else stack.thread,
        'place': None if place is None else describe_place(place),
        'stack': [] if stack is None else [describe_place(each) for each in stack.calls],
    }
    if call.key is not None:
        facts['object'] = {
            'resource': name_resource(call.key.resource),
            'namespace': call.key.namespace,
            'name': call.key.name,
            'uid': call.key.uid,
        }
    return facts


def describe_place(call: Call) -> dict[str, Any]:
    """Return the facts about a place in the code."""
    return {'file': call.file, 'line': call.line, 'function': call.function, 'code': call.text}
