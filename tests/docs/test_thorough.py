"""What takes minutes, or needs a package index or Go, is run as it is written, too: with --thorough, as `.ci/run` does.

What is to be done besides is in the instruction after the block, as YAML: commands to be run before it and after it,
and environment variables. Each page has a copy of the repository for itself, with an environment in which there is
nothing but pip; ``in: repository`` is for what needs the tools of developers.
"""

import re
import shutil
import subprocess
import urllib.request

import pytest
import yaml
from checkouts import environment, make_checkout
from images import Image
from ports import free_port
from shells import commands
from snippets import PAGES, ROOT, SHELLS, read_page
from stage import assert_shows

import kopf
from kopf._kits.packaging.projects import FILES
from kopf.testing import Sandbox

ALL = [read_page(path) for path in PAGES]
THOROUGH = [
    page
    for page in ALL
    if any(block.kind in SHELLS and not block.text.startswith("docker") for block, _ in page.thorough)
]
IMAGES = [page for page in ALL if any(block.kind == "dockerfile" for block, _ in page.thorough)]
COMPILED = [page for page in ALL if page.compiled]
CI = (ROOT / ".ci" / "run").read_text()
EXTRAS = ["cel_expr_python", "cryptography", "kubernetes", "kubernetes_asyncio", "pyngrok", "pykube", "uvloop"]


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", THOROUGH, ids=lambda page: page.name)
def test_commands_that_take_long_print_what_is_shown(page, checkout):
    for block, instruction in page.thorough:
        if block.kind in SHELLS and not block.text.startswith("docker"):
            task = yaml.safe_load(instruction.text) or {}
            for command in [task["before"]] if "before" in task else []:
                run(command, "", task, checkout, instruction.place)
            for command, shown in commands(block):
                run(command, shown, task, checkout, block.place)
            for command in [task["after"]] if "after" in task else []:
                run(command, "", task, checkout, instruction.place)


def run(command, shown, task, checkout, place):
    """Run a command; it has to succeed, and to print what is shown."""
    words = command.partition("#")[0].strip()
    if words == "make test":  # it is what runs all tests but these
        assert f"\n{words}\n" in CI and CI.index(words) < CI.index("test_thorough")
        return
    at_home = task.get("in") == "repository"
    variables = environment(checkout, ROOT / ".venv" / "bin") if at_home else environment(checkout)
    variables |= task.get("environment", {})
    process = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=ROOT if at_home else checkout,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == 0, f"{place}: {command}:\n{process.stdout}"
    assert_shows(shown, process.stdout, place)


def find_mentioned():
    """Return what pages and messages say to be installed, in the middle of sentences."""
    texts = [path.read_text() for path in [*PAGES, *ROOT.glob("kopf/**/*.py"), *ROOT.glob("examples/*/README.md")]]
    return sorted({command for text in texts for command in re.findall(r"`(pip install [^`]+)`", text)})


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_whatever_is_said_to_be_installed(checkout):
    mentioned = find_mentioned()
    assert len(mentioned) > 5
    for command in ["pip install --quiet .", *mentioned]:
        run(command, "", {}, checkout, command)
    imports = "; ".join(f"import {name}" for name in EXTRAS)
    run(f"cd /; python -c '{imports}; from kopf.testing import Sandbox'", "", {}, checkout, "after all of them")


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", IMAGES, ids=lambda page: page.name)
def test_the_documented_image_runs_the_operator(page, checkout, tmp_path_factory):
    [(dockerfile, task)] = [
        (block, yaml.safe_load(instruction.text)) for block, instruction in page.thorough if block.kind == "dockerfile"
    ]
    files = {block.caption: block.text for block in page.files}
    deployment = yaml.safe_load(files["deployment.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    probe = pod["containers"][0]["livenessProbe"]["httpGet"]
    builds = [command for block, _ in page.thorough for command, _ in commands(block) if command.startswith("docker")]
    assert builds == [f"docker build -t {pod['containers'][0]['image']} ."]

    (checkout / "requirements.txt").write_text(FILES["requirements.txt"].replace("VERSION", kopf.__version__))
    run(task["before"], "", task, checkout, dockerfile.place)
    image = Image(dockerfile.text, checkout, tmp_path_factory.mktemp("image"))
    subprocess.run(["python", "-c", "import cryptography, uvloop"], env=image.environment, check=True)
    port = free_port()
    command = [word.replace(f":{probe['port']}/", f":{port}/") for word in image.command]
    with Sandbox(crds=ROOT / "examples" / "crd.yaml", rbac=True) as sandbox:
        sandbox.apply(files["rbac.yaml"])
        sandbox.apply(ROOT / "examples" / "obj.yaml")
        user = f"system:serviceaccount:{deployment['metadata']['namespace']}:{pod['serviceAccountName']}"
        variables = image.environment | {"KUBECONFIG": str(sandbox.kubeconfig_for(user))}
        log = checkout / "operator.log"
        with log.open("wb") as output:
            operator = subprocess.Popen(command, cwd=image.root, env=variables, stdout=output, stderr=output)
        try:
            sandbox.wait_for("kex", "kopf-example-1", lambda body: "create_fn" in body.get("status", {}), timeout=60)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['path']}") as answer:
                assert answer.status == 200
        except BaseException as error:
            error.add_note(log.read_text())
            raise
        finally:
            operator.terminate()
            assert operator.wait(30) == 0, log.read_text()


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", COMPILED, ids=lambda page: page.name)
def test_go_is_compiled(page, tmp_path):
    if shutil.which("go") is None:
        pytest.skip("there is no Go")
    shutil.copytree(ROOT / "tests" / "docs" / "controller", tmp_path, dirs_exist_ok=True)
    for block, around in page.compiled:
        folder = tmp_path / f"line{block.line}"
        folder.mkdir()
        head, tail = re.split(r"^\s*\.\.\.\n", around.text + "\n", maxsplit=1, flags=re.MULTILINE)
        folder.joinpath("main.go").write_text(f"{head}\n//line {block.page}:{block.line}\n{block.text}{tail}")
    process = subprocess.run(["go", "vet", "./..."], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_what_is_said_to_be_installed_has_names():
    assert all(re.search(r" '?[a-z.][^ ]*$", command) for command in find_mentioned()), find_mentioned()


def test_they_are_run_in_the_continuous_integration():
    assert "tests/docs/test_thorough.py" in CI and "--thorough" in CI
