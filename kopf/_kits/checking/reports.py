"""The output of a check: its progress, its findings, and the parts that were impossible; as text or JUnit's XML."""

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from kopf._kits.checking.checks import Finding, Progress, Report
from kopf._kits.checking.disturbances import EDITING
from kopf._kits.checking.oracles import Violation
from kopf._kits.checking.plans import Plan

WIDTH = 100
BUDGET_OPTION = '--budget {}s'
"""The option of the command that gives a check more time, with a place for the seconds."""


def describe(plan: Plan) -> str:
    """Describe a plan in one or two sentences."""
    sentences = []
    if plan.edits and plan.do not in EDITING:
        verb = 'was created with' if plan.fresh else 'was edited at rest:'
        edits = ', and then '.join(map(str, plan.edits))
        sentences.append(f'{plan.edits[0].target} {verb} {edits}.')
    elif plan.fresh:
        sentences.append('The objects were created with their final specs.')
    if plan.without:
        sentences.append(f'Of the loaded objects, {", ".join(f"#{number}" for number in plan.without)} were left out.')
    if plan.replicas > 1:
        sentences.append(f'{plan.replicas} operators were there.')
    if plan.do:
        sentences.append(f'{_describe_action(plan)}, {_describe_time(plan)}.')
    return ' '.join(sentences) or 'Nothing was disturbed.'


def _describe_action(plan: Plan) -> str:
    edit = plan.edits[0] if plan.edits else None
    match plan.do:
        case 'kill':
            return f'The operator was killed, and started again {plan.seconds or 1:g} s later'
        case 'stop':
            return f'The operator was stopped, and started again {plan.seconds or 1:g} s later'
        case 'hang':
            return f'The process of the operator was suspended for {plan.seconds:g} s'
        case 'error':
            times = f' ({plan.times} times)' if plan.times > 1 else ''
            return f'The API answered with the error {plan.status}{times}'
        case 'drop':
            return 'The connection broke off before the request was done'
        case 'lose':
            return 'The connection broke off after the request was done, but before its response'
        case 'delay':
            return f'The request was done only {plan.seconds:g} s later'
        case 'freeze':
            resource = plan.target.resource if plan.target else ''
            return f'The watch of {resource} was silent for {plan.seconds:g} s'
        case 'stale':
            resource = plan.target.resource if plan.target else ''
            return f'The watch of {resource} was silent for {plan.seconds:g} s, and the user edited meanwhile: {edit}'
        case 'edit' if edit is not None:
            return f'The user edited {edit.target}: {edit}'
        case 'tamper' if edit is not None:
            return f'Another client edited {edit.target}: {edit}'
        case 'annotate' if edit is not None:
            return f'Another client added an annotation to {edit.target}'
        case 'delete':
            return f'Another client deleted {plan.target}'
        case _:
            return f'The user deleted {plan.target} and created it again'


_WHEN = {
    'before': 'before {} was done',
    'unanswered': 'after {} was done, but before its response',
    'after': 'after {}',
}


def _describe_time(plan: Plan) -> str:
    if plan.request is not None:
        at_once = plan.do in ('error', 'drop', 'lose', 'delay')
        return f'at {plan.request}' if at_once else _WHEN[plan.when].format(plan.request)
    if plan.step:
        return f'before write {plan.step} of the user, and during it'
    return 'while no operator was running, at rest' if plan.when == 'away' else 'at rest'


def format_finding(number: int, finding: Finding, command: str) -> str:
    """Return the paragraph about a finding."""
    lines = [f'{number}. {describe(finding.plan)}']
    for violation in finding.violations:
        lines.append(f'   {violation.text}')
        lines += [f'       {line}' for line in violation.details]
    if finding.count > 1:
        lines.append(f'   {finding.count} plans have shown it; this is the smallest.')
    if command:
        lines.append(f'   Run it again: {command}')
    return '\n'.join(lines)


def format_report(report: Report, commands: Sequence[str], *, option: str = BUDGET_OPTION) -> str:
    """Return the whole report; for `option`, see `summarize`."""
    parts = [
        format_finding(number, finding, command)
        for number, (finding, command) in enumerate(zip(report.findings, commands, strict=True), 1)
    ]
    if report.untried:
        parts.append('\n'.join(['Not tried:', *(f'- {text}' for text in report.untried)]))
    if report.unconfirmed:
        lines = [f'- {describe(each.plan)} {each.violations[0].text}' for each in report.unconfirmed]
        parts.append('\n'.join(['Seen once, but not when the plan was run again:', *lines]))
    if report.noticed:
        parts.append('\n'.join(['Noticed:', *(f'- {text}' for text in report.noticed)]))
    return '\n\n'.join([*parts, summarize(report, option=option)])


def summarize(report: Report, *, option: str = BUDGET_OPTION) -> str:
    """Return the last line, which says what was tried and found; with `option` as the way to try more."""
    count, rate = len(report.tried), len(report.tried) / max(report.seconds, 0.001) * 60
    if report.left and not report.findings:
        more = f'{option.format(_estimate_budget(report))} tries more'
        ended = f'the budget has ended before the others; {more}'
        found = f'nothing found, but {ended}' if report.is_disturbed else f'nothing was disturbed, as {ended}'
        return f'{count} of {count + report.left} plans in {report.seconds:.1f} s: {found}.'
    found = f'{len(report.findings)} found' if report.findings else 'nothing found'
    plans = 'plan' if count == 1 else 'plans'
    return f'{count} {plans} in {report.seconds:.1f} s ({rate:.0f} a minute): {found}.'


def _estimate_budget(report: Report) -> int:
    """Return a budget (in seconds) that is about enough for all plans, or at least for twice as many."""
    needed = 2 * report.budget
    if report.is_disturbed:  # the rate of the reference runs alone says nothing
        needed = max(needed, 1.25 * report.seconds * (1 + report.left / len(report.tried)))
    return max(60, math.ceil(needed))


def format_progress(progress: Progress) -> str:
    """Return the progress in one line."""
    return (
        f'{progress.done} of {progress.planned} plans done, {progress.findings} found, '
        f'{progress.seconds_left:.0f} s left'
    )


def write_plans(report: Report, folder: Path, command: Sequence[str]) -> list[str]:
    """Write the plans of the findings to the folder; return the commands that run them again."""
    commands = []
    for number, finding in enumerate(report.findings, 1):
        path = folder / name_plan(number)
        again = shlex.join([*command, '--plan', str(path)])
        comments = [describe(finding.plan), *(violation.text for violation in finding.violations)]
        comments += [f'Run: {again}'] if command else []
        folder.mkdir(parents=True, exist_ok=True)
        finding.plan.write(path, comments)
        commands.append(again)
    return commands


def name_plan(number: int) -> str:
    """Return the name of the file with the plan of a finding."""
    return f'kopf-check-{number}.yaml'


def write_junit(report: Report, path: Path, name: str) -> None:
    """Write the report as JUnit's XML: a test case for each plan."""
    failures = sum(bool(violations) for _, violations in report.tried)
    suite = ElementTree.Element(
        'testsuite',
        name=f'kopf check {name}',
        tests=str(len(report.tried) + len(report.untried)),
        failures=str(failures),
        errors='0',
        skipped=str(len(report.untried)),
        time=f'{report.seconds:.3f}',
    )
    for plan, violations in report.tried:
        case = ElementTree.SubElement(suite, 'testcase', classname=f'{name}.{plan.do or "edit"}', name=describe(plan))
        if violations:
            failure = ElementTree.SubElement(case, 'failure', message=violations[0].text)
            failure.text = '\n'.join(_iter_lines(violations))
    for text in report.untried:
        case = ElementTree.SubElement(suite, 'testcase', classname=f'{name}.untried', name=text)
        ElementTree.SubElement(case, 'skipped', message=text)
    if report.noticed:
        ElementTree.SubElement(suite, 'system-out').text = '\n'.join(report.noticed)
    ElementTree.ElementTree(suite).write(path, encoding='utf-8', xml_declaration=True)


def _iter_lines(violations: Sequence[Violation]) -> Iterable[str]:
    for violation in violations:
        yield violation.text
        yield from violation.details
