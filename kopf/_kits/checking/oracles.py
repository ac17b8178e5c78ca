"""
Oracles: they decide whether a course is correct, and describe its violations.

Most oracles compare the end state with that of an undisturbed course. So a check needs no description of the state that
the operator should reach.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kopf._kits.checking.end_states import ANNOTATION, Normalizer, find_differences
from kopf._kits.checking.outcomes import MAX_WRITES, Outcome
from kopf._kits.checking.plans import Target

LIMIT = 12
"""The maximal number of differences in a message."""


class Violation(NamedTuple):
    """A requirement that a course violates: which one, and how."""

    oracle: str
    """The name of the oracle: one word."""
    text: str
    """The description for users: one sentence."""
    details: tuple[str, ...] = ()
    """The differences, one line each."""

    @property
    def essence(self) -> tuple[str, ...]:
        """The key by which violations with the same cause are recognized: the oracle, and the fields that differ."""
        return (self.oracle, *sorted({line.partition(':')[0] for line in self.details})[:3])


class Expectation(NamedTuple):
    """The undisturbed course that a disturbed course is compared with."""

    outcome: Outcome
    normalizer: Normalizer
    has_history: bool = True
    """Whether both courses have the same edits, so that the results of handlers must be the same, too."""


def judge(outcome: Outcome, expected: Expectation) -> list[Violation]:
    """Return the violations of the course."""
    if outcome.problem:
        return []
    if outcome.failure:
        return [Violation('failure', outcome.failure)]
    if outcome.scenario_error:
        return [Violation('scenario', f'The scenario fails: {outcome.scenario_error}.')]
    found = [*_judge_rest(outcome, expected), *_judge_end(outcome, expected), *_judge_handlers(outcome, expected)]
    return [*found, *_judge_restart(outcome, expected), *_judge_deletion(outcome, expected)]


def judge_annotation(outcome: Outcome, target: Target) -> list[Violation]:
    """Return a violation if the object exists, but has lost the annotation of another client."""
    lost = [
        item
        for item in outcome.end.objects
        if (item.resource, item.namespace, item.name) == (target.resource, target.namespace, target.name)
        and ANNOTATION not in item.body['metadata'].get('annotations', {})
    ]
    text = 'The annotation of another client is lost: change only the fields of children that your operator owns.'
    return [Violation('annotation', text, (f'- {target} metadata.annotations',))] if lost and outcome.has_begun else []


def judge_undisturbed(outcome: Outcome, normalizer: Normalizer, *, is_refused: bool = False) -> list[Violation]:
    """
    Return the violations in a course that is not compared with another one.

    Args:
        outcome: the outcome of the course.
        normalizer: removes the fields that vary between undisturbed courses.
        is_refused: whether handlers fail with the values of the edit. Then, they may be retried for ever and store
            their progress, but only with delays between the attempts.
    """
    found = []
    if outcome.overlaps:
        found.append(_overlap(outcome))
    if outcome.early:
        found.append(_early(outcome))
    found += _judge_restart(outcome, Expectation(outcome, normalizer))
    if left := normalizer.normalize(outcome.final).keys() - _outside(outcome):
        text = 'Objects are left after the deletion of all user objects.'
        found.append(Violation('leftovers', text, _add(sorted(left))))
    if is_refused:
        return [*found, _unrest(outcome)] if len(outcome.quiet_writes) > MAX_WRITES else found
    # One write per second is too much even for operators that write periodically.
    if len(outcome.quiet_writes) > outcome.quiet + (5 if outcome.quiet < 60 else 0):
        found.append(_unrest(outcome))
    elif outcome.quiet_writes and not outcome.facts.is_periodic:
        found.append(_unrest(outcome))
    elif outcome.needless_writes:
        text = f'The operator repeats the same writes in {_format_quiet(outcome)} without any changes by others.'
        found.append(Violation('needless', text, _count(outcome.needless_writes)))
    return found


def _outside(outcome: Outcome) -> set[str]:
    return {f'outside {name}' for name in outcome.final.outside}


def _unrest(outcome: Outcome) -> Violation:
    count = len(outcome.quiet_writes)
    duration = _format_quiet(outcome)
    text = f'The operator does not come to rest: {count} writes in {duration} without any changes by others.'
    return Violation('unrest', text, _count(outcome.quiet_writes))


def _format_quiet(outcome: Outcome) -> str:
    return 'ten minutes' if outcome.quiet == 600 else f'{outcome.quiet:g} s'


def _judge_rest(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    usual = len(expected.outcome.quiet_writes)
    if len(outcome.quiet_writes) > usual * 1.5 + (2 if usual else 0):
        yield _unrest(outcome)
    if outcome.overlaps and not expected.outcome.overlaps:
        yield _overlap(outcome)
    if outcome.early and not expected.outcome.early:
        yield _early(outcome)


def _overlap(outcome: Outcome) -> Violation:
    return Violation('overlap', 'Two calls of a handler for the same object overlap.', _count(outcome.overlaps))


def _early(outcome: Outcome) -> Violation:
    text = 'Children are created after their owner has become Ready.'
    return Violation('ready', text, _limit([f'! {line}' for line in outcome.early]))


def _judge_end(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    history, normalizer = expected.has_history, expected.normalizer
    wanted = normalizer.normalize(expected.outcome.end, history=history)
    if lines := find_differences(wanted, normalizer.normalize(outcome.end, history=history)):
        yield Violation('end', 'The operator reaches another end state than without the disturbance.', _limit(lines))


def _judge_handlers(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    for name, text in (('failed', 'Handlers have failed for good.'), ('retried', 'Handlers fail again and again.')):
        usual = {(call.resource, call.id) for call in getattr(expected.outcome, name)}
        calls = [call for call in getattr(outcome, name) if (call.resource, call.id) not in usual]
        if calls:
            lines = [f'! {call.id} of {call.resource} {call.name}: {call.message}' for call in calls]
            yield Violation(name, text, _limit(lines))


def _judge_restart(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    if outcome.restarted is None or expected.outcome.facts.is_periodic:
        return
    normalizer = expected.normalizer
    lines = find_differences(normalizer.normalize(outcome.end), normalizer.normalize(outcome.restarted))
    if lines or outcome.restart_writes:
        lines = lines or [f'~ {name}' for name in outcome.restart_writes]
        yield Violation('restart', 'A restart at rest changes objects.', _limit(lines))


def _judge_deletion(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    normalizer = expected.normalizer
    wanted, actual = normalizer.normalize(expected.outcome.final), normalizer.normalize(outcome.final)
    if lines := find_differences(wanted, actual):
        text = 'After the deletion of all user objects, other objects are left than without the disturbance.'
        yield Violation('leftovers', text, _limit(lines))


def _add(names: Sequence[str]) -> tuple[str, ...]:
    return _limit([f'+ {name}' for name in names])


def _count(lines: Sequence[str]) -> tuple[str, ...]:
    return _limit([f'! {line}' + (f' ({count} times)' if count > 1 else '') for line, count in Counter(lines).items()])


def _limit(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - LIMIT
    return tuple(lines) if more <= 0 else (*lines[:LIMIT], f'... and {more} more')
