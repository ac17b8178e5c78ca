"""The messages about CRDs: for the served versions, each once, and only as long as they are true."""

import pytest

from kopf._cogs.structs.references import Resource
from kopf._core.reactor.schema_notes import SchemaNotes

V1, V2 = Resource('example.com', 'v1', 'things'), Resource('example.com', 'v2', 'things')
NAME = 'things.example.com'


class Notes(SchemaNotes):
    def check(self, raw, version):
        return version['wrong']


@pytest.fixture
def notes():
    return Notes()


def make_crd(**versions):
    return {'spec': {'versions': [{'name': name, 'wrong': texts} for name, texts in versions.items()]}}


def test_messages_are_about_the_served_version_and_come_once(notes):
    notes.note(NAME, make_crd(v1=['a', 'b'], v2=[]))
    assert notes.take_new(V1) == ['a', 'b'] and notes.take_new(V2) == []
    notes.note(NAME, make_crd(v1=['b', 'c'], v2=[]))
    assert notes.take_new(V1) == ['c'] and notes.take_new(V1) == []


def test_messages_come_again_if_they_were_untrue_or_of_no_concern_meanwhile(notes):
    notes.note(NAME, make_crd(v1=['a']))
    assert notes.take_new(V1, concerned=False) == [] and notes.take_new(V1) == ['a']
    assert notes.take_new(V1, concerned=False) == [] and notes.take_new(V1) == ['a']
    notes.note(NAME, {})
    assert notes.take_new(V1) == []
    notes.note(NAME, make_crd(v1=['a']))
    assert notes.take_new(V1) == ['a']


@pytest.mark.parametrize('raw', [{'spec': None}, {'spec': {'versions': [{}]}}, {'x': 1}])
def test_malformed_and_unrestricted_crds_are_skipped(notes, raw):
    notes.note(NAME, raw)
    assert notes.take_new(V1) == []
    crd = make_crd(v1=['a'])
    crd['spec']['preserveUnknownFields'] = True
    notes.note(NAME, crd)
    assert notes.take_new(V1) == []
