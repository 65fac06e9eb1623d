"""The files that belong to the project rather than to the package agree with each other."""

import re
import tomllib
from pathlib import Path

import gpldla

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def text(name):
    return (ROOT / name).read_text("utf-8")


def test_the_workflow_runs_the_two_commands_of_the_readme():
    commands = re.findall(r"- run: (.*)", text(".github/workflows/test.yml"))
    assert commands == re.findall(r"^    (make \w+)", text("README.md").split("## Two commands")[1], re.M)[:2]
    assert commands == ["make demo", "make test"]


def test_the_workflow_begins_with_the_oldest_python_that_is_allowed():
    versions = re.search(r"python: \[(.*)\]", text(".github/workflows/test.yml"))[1]
    assert re.findall(r'"([\d.]+)"', versions) == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_hooks_run_the_tools_of_make_lint():
    hooks = re.findall(r"entry: \.venv/bin/([\w-]+(?: check| format)?)", text(".pre-commit-config.yaml"))
    lint = re.search(r"^lint:.*?\n((?:\t.*\n)+)", text("Makefile"), re.M)[1]
    assert hooks == re.findall(r"\$\(BIN\)/([\w-]+(?: check| format)?)", lint)


def test_the_citation_is_of_this_version_and_under_the_licence():
    citation = text("CITATION.cff")
    assert f"\nversion: {gpldla.__version__}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    assert f"abstract: {PROJECT['description']}\n" in citation
    assert "\nrepository-code: https://github.com/gpldla/gpldla\n" in citation


def test_commit_and_size_rules_are_on_the_page_for_contributors():
    page = text("CONTRIBUTING.md")
    for rule in ("72 characters", "80 lines", "420 lines", "docs/architecture.md", "`results/`"):
        assert rule in page


def test_a_release_is_checked_built_and_signed_without_a_stored_key():
    workflow = text(".github/workflows/release.yml")
    assert re.findall(r"- run: (make [\w-]+)", workflow) == [
        "make test",
        "make browser-runtime",
        "make dist",
        "make lock",
    ]
    assert "secrets." not in workflow
    assert workflow.index("permissions:\n  contents: read") < workflow.index("jobs:")
    for target in ("browser-runtime", "dist", "lock"):
        assert re.search(rf"^{target}: .*##", text("Makefile"), re.M)
    assert re.search(
        rf"^## {re.escape(gpldla.__version__)} \(\d{{4}}-\d\d-\d\d\)$", text("CHANGELOG.md"), re.M
    )


def test_the_lock_has_every_extra_for_users():
    locked = set(re.search(r"^LOCKED := (.*)", text("Makefile"), re.M)[1].split())
    extras = set(PROJECT["optional-dependencies"])
    assert extras - locked == {"dev", "docs", "release", "scale", "trackers"}


def test_the_page_on_compatibility_has_the_lower_bounds():
    page = text("docs/compatibility.md")
    extras = PROJECT["optional-dependencies"].values()
    needs = [*PROJECT["dependencies"], *(need for extra in extras for need in extra)]
    bounds = dict(
        re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", need).groups()
        for need in needs
        if re.match(r"[\w.-]+(\[[\w,]+\])?>=", need)
    )
    rows = re.findall(
        r"^\| ([\w, -]+) \| ([\d., ]+) \|", page.split("## Lower bounds")[1].split("\n## ")[0], re.M
    )
    assert len(rows) == 8
    for names, versions in rows:
        for name, version in zip(names.split(", "), versions.split(", ")):
            assert bounds[name.lower()] == version
