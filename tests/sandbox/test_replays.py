"""What a real control plane answers, step by step, is what the sandbox answers.

The answers beside the replays are recorded by `pytest tests/sandbox/test_replays.py --cluster=real --record`; without
`--record`, it is seen whether they still are what a real one says.
"""

import json
import pathlib

import pytest
import replays
import yaml

FOLDER = pathlib.Path(__file__).parent / "replays"
PATHS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "crds")


@pytest.fixture(scope="module")
def replayer(cluster):
    replayer = replays.Replayer(cluster.kubeconfig)
    crds = list(yaml.safe_load_all((FOLDER / "crds.yaml").read_text()))
    replayer.prepare(crds)
    yield replayer
    replayer.clean(crds)


def dump(played):
    """JSON with one answer in each line."""
    lines = []
    for name, answers in played.items():
        listed = ",\n".join(json.dumps(answer, sort_keys=True) for answer in answers)
        lines.append(f"{json.dumps(name)}: [\n{listed}\n]")
    return "{" + ",\n".join(lines) + "}\n"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_answers_of_a_real_control_plane(replayer, path, request):
    if path.stem == "rules" and not request.config.getoption("--record"):
        pytest.importorskip("cel_expr_python")
    scenarios = replays.scenarios(path)
    played = {name: replayer.play(steps) for name, steps in scenarios.items()}
    recording = path.with_suffix(".json")
    if request.config.getoption("--record"):
        recording.write_text(dump(played))
    recorded = json.loads(recording.read_text())
    for name, steps in scenarios.items():
        for step, answer, expected in zip(steps, played[name], recorded[name], strict=True):
            assert answer == expected, f"{path.stem}, {name}: {step}"
