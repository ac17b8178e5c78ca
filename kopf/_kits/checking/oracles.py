"""
Oracles: whether a course is right, and what is wrong with it.

Most of them compare it with an undisturbed course: what the operator comes to must be the same. So nothing has to be
known of what it is to come to.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kopf._kits.checking.courses import Outcome
from kopf._kits.checking.end_states import ANNOTATION, Likeness, find_differences
from kopf._kits.checking.plans import Target

LIMIT = 12
"""How many differences are shown."""


class Violation(NamedTuple):
    """What is wrong with a course."""

    oracle: str
    """The oracle in one word."""
    text: str
    """What is wrong: a sentence."""
    details: tuple[str, ...] = ()
    """The differences, a line each."""

    @property
    def essence(self) -> tuple[str, ...]:
        """What violations by the same mistake have in common: the oracle, and the fields that differ."""
        return (self.oracle, *sorted({line.partition(':')[0] for line in self.details})[:3])


class Expectation(NamedTuple):
    """The undisturbed course that another one is compared with."""

    outcome: Outcome
    likeness: Likeness
    has_history: bool = True
    """Whether both courses have the same edits, so that the results of handlers must be the same."""


def judge(outcome: Outcome, expected: Expectation) -> list[Violation]:
    """Return what is wrong with the course."""
    if outcome.problem:
        return []
    if outcome.failure:
        return [Violation('failure', outcome.failure)]
    if outcome.scenario_error:
        return [Violation('scenario', f'The scenario fails: {outcome.scenario_error}.')]
    found = [*_judge_rest(outcome, expected), *_judge_end(outcome, expected), *_judge_handlers(outcome, expected)]
    return [*found, *_judge_restart(outcome, expected), *_judge_deletion(outcome, expected)]


def judge_annotation(outcome: Outcome, target: Target) -> list[Violation]:
    """Return whether the annotation of another client is lost, although its object is there."""
    lost = [
        item
        for item in outcome.end.objects
        if (item.resource, item.namespace, item.name) == (target.resource, target.namespace, target.name)
        and ANNOTATION not in item.body['metadata'].get('annotations', {})
    ]
    text = 'What another client has added to a child is lost: change only the fields that are yours.'
    return [Violation('annotation', text, (f'- {target} metadata.annotations',))] if lost and outcome.has_begun else []


def judge_undisturbed(outcome: Outcome, likeness: Likeness) -> list[Violation]:
    """Return what is wrong with a course without disturbances, which is not compared with another one."""
    found = []
    if outcome.overlaps:
        found.append(_overlap(outcome))
    if outcome.early:
        found.append(_early(outcome))
    found += _judge_restart(outcome, Expectation(outcome, likeness))
    if left := likeness.flatten(outcome.final).keys() - _outside(outcome):
        found.append(Violation('leftovers', 'Objects are left when all of the user are deleted.', _add(sorted(left))))
    limit = 2 if outcome.facts.is_periodic else 0.1
    if len(outcome.quiet_writes) > limit * 300:
        found.append(_unrest(outcome))
    elif outcome.quiet_writes and not outcome.facts.is_periodic:
        found.append(_unrest(outcome))
    elif outcome.needless_writes:
        text = 'The same is written again and again in ten minutes in which nothing happens.'
        found.append(Violation('needless', text, _count(outcome.needless_writes)))
    return found


def _outside(outcome: Outcome) -> set[str]:
    return {f'outside {name}' for name in outcome.final.outside}


def _unrest(outcome: Outcome) -> Violation:
    count = len(outcome.quiet_writes)
    text = f'The operator does not come to rest: {count} writes in ten minutes in which nothing happens.'
    return Violation('unrest', text, _count(outcome.quiet_writes))


def _judge_rest(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    usual = len(expected.outcome.quiet_writes)
    if len(outcome.quiet_writes) > usual * 1.5 + (2 if usual else 0):
        yield _unrest(outcome)
    if outcome.overlaps and not expected.outcome.overlaps:
        yield _overlap(outcome)
    if outcome.early and not expected.outcome.early:
        yield _early(outcome)


def _overlap(outcome: Outcome) -> Violation:
    return Violation('overlap', 'An object is handled by two at once.', _count(outcome.overlaps))


def _early(outcome: Outcome) -> Violation:
    text = 'Children are made when their owner says that it is Ready already.'
    return Violation('ready', text, _limit([f'! {line}' for line in outcome.early]))


def _judge_end(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    history, likeness = expected.has_history, expected.likeness
    wanted = likeness.flatten(expected.outcome.end, history=history)
    if lines := find_differences(wanted, likeness.flatten(outcome.end, history=history)):
        yield Violation('end', 'The operator comes to another end than without that.', _limit(lines))


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
    likeness = expected.likeness
    lines = find_differences(likeness.flatten(outcome.end), likeness.flatten(outcome.restarted))
    if lines or outcome.restart_writes:
        lines = lines or [f'~ {name}' for name in outcome.restart_writes]
        yield Violation('restart', 'A restart at rest changes something.', _limit(lines))


def _judge_deletion(outcome: Outcome, expected: Expectation) -> Iterator[Violation]:
    likeness = expected.likeness
    wanted, actual = likeness.flatten(expected.outcome.final), likeness.flatten(outcome.final)
    if lines := find_differences(wanted, actual):
        yield Violation('leftovers', 'Not the same is left when all objects of the user are deleted.', _limit(lines))


def _add(names: Sequence[str]) -> tuple[str, ...]:
    return _limit([f'+ {name}' for name in names])


def _count(lines: Sequence[str]) -> tuple[str, ...]:
    return _limit([f'! {line}' + (f' ({count} times)' if count > 1 else '') for line, count in Counter(lines).items()])


def _limit(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - LIMIT
    return tuple(lines) if more <= 0 else (*lines[:LIMIT], f'... and {more} more')
