import copy
import pickle
from collections.abc import Collection, Mapping

import pytest

from kopf._cogs.structs.ephemera import Index, Memo, Store


def test_attributes_are_keys():
    memo = Memo()
    memo.f1 = 100
    memo['f2'] = 200
    assert memo['f1'] == 100
    assert memo.f2 == 200
    assert memo == {'f1': 100, 'f2': 200}
    del memo.f1
    del memo['f2']
    assert memo == {}


def test_absent_attributes_and_keys():
    memo = Memo()
    assert not hasattr(memo, 'absent')
    assert memo.get('absent', 'default') == 'default'
    with pytest.raises(AttributeError, match="'Memo' has no 'absent'"):
        _ = memo.absent
    with pytest.raises(AttributeError, match="'Memo' has no 'absent'"):
        del memo.absent
    with pytest.raises(KeyError):
        memo['absent']


@pytest.mark.parametrize('copier', [copy.copy, copy.deepcopy, lambda memo: pickle.loads(pickle.dumps(memo))])
def test_copies_of_memos_are_independent(copier):
    memo = Memo(f1=100)
    clone = copier(memo)
    clone.f2 = 200
    assert type(clone) is Memo
    assert clone == {'f1': 100, 'f2': 200}
    assert memo == {'f1': 100}


def test_shallow_copying_shares_values():
    memo = Memo(f1=[])
    assert copy.copy(memo).f1 is memo.f1


def test_indices_and_stores_are_abstract():
    assert issubclass(Index, Mapping)
    assert issubclass(Store, Collection)
    with pytest.raises(TypeError):
        Index[str, str]()
    with pytest.raises(TypeError):
        Store[str]()
