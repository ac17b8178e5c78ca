"""Filters: which objects and which changes handlers are for."""

import json
import logging
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.references import Resource
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason, WatchingCause
from kopf._core.intents.handlers import ResourceHandler
from kopf._core.intents.registries import OperatorRegistry

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples')

texts = st.sampled_from(['', 'x', 'y'])
metas = st.dictionaries(st.sampled_from('abc'), texts, max_size=3)
scalars = st.none() | st.booleans() | st.integers(-1, 1) | texts | st.lists(st.integers(0, 1), max_size=1)
specs = st.dictionaries(
    st.sampled_from('abc'), scalars | st.dictionaries(st.sampled_from('abc'), scalars, max_size=2), max_size=3
)
fields = st.sampled_from(['spec', 'spec.a', 'spec.b', 'spec.a.b', 'spec.a.b.c'])
markers = st.sampled_from([kopf.PRESENT, kopf.ABSENT])
ABSENT: Any = object()


def lookup(content: Any, path: str) -> Any:
    """Return what is in the field, in the simplest words: a field of something else than a mapping is absent."""
    for key in path.split('.'):
        if not isinstance(content, dict) or key not in content:
            return ABSENT
        content = content[key]
    return content


def is_met(pattern: Any, content: Any) -> bool:
    """Return what one pattern means, in the simplest words; nulls are as good as nothing."""
    if pattern is kopf.PRESENT:
        return content is not ABSENT and content is not None
    if pattern is kopf.ABSENT:
        return content is ABSENT or content is None
    return content is not ABSENT and json.dumps(content) == json.dumps(pattern)  # 1 is not true


def declare(decorator: Any, **options: Any) -> Any:
    registry = OperatorRegistry()

    @decorator('kopfexamples', registry=registry, **options)
    def fn(**_: Any) -> None: ...

    (handler,) = registry.iter_resource_handlers()
    return handler


def prematch(handler: ResourceHandler, **body: Any) -> bool:
    raw: Any = {'metadata': {'name': 'obj'}, **body}
    return filters.prematch(
        handler,
        WatchingCause(
            logger=logging.getLogger(),
            memo=None,
            resource=RESOURCE,
            body=kopf.Body(raw),
            patch=kopf.Patch(),
            event={'type': None, 'object': raw},
        ),
    )


def match_update(handler: ResourceHandler, old: Any, new: Any, *, reason: Reason = Reason.UPDATE) -> bool:
    cause = ChangingCause(
        logger=logging.getLogger(),
        memo=None,
        resource=RESOURCE,
        body=kopf.Body({'metadata': {}, **new}),
        patch=kopf.Patch(),
        reason=reason,
        old=old,
        new=new,
        diff=diff(old, new),
    )
    return filters.match(handler, cause)


@hypothesis.given(
    kind=st.sampled_from(['labels', 'annotations']),
    pattern=st.dictionaries(st.sampled_from('abcd'), texts | markers, max_size=3),
    content=metas,
)
def test_metadata_is_filtered_by_all_its_patterns(kind: str, pattern: dict[str, Any], content: dict[str, str]) -> None:
    handler = declare(kopf.on.event, **{kind: pattern})
    expected = all(is_met(value, content.get(key, ABSENT)) for key, value in pattern.items())
    assert prematch(handler, metadata={'name': 'obj', kind: content}) is expected


@hypothesis.given(content=metas)
def test_metadata_absent_as_a_whole(content: dict[str, str]) -> None:
    for pattern, expected in [({'a': kopf.ABSENT}, True), ({'a': kopf.PRESENT}, False), ({'a': ''}, False)]:
        for meta in ({'name': 'obj'}, {'name': 'obj', 'labels': None}, {'name': 'obj', 'labels': {}}):
            assert prematch(declare(kopf.on.event, labels=pattern), metadata=meta) is expected


@hypothesis.given(field=fields, pattern=scalars | markers, spec=specs)
def test_fields_are_filtered_by_their_values(field: str, pattern: Any, spec: Any) -> None:
    handler = declare(kopf.on.event, field=field, value=pattern)
    expected = is_met(kopf.PRESENT if pattern is None else pattern, lookup({'spec': spec}, field))
    assert prematch(handler, spec=spec) is expected


@hypothesis.given(field=fields, pattern=scalars | markers, old=specs, new=specs)
def test_value_of_updates_is_of_either_side(field: str, pattern: Any, old: Any, new: Any) -> None:
    handler = declare(kopf.on.update, field=field, value=pattern)
    before, after = lookup({'spec': old}, field), lookup({'spec': new}, field)
    affected = bool(diff({'f': before} if before is not ABSENT else {}, {'f': after} if after is not ABSENT else {}))
    expected = affected and (pattern is None or is_met(pattern, before) or is_met(pattern, after))
    assert match_update(handler, {'spec': old}, {'spec': new}) is expected


@hypothesis.given(field=fields, before=scalars | markers, after=scalars | markers, old=specs, new=specs)
def test_old_and_new_are_of_their_own_sides(field: str, before: Any, after: Any, old: Any, new: Any) -> None:
    handler = declare(kopf.on.update, field=field, old=before, new=after)
    was, now = lookup({'spec': old}, field), lookup({'spec': new}, field)
    affected = bool(diff({'f': was} if was is not ABSENT else {}, {'f': now} if now is not ABSENT else {}))
    expected = affected and (before is None or is_met(before, was)) and (after is None or is_met(after, now))
    assert match_update(handler, {'spec': old}, {'spec': new}) is expected


@hypothesis.given(st.lists(st.booleans(), max_size=4))
def test_combined_callbacks_match_by_logic(results: list[bool]) -> None:
    fns = [lambda *_, result=result, **__: result for result in results]
    for combine, expected in [(kopf.all_, all(results)), (kopf.any_, any(results)), (kopf.none_, not any(results))]:
        assert prematch(declare(kopf.on.event, when=combine(fns))) is expected
        assert prematch(declare(kopf.on.event, labels={'a': combine(fns)})) is expected
        assert prematch(declare(kopf.on.event, when=kopf.not_(combine(fns)))) is not expected


@pytest.mark.parametrize('combine, expected', [(kopf.all_, False), (kopf.any_, True), (kopf.none_, False)])
def test_callbacks_from_generators_are_kept(combine: Any, expected: bool) -> None:
    handler = declare(kopf.on.event, when=combine(lambda result=result, **_: result for result in (True, False)))
    assert [prematch(handler), prematch(handler)] == [expected, expected]


@pytest.mark.parametrize('combine', [kopf.all_, kopf.any_, kopf.none_])
def test_only_functions_can_be_combined(combine: Any) -> None:
    with pytest.raises(TypeError, match=r"kopf\.\w+_\(\) takes a list of functions, even if there is only one, not <"):
        combine(test_only_functions_can_be_combined)
    with pytest.raises(TypeError, match=r"kopf\.\w+_\(\) takes only functions, not 'x'"):
        combine([print, 'x'])
    with pytest.raises(TypeError, match=r"kopf\.not_\(\) takes only functions"):
        kopf.not_(kopf.PRESENT)  # type: ignore[type-var]


@pytest.mark.parametrize('combine', [kopf.all_, kopf.any_, kopf.none_, lambda fns: kopf.not_(fns[0])])
def test_async_callbacks_can_not_be_combined(combine: Any) -> None:
    async def fn(**_: Any) -> bool:
        return False

    with pytest.raises(TypeError, match='async'):
        combine([fn, lambda **_: True])


def test_callbacks_get_the_value_and_the_kwargs() -> None:
    calls: list[Any] = []

    def check(value: Any, **kwargs: Any) -> bool:
        calls.append((value, kwargs['name'], kwargs['param']))
        return True

    handler = declare(
        kopf.on.event, labels={'a': check, 'b': check}, annotations={'c': check}, field='spec.x', value=check, param=123
    )
    assert prematch(handler, metadata={'name': 'obj', 'labels': {'a': 'x'}}, spec={'x': 1})
    assert calls == [('x', 'obj', 123), (None, 'obj', 123), (None, 'obj', 123), (1, 'obj', 123)]


@pytest.mark.parametrize(
    'pattern, content, expected',
    [
        (1, True, False),
        (True, 1, False),
        (False, 0, False),
        ([0], [False], False),
        ({'x': 1}, {'x': True}, False),
        (1, 1.0, True),
        (1.0, 1, True),
        ([1], [1.0], True),
        (True, True, True),
    ],
)
def test_numbers_are_not_booleans(pattern: Any, content: Any, expected: bool) -> None:
    assert prematch(declare(kopf.on.event, field='spec.x', value=pattern), spec={'x': content}) is expected
    changed = declare(kopf.on.update, field='spec.x', new=pattern)
    assert match_update(changed, {'spec': {'x': 'old'}}, {'spec': {'x': content}}) is expected


@pytest.mark.parametrize('decorator', [kopf.on.update, kopf.on.field])
def test_callbacks_of_handlers_for_a_field_see_the_whole_change(decorator: Any) -> None:
    old, new = {'spec': {'a': 1, 'b': 1}}, {'spec': {'a': 2, 'b': 1}}
    seen: list[Any] = []

    def check(*_: Any, old: Any, new: Any, diff: Any, **__: Any) -> bool:
        seen.append((old, new, [item.field for item in diff]))
        return True

    filtered = {'labels': {'l': check}, 'annotations': {'a': check}, 'when': check}
    assert match_update(declare(decorator, field='spec.a', **filtered), old, new)
    assert match_update(declare(decorator, field='spec.a', value=check), old, new)
    assert match_update(declare(decorator, field='spec.a', old=check, new=check), old, new)
    assert seen == [(old, new, [('spec', 'a')])] * 6


@pytest.mark.parametrize(
    'decorator',
    [
        kopf.on.create,
        kopf.on.update,
        kopf.on.field,
        kopf.on.resume,
        kopf.on.delete,
        kopf.on.event,
        kopf.daemon,
        kopf.timer,
        kopf.index,
        kopf.on.validate,
        kopf.on.mutate,
    ],
)
def test_functions_are_asked_only_about_objects_with_the_field(decorator: Any) -> None:
    calls: list[Any] = []
    handler = declare(decorator, field='spec.a.b', when=lambda spec, **_: calls.append(spec['a']['b']) or True)
    for old, new in [(None, {'b': 2}), ({'b': 1}, {'b': 2}), ({'a': {'c': 1}}, {'a': {}})]:
        cause = ChangingCause(
            logger=logging.getLogger(),
            memo=None,
            resource=RESOURCE,
            patch=kopf.Patch(),
            reason=Reason.UPDATE,
            body=kopf.Body({'metadata': {}, 'spec': new}),
            old={'spec': old},
            new={'spec': new},
            diff=diff(old, new),
        )
        assert not filters.prematch(handler, cause)
    assert not calls
    assert prematch(handler, spec={'a': {'b': 0}}) and calls == [0]


def test_all_criteria_must_be_met() -> None:
    handler = declare(kopf.on.event, labels={'a': 'x'}, annotations={'b': 'y'}, field='spec.z', when=lambda **_: True)
    meta = {'name': 'obj', 'labels': {'a': 'x'}, 'annotations': {'b': 'y'}}
    assert prematch(handler, metadata=meta, spec={'z': 1})
    assert not prematch(handler, metadata={**meta, 'labels': {}}, spec={'z': 1})
    assert not prematch(handler, metadata={**meta, 'annotations': {}}, spec={'z': 1})
    assert not prematch(handler, metadata=meta, spec={})
    failing = declare(kopf.on.event, labels={'a': 'x'}, when=lambda **_: False)
    assert not prematch(failing, metadata=meta)


@pytest.mark.parametrize(
    'decorator, reasons',
    [
        (kopf.on.create, {Reason.CREATE}),
        (kopf.on.update, {Reason.UPDATE}),
        (kopf.on.delete, {Reason.DELETE}),
        (kopf.on.resume, set()),
    ],
)
def test_handlers_match_the_reasons_of_their_decorators(decorator: Any, reasons: set[Reason]) -> None:
    handler = declare(decorator)
    old, new = {'spec': {'a': 1}}, {'spec': {'a': 2}}
    assert {reason for reason in Reason if match_update(handler, old, new, reason=reason)} == reasons


def test_field_handlers_are_for_any_change_of_the_field() -> None:
    handler = declare(kopf.on.field, field='spec.a')
    assert match_update(handler, {'spec': {'a': 1}}, {'spec': {'a': 2}})
    assert match_update(handler, None, {'spec': {'a': 2}}, reason=Reason.CREATE)
    assert not match_update(handler, {'spec': {'b': 1}}, {'spec': {'b': 2}})
    assert not match_update(handler, {'spec': {'a': 1}}, {'spec': {'a': 2}}, reason=Reason.NOOP)


def test_same_functions_are_run_once() -> None:
    registry = OperatorRegistry()

    @kopf.on.resume('kopfexamples', registry=registry, id='one')
    @kopf.on.create('kopfexamples', registry=registry, id='one')
    @kopf.on.create('kopfexamples', registry=registry, id='two')
    def fn(**_: Any) -> None: ...

    assert [handler.id for handler in filters.deduplicate(registry.changing)] == ['two', 'one']
