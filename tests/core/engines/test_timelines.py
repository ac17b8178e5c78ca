"""The timelines of objects: what is kept of them, in which order, and how much of it in all."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.timelines import CHARACTERS, LIMITS, Timelines


def read(timelines, uid='a', after=0):
    return [entry['n'] for entry in timelines.read(uid, after).entries]


def test_entries_are_read_in_their_order():
    timelines = Timelines(100)
    for number, type_ in enumerate(['cause', 'log', 'handler', 'cause']):
        timelines.add('a', type_, n=number)
    assert read(timelines) == [0, 1, 2, 3]
    assert [entry['type'] for entry in timelines.read('a').entries] == ['cause', 'log', 'handler', 'cause']


def test_only_news_are_read_again():
    timelines = Timelines(100)
    first, _ = timelines.add('a', 'handler', n=1), timelines.add('a', 'log', n=2)
    number = timelines.read('a').number
    assert timelines.read('a', number).entries == []
    timelines.change('a', first, outcome='succeeded')
    (entry,) = timelines.read('a', number).entries
    assert (entry['id'], entry['n'], entry['outcome']) == (first.id, 1, 'succeeded')
    assert timelines.read('a').number > number


def test_unknown_objects_have_no_timeline():
    timelines = Timelines(100)
    assert timelines.read('a') == (0, [], None)
    assert (timelines.get_number('a'), timelines.find_failure('a')) == (0, None)


def test_frequent_entries_do_not_displace_others():
    timelines = Timelines(10_000)
    timelines.add('a', 'cause', n=-1)
    for number in range(LIMITS['log'] + 5):
        timelines.add('a', 'log', n=number)
    assert read(timelines) == [-1, *range(5, LIMITS['log'] + 5)]


def test_the_objects_with_the_oldest_news_are_dropped_first():
    timelines = Timelines(3)
    for uid in 'abca':
        timelines.add(uid, 'cause', n=uid)
    assert [bool(read(timelines, uid)) for uid in 'abc'] == [True, False, True]


def test_long_texts_count_as_several_entries():
    timelines = Timelines(10)
    timelines.add('a', 'log', n=1)
    timelines.add('b', 'log', n=1, message='x' * (9 * CHARACTERS))
    assert (read(timelines, 'a'), read(timelines, 'b')) == ([], [1])
    timelines.set_diff('c', {'fields': []}, 9 * CHARACTERS)
    assert read(timelines, 'b') == [] and timelines.read('c').diff == {'fields': []}


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from('abc'), st.sampled_from([*LIMITS, 'diff']), st.integers(0, 5 * CHARACTERS))),
)
def test_the_sum_of_all_is_limited(limit, actions):
    timelines = Timelines(limit)
    for uid, type_, size in actions:
        if type_ == 'diff':
            timelines.set_diff(uid, {}, size)
        else:
            timelines.add(uid, type_, message='x' * size)
        known = [timelines.read(each) for each in 'abc']
        weights = sum(1 + len(entry['message']) // CHARACTERS for story in known for entry in story.entries)
        assert weights <= timelines.weight <= limit


def test_changes_of_dropped_entries_bring_no_timeline_back():
    timelines = Timelines(1)
    entry = timelines.add('a', 'handler', n=1)
    timelines.add('b', 'handler', n=2)
    timelines.change('a', entry, outcome='succeeded')
    timelines.set_failure('a', 'fn', "no")
    assert timelines.read('a') == (0, [], None) and timelines.find_failure('a') is None


def test_failures_are_remembered_until_the_next_success():
    timelines = Timelines(10)
    timelines.add('a', 'handler')
    timelines.set_failure('a', 'one', "first")
    timelines.set_failure('a', 'two', "second")
    assert timelines.find_failure('a') == ('one', "first")
    timelines.set_failure('a', 'one', None)
    assert timelines.find_failure('a') == ('two', "second")


def test_changed_objects_are_remembered_only_while_they_are_asked_for():
    timelines = Timelines(10)
    timelines.mark('a')
    assert timelines.take_changed(10) == ()
    timelines.follow()
    assert timelines.take_changed(10) == ()
    timelines.mark('a')
    timelines.add('b', 'log')
    assert set(timelines.take_changed(10)) == {'a', 'b'} and timelines.take_changed(10) == ()
    timelines.mark('c')
    timelines.unfollow()
    assert timelines.take_changed(10) == ()


def test_changed_objects_are_taken_in_portions():
    timelines = Timelines(10)
    timelines.follow()
    for uid in 'abcde':
        timelines.mark(uid)
    first, second = timelines.take_changed(3), timelines.take_changed(3)
    assert (len(first), len(second)) == (3, 2) and {*first, *second} == set('abcde')


def test_threads_can_write_at_once():
    timelines = Timelines(100)

    def write(uid):
        for number in range(300):
            timelines.add(uid, 'log', n=number)
            timelines.read(uid)

    threads = [threading.Thread(target=write, args=(uid,)) for uid in 'abcd']
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(read(timelines, uid)) for uid in 'abcd') == timelines.weight <= 100
