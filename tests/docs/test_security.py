"""The page about security has all the permissions that tests/e2e/test_permissions.py has found to be enough."""

import re

import yaml
from snippets import ROOT, find_page, read_blocks

PAGE = find_page("security").read_text()
TRIED = (ROOT / "tests" / "e2e" / "test_permissions.py").read_text()


def test_what_is_tried_is_documented():
    rules = re.findall(r'rule\("[^"]*", f?"([^"]+)"((?:, "\w+")+)\)', TRIED)
    assert len(rules) > 6
    for resource, verbs in rules:
        words = {"guardeds": "the kind", "guardeds/status": "KIND/status"}.get(
            resource, resource.replace("{kind}", "validating")
        )
        row = ", ".join(f"``{verb}``" for verb in re.findall(r"\w+", verbs))
        if resource == "guardeds":
            assert "``list``, ``watch`` for the kind" in PAGE and "``patch`` for the kind" in PAGE
        else:
            assert f"{row} for ``{words}``" in PAGE, (row, words)


def test_the_smallest_role_is_what_is_tried():
    blocks = read_blocks(find_page("security"))
    [role] = [yaml.safe_load(block.text) for block in blocks if block.kind == "yaml"]
    assert [rule["verbs"] for rule in role["rules"]] == [["list", "watch", "patch"], ["create", "patch"]]
    assert 'rule("kopf.dev", "guardeds", "list", "watch", "patch")' in TRIED
    assert 'rule("", "events", "create", "patch")' in TRIED
