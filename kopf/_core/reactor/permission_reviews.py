"""
Reviews of the operator's own permissions, which detect missing permissions at the start, not at their first use.

The required rules are those of generated roles: see `kopf._core.intents.role_rules`. The API server responds whether
the account of the operator has them. If the account has all permissions, like an administrator, one request is
sufficient. Otherwise, a review takes one request for each served namespace, and one request for each verb in the rules
of the whole cluster: a list of the rules in one namespace does not show whether they apply to other namespaces.
Specified in the documentation's "Security".
"""

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient, unfenced_var
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Namespace, Resource, Selector
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.intents.role_rules import VERBS, Rule, list_general_rules, list_handler_rules, merge_rules

logger = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""The interval of reviews of missing permissions (in seconds): an administrator can grant them at any time."""

MAX_NAMES: Final = 5
"""The maximal number of namespaces in a message."""

_PATH: Final = '/apis/authorization.k8s.io/v1'


class PermissionsError(ExplainedError):
    """Raised if the operator lacks permissions that the settings require, so that it exits."""


class Question(NamedTuple):
    """One permission that the operator needs."""

    verb: str
    group: str
    resource: str
    """The plural name, with the subresource after a slash."""
    name: str = ''
    namespace: Namespace = None
    """The namespace; ``None`` for the whole cluster."""

    def is_covered(self, rule: Mapping[str, Any]) -> bool:
        """Check whether the rule of a role permits it."""
        _, _, subresource = self.resource.partition('/')
        resources = {'*', self.resource, f'*/{subresource}'} if subresource else {'*', self.resource}
        names = rule.get('resourceNames')
        return (
            not {'*', self.verb}.isdisjoint(rule.get('verbs') or ())
            and not {'*', self.group}.isdisjoint(rule.get('apiGroups') or ())
            and not resources.isdisjoint(rule.get('resources') or ())
            and (not names or self.name in names)
        )

    def as_attributes(self) -> dict[str, str]:
        """Return the attributes for an access review."""
        plural, _, subresource = self.resource.partition('/')
        values = {
            'namespace': self.namespace or '',
            'verb': self.verb,
            'group': self.group,
            'resource': plural,
            'subresource': subresource,
            'name': self.name,
        }
        return {key: value for key, value in values.items() if value}


EVERYTHING: Final = Question('*', '*', '*')


def list_questions(rules: Iterable[Rule], namespaces: Collection[Namespace]) -> Iterator[Question]:
    """Yield the permissions that the rules need in these namespaces."""
    for rule in rules:
        for namespace in [None] if rule.clusterwide else sorted(namespaces, key=str):
            for verb in rule.verbs:
                yield Question(verb, rule.group, rule.resource, ''.join(rule.names), namespace)


def explain_missing(missing: Collection[Question]) -> list[str]:
    """Return a text for each missing rule: the role that should have it, and its YAML."""
    scopes: dict[tuple[str, str, str, Namespace], list[str]] = {}
    for verb, group, resource, name, namespace in missing:
        scopes.setdefault((group, resource, name, namespace), []).append(verb)
    rules: dict[str, list[Namespace]] = {}
    for (group, resource, name, namespace), verbs in scopes.items():
        ordered = tuple(sorted(verbs, key=VERBS.index))
        rule = Rule(group, resource, ordered, names=(name,) if name else ()).as_role_rule()
        text = ', '.join(f'{key}: {json.dumps(value)}' for key, value in rule.items())
        rules.setdefault(f'- {{{text}}}', []).append(namespace)
    return [f"{_name_role(namespaces)}: {rule}" for rule, namespaces in rules.items()]


def _name_role(namespaces: Collection[Namespace]) -> str:
    if None in namespaces:
        return "a ClusterRole"
    names = [repr(namespace) for namespace in namespaces]
    if len(names) > MAX_NAMES:
        names = [*names[: MAX_NAMES - 1], f"{len(names) - MAX_NAMES + 1} others"]
    return f"Roles in the namespaces {', '.join(names)}" if len(names) > 1 else f"a Role in the namespace {names[0]}"


class PermissionReviews:
    """
    Reviews the permissions of the operator whenever the served resources or namespaces change.

    Args:
        client: the client of the API.
        settings: the settings of the operator.
        registry: the handlers.
        clusterwide: whether the operator serves the whole cluster.
        tasks: the group for the task that reviews them.
    """

    def __init__(
        self,
        client: ApiClient,
        settings: OperatorSettings,
        registry: OperatorRegistry,
        *,
        clusterwide: bool,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._client = client
        self._settings = settings
        self._registry = registry
        self._clusterwide = clusterwide
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._resources: Collection[Resource] = ()
        self._namespaces: Collection[Namespace] = ()
        self._granted: set[Question] = set()
        self._missing: tuple[Question, ...] = ()
        self._failed = False
        self._changed = asyncio.Event()
        self.texts: tuple[str, ...] = ()
        """A text for each missing rule; readable from any thread."""

    async def serve(self, resources: Collection[Resource], namespaces: Collection[Namespace]) -> None:
        """
        Called when the resources are discovered. The permissions for them are reviewed soon, or now if it is required.

        Raises:
            PermissionsError: if the first review finds that required permissions are missing, or if it fails.
        """
        self._resources, self._namespaces = resources, namespaces
        self._changed.set()
        if self._task is None:
            await self._prepare()
            self._task = self._tasks.create_task(self._run(), name='permissions')

    def recheck(self) -> None:
        """Called when the set of served namespaces, which `serve` has got, was changed."""
        self._changed.set()

    async def _prepare(self) -> None:
        """Check the setting, and review the permissions if all of them are required."""
        mode = self._settings.scanning.permissions
        if mode not in ('warn', 'require', None):
            raise PermissionsError(f"settings.scanning.permissions must be 'warn', 'require', or 'off', not {mode!r}.")
        if mode != 'require':
            return
        try:
            await self._review()
        except errors.APIError as error:
            raise PermissionsError(
                f"The permissions of the operator cannot be reviewed, but settings.scanning.permissions requires "
                f"them: {error}"
            ) from error
        if self.texts:
            raise PermissionsError(
                f"The operator lacks permissions that settings.scanning.permissions requires. Add these rules to the "
                f"roles of its account: {'; '.join(self.texts)}"
            )

    async def _run(self) -> None:
        """Review the permissions after each change, and missing permissions periodically."""
        while True:
            try:
                async with asyncio.timeout(INTERVAL if self._missing or self._failed else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            known = self.texts
            try:
                await self._review()
            except LoginError:
                raise
            # Why any error? The reviews only give hints, so none of them may end the operator.
            except Exception as error:
                # It is logged once until a review succeeds again.
                level = logging.DEBUG if self._failed else logging.WARNING
                reason = str(error) if isinstance(error, errors.APIError) else repr(error)
                logger.log(level, "The permissions of the operator cannot be reviewed; trying again: %s", reason)
                self._failed = True
                continue
            self._failed = False
            for text in self.texts:
                if text not in known:
                    logger.warning("A permission of the operator is missing. Add this rule to %s", text)
            if known and not self.texts:
                logger.info("The operator has all the permissions now that it was missing.")

    async def _review(self) -> None:
        """Review the permissions that are not known to be granted."""
        questions = list(dict.fromkeys(list_questions(self._list_rules(), self._namespaces)))
        unknown = [question for question in questions if question not in self._granted]
        missing = tuple(await self._find_missing(unknown)) if unknown else ()
        self._granted = set(questions).difference(missing)
        self._missing, self.texts = missing, tuple(explain_missing(missing))

    def _list_rules(self) -> list[Rule]:
        settings = self._settings
        # Leases are not reviewed: without these permissions, the election itself ends the operator.
        rules = list(
            list_general_rules(
                clusterwide=self._clusterwide,
                posting=settings.posting.enabled,
                scanning=not settings.scanning.disabled,
            )
        )
        for handler in self._registry.iter_resource_handlers():
            if handler.watches or settings.admission.managed is not None:
                rules += list_handler_rules(handler, self._select)
        return merge_rules(rules)

    def _select(self, selector: Selector, where: str) -> Collection[Resource]:
        """Return the resources that are served for the selector; none if it selects all resources."""
        # Why not all of them? There would be hundreds of reviews, and operators rarely need all these resources.
        if not selector.is_specific and selector.any_name is not None:
            return ()
        found = {resource for resource in selector.select(self._resources) if {'list', 'watch'} <= resource.verbs}
        if selector.is_specific and len({resource.group for resource in found}) > 1:
            return ()  # the selector is ambiguous, so its resources are not served
        return sorted(found, key=repr)

    async def _find_missing(self, questions: Collection[Question]) -> list[Question]:
        if await self._is_allowed(EVERYTHING):
            return []
        answers: dict[Question, bool] = {}
        for namespace in sorted({question.namespace for question in questions if question.namespace is not None}):
            local = [question for question in questions if question.namespace == namespace]
            answers |= await self._look_up(namespace, local)
        unknown = [question for question in questions if question not in answers]
        try:
            async with asyncio.TaskGroup() as tasks:  # the client limits how many requests are made at once
                asked = {question: tasks.create_task(self._is_allowed(question)) for question in unknown}
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # all of them usually fail for one reason
        answers |= {question: task.result() for question, task in asked.items()}
        return [question for question in questions if not answers[question]]

    async def _look_up(self, namespace: str, questions: Collection[Question]) -> dict[Question, bool]:
        """Return the certain answers to these questions from the list of rules in the namespace."""
        status = await self._post('SelfSubjectRulesReview', {'namespace': namespace})
        rules = status.get('resourceRules') or ()
        answers = {question: any(map(question.is_covered, rules)) for question in questions}
        # Other authorizers than RBAC can permit more than they list.
        return {question: answer for question, answer in answers.items() if answer or not status.get('incomplete')}

    async def _is_allowed(self, question: Question) -> bool:
        status = await self._post('SelfSubjectAccessReview', {'resourceAttributes': question.as_attributes()})
        return bool(status.get('allowed'))

    async def _post(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {'apiVersion': 'authorization.k8s.io/v1', 'kind': kind, 'spec': spec}
        # Standby replicas need the review, too. It is no write, so the fence must not stop it.
        token = unfenced_var.set(True)
        try:
            answer = await self._client.post_json(f'{_PATH}/{kind.lower()}s', body)
        finally:
            unfenced_var.reset(token)
        status = answer.get('status') if isinstance(answer, dict) else None
        return status if isinstance(status, dict) else {}
