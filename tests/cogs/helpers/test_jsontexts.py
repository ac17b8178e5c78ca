"""JSON texts that are kept for a while."""

import tracemalloc

import pytest

from kopf._cogs.helpers.jsontexts import dump_tightly


def test_texts_need_no_more_memory_than_they_are_long():
    tracemalloc.start()
    try:
        texts = [dump_tightly({'number': number}) for number in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 100 * 200
    finally:
        tracemalloc.stop()
    assert texts[99] == b'{"number":99}'


def test_what_is_no_json_is_refused_unless_it_can_be_turned_into_it():
    assert dump_tightly([{1}], default=list) == b'[[1]]'
    with pytest.raises(TypeError):
        dump_tightly([{1}])
