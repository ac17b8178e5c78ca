"""Label selectors: what they select is the same as on the server."""

import pytest

from kopf._cogs.structs.labelselectors import LabelSelector

ABC = {'a': {'app': 'x', 'n': '1'}, 'b': {'app': 'y', 'n': '5'}, 'c': {}}


@pytest.mark.parametrize(
    'text, names',
    [
        ('app=x', 'a'),
        ('app==x', 'a'),
        ('app = x', 'a'),
        ('app!=x', 'bc'),
        ('app in (x, y)', 'ab'),
        ('app in (x)', 'a'),
        ('app notin (x)', 'bc'),
        ('app notin (x,y)', 'c'),
        ('app', 'ab'),
        ('!app', 'c'),
        ('! app', 'c'),
        ('app=x,n=1', 'a'),
        ('app=x,n=2', ''),
        (' app=x , n ', 'a'),
        ('n>1', 'b'),
        ('n<5', 'a'),
        ('n > 0,n < 9', 'ab'),
        ('app=', ''),
        ('app>1', ''),
        ('app in (), n', ''),
        ('example.com/app', ''),
        ('!example.com/app,app=y', 'b'),
    ],
)
def test_objects_are_selected_by_their_labels(text, names):
    selector = LabelSelector.parse(text)
    assert [name for name, labels in ABC.items() if selector.matches(labels)] == list(names)
    assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize('text', ['', ' ', 'a b', 'a in (b', 'a=b=c', '=', 'a,', 'a,,b', ',a', 'n>x', 'a in b', '!a=b'])
def test_what_is_not_a_selector_is_refused(text):
    with pytest.raises(ValueError):
        LabelSelector.parse(text)


@pytest.mark.parametrize('text', ['a=1,b!=2', 'b!=2, a==1', 'b notin (2),a in (1)', ' b != 2 , a = 1 ', 'a=1,b!=2,a=1'])
def test_selectors_of_any_spelling_are_equal(text):
    assert LabelSelector.parse(text) == LabelSelector.parse('a=1,b!=2')
    assert str(LabelSelector.parse(text)) == 'a=1,b!=2'


def test_other_selectors_differ():
    assert LabelSelector.parse('a=1') != LabelSelector.parse('a!=1') != LabelSelector.parse('a')
