"""YAML for other programs: no reader takes a string for something else, and theirs is read as they read it."""

import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.testing.wire import clientyaml
from kopf._kits.yaml_texts import dump_yaml, load_yaml

WORDS = 'y N yes Off TRUE null ~ = << .inf -.INF .NaN 1e3 12E45 1e-3 0o17 017 0x1F -0b11 1_000 1:30 1:30.5 2001-01-01'
READERS = {'go': lambda text: clientyaml.load(text.encode()), 'python': yaml.safe_load}

texts = st.text('0178exobB_.-+:,yntf~EN =<') | st.text(st.characters(exclude_categories=['Cs']))


@pytest.mark.parametrize(
    'word', [*WORDS.split(), '+_1', '1,000', '0x1p4', '2001-01-01 10:00:00 +1', '2001-01-01T10:00Z']
)
def test_ambiguous_words_are_quoted_as_keys_and_as_values(word):
    assert dump_yaml([{word: word}]) == f"'{word}': '{word}'\n"


@pytest.mark.parametrize('word', ['100m', '10Gi', 'v1', 'example.com/v1', '--name=1', 'yes, sir', string.ascii_letters])
def test_plain_words_are_not_quoted(word):
    assert dump_yaml([{word: word}]) == f'{word}: {word}\n'


@pytest.mark.parametrize('read', READERS.values(), ids=READERS)
@given(st.dictionaries(texts, texts | st.lists(texts), max_size=4))
def test_objects_are_read_as_they_are_dumped(read, fields):
    assert read(dump_yaml([{'spec': fields}])) == {'spec': fields}


def test_several_objects_are_a_stream():
    assert list(load_yaml(dump_yaml([{'a': 'y'}, {'b': 'n'}]))) == [{'a': 'y'}, {'b': 'n'}]
