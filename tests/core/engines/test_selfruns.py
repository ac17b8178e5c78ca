"""How deep runs are that patches have triggered, and the pauses between them."""

import pytest

from kopf._cogs.structs.patches import Patch
from kopf._core.engines.selfruns import MAX_DEPTH, MAX_DURATION, MAX_PAUSE, OwnPatch, RunChain


def run_in_turn(count, duration=0.1):
    """Let two chains trigger each other; return the pauses."""
    chains, pauses, now = (RunChain(), RunChain()), [], 0.0
    patch = OwnPatch.of(None, 'handler', Patch({'spec': {'x': 1}}), now)
    for number in range(count):
        chain = chains[number % 2]
        pauses.append(chain.note(patch, now))
        now += pauses[-1]
        chain.begin(now)
        now += duration
        patch = OwnPatch.of(chain, 'handler', Patch(), now)
    return pauses


def test_a_long_row_gets_growing_pauses():
    pauses = run_in_turn(MAX_DEPTH + 15)
    assert not any(pauses[: MAX_DEPTH - 1])
    assert pauses[MAX_DEPTH - 1 : MAX_DEPTH + 3] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == MAX_PAUSE


def test_slow_runs_are_no_chain():
    assert not any(run_in_turn(100, duration=MAX_DURATION + 0.1))


def test_a_run_that_was_not_triggered_by_a_patch_begins_a_chain():
    chain = RunChain()
    chain.note(OwnPatch.of(None, 'handler', Patch(), 1.0), 1.1)
    chain.begin(1.1)
    assert chain.depth == 1
    chain.begin(1.2)
    assert chain.depth == 0


@pytest.mark.parametrize(
    'patch, fields',
    [
        ({'spec': {'x': 1}, 'status': {'y': {'z': 1}}}, 'spec.x, status.y'),
        ({'spec': None}, 'spec'),
        ({}, 'a function'),
    ],
)
def test_patches_are_described_by_their_fields(patch, fields):
    assert OwnPatch.of(None, 'handler', Patch(patch), 0.0).fields == fields
