"""States of different courses: what differs by itself is left out, all else is told."""

from kopf._kits.checking.end_states import Normalizer, State, StoredObject, find_differences


def make_object(resource, name, uid="u", **fields):
    metadata = {"name": name, "namespace": "ns", "uid": uid, **fields.pop("metadata", {})}
    return StoredObject(resource, "ns", name, {"metadata": metadata, **fields})


def compare(references, state, **options):
    """Compare the state with the first one of the references, which show what differs by itself."""
    normalizer = Normalizer([references])
    return find_differences(normalizer.normalize(references[0], **options), normalizer.normalize(state, **options))


def test_equal_states_have_no_differences():
    one, other = (
        State([make_object("webs", "x", uid, metadata={"resourceVersion": version}, spec={"a": 1})], {})
        for uid, version in [("u1", "5"), ("u2", "9")]
    )
    assert compare([one, one], other) == []


def test_differences_are_told_with_their_fields():
    references = [State([make_object("webs", "x", spec={"a": {"b": 1}}), make_object("pods", "p")], {})] * 2
    state = State([make_object("webs", "x", spec={"a": {"b": 2}, "c": [1]}), make_object("pods", "q")], {})
    assert compare(references, state) == [
        "+ pods ns/#1",
        "- pods ns/p",
        "~ webs ns/x spec.a.b: 1 is expected, 2 is there",
        '~ webs ns/x spec.c: nothing is expected, {"[0]":1} is there',
    ]


def test_what_differs_without_disturbances_is_not_compared():
    references = [State([make_object("webs", "x", status={"token": token, "a": 1})], {}) for token in ("t1", "t2")]
    assert compare(references, State([make_object("webs", "x", status={"token": "t3", "a": 1})], {})) == []
    assert compare(references, State([make_object("webs", "x", status={"token": "t3", "a": 2})], {})) == [
        "~ webs ns/x status.a: 1 is expected, 2 is there"
    ]


def test_objects_with_generated_names_are_matched_by_what_they_contain():
    def make_state(*names):
        objects = [make_object("pods", name, f"u-{name}", spec={"number": n}) for n, name in enumerate(names)]
        owners = {"pods": list(names), "uid": [f"u-{name}" for name in names]}
        return State([*objects, make_object("webs", "x", status=owners)], {})

    references = [make_state("pod-abcd", "pod-bcde"), make_state("pod-zzzz", "pod-aaaa")]
    assert compare(references, make_state("pod-mmmm", "pod-llll")) == []
    assert compare(references, make_state("pod-mmmm", "pod-llll", "pod-kkkk"))[0] == "+ pods ns/#3"


def test_times_and_uids_in_texts_do_not_matter():
    def make_state(text):
        return State([make_object("webs", "x", status={"text": text})], {})

    one = make_state("since 2030-01-01T00:00:00Z, 9795968d-7231-4745-a20e-123456789abc")
    assert compare([one, one], make_state("since 2030-01-01T00:05:00.123Z, 9795968d-7231-4745-a20e-cba987654321")) == []


def test_the_keys_of_mappings_outside_can_be_random():
    references = [State([], {"cloud": {key: {"size": 2}}}) for key in ("s1", "s2", "s3")]
    assert compare(references, State([], {"cloud": {"s4": {"size": 2}}})) == []
    assert compare(references, State([], {"cloud": {"s4": {"size": 2}, "s5": {"size": 2}}})) == [
        '~ outside cloud: [{"size":2}] is expected, [{"size":2},{"size":2}] is there'
    ]


def test_different_numbers_of_objects_make_a_resource_incomparable():
    references = [State([make_object("pods", f"p{number}") for number in range(count)], {}) for count in (1, 3)]
    assert Normalizer([references]).unstable == {"pods"}
    assert compare(references, State([], {})) == []


def test_conditions_are_compared_by_their_types():
    def make_state(*types):
        return State([make_object("webs", "x", status={"conditions": [{"type": type} for type in types]})], {})

    assert compare([make_state("A", "B")] * 2, make_state("B", "A")) == []


def test_observed_generations_are_compared_with_the_present_one():
    def make_state(generation, observed):
        metadata, status = {"generation": generation}, {"observedGeneration": observed}
        return State([make_object("webs", "x", metadata=metadata, status=status)], {})

    assert compare([make_state(1, 1)] * 2, make_state(3, 3)) == []
    assert compare([make_state(1, 1)] * 2, make_state(3, 2)) != []


def test_results_of_handlers_are_history():
    def make_state(**status):
        return State([make_object("webs", "x", status=status)], {})

    normalizer = Normalizer([[make_state(create_fn=1, size=2)] * 2], frozenset({"create_fn", "update_fn"}))
    one, other = make_state(create_fn=1, size=2), make_state(create_fn=1, update_fn=3, size=2)
    assert normalizer.normalize(one) != normalizer.normalize(other)
    assert normalizer.normalize(one, history=False) == normalizer.normalize(other, history=False)
    nested = State([make_object("webs", "x", status={"create_fn/sub/sub": 1, "size": 2})], {})
    assert normalizer.normalize(one, history=False) == normalizer.normalize(nested, history=False)


def test_what_controllers_create_is_not_compared_but_its_names_are_known():
    def make_state(*sets, current):
        made = [make_object("replicasets", name, f"u-{name}")._replace(is_bookkeeping=True) for name in sets]
        return State([make_object("webs", "x", status={"set": current}), *made], {})

    references = [make_state("web-abcd", current="web-abcd"), make_state("web-bcde", current="web-bcde")]
    state = make_state("web-cdef", "web-defg", current="web-defg")
    assert compare(references, state) == []
    assert Normalizer([references]).normalize(state) == {
        "webs ns/x": {"metadata": {"name": "x", "namespace": "ns"}, "status": {"set": "(name of replicasets)"}}
    }


def test_annotations_of_controllers_are_not_compared():
    one, other = (
        State([make_object("deployments", "x", metadata={"annotations": annotations})], {})
        for annotations in ({"deployment.kubernetes.io/revision": "1"}, {"deployment.kubernetes.io/revision": "2"})
    )
    assert compare([one, one], other) == []
