"""Links, anchors, files, modules and names in Markdown lead to something."""

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/gpldla/gpldla"
# Absolute addresses of files of this repository, which also work on PyPI.
PREFIXES = (
    f"{REPOSITORY}/blob/main/",
    f"{REPOSITORY}/tree/main/",
    "https://raw.githubusercontent.com/gpldla/gpldla/main/",
)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md"))
)
MADE_BY_THE_READER = {  # in examples of what to add
    "src/gpldla/heads/NAME.py",
    "src/gpldla/heads/cosine_centroid.py",
    "src/gpldla/heads/nearest_example.py",
    "src/gpldla/backbones/NAME.py",
    "src/gpldla/backbones/two_blocks.py",
    "src/gpldla/data/sets/NAME.py",
    "src/gpldla/data/sets/dots.py",
    "src/gpldla/cli/NAME.py",
    "src/gpldla/cli/heads.py",
    "tests/heads/test_cosine_centroid.py",
    "docs/methods/NAME.md",
}
every_page = pytest.mark.parametrize("page", PAGES)


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", without_code(text))


def anchors(path):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)", without_code(path.read_text("utf-8")), re.M):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def local(page, target):
    """Return the file that a link leads to, or None if it leads elsewhere."""
    for prefix in PREFIXES:
        if target.startswith(prefix):
            return ROOT / target.removeprefix(prefix)
    return None if ":" in target else (ROOT / page).parent / target


@every_page
def test_links_lead_to_files_and_anchors_to_headings(page):
    for link in links((ROOT / page).read_text("utf-8")):
        target, _, anchor = link.partition("#")
        path = ROOT / page if not target else local(page, target)
        if path is None:
            continue
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path), link


def test_links_of_the_readme_work_on_pypi():
    found = links((ROOT / "README.md").read_text("utf-8"))
    assert len(found) > 15
    assert [link for link in found if not link.startswith(("https://", "#"))] == []


@every_page
def test_folders_and_files_are_called_what_they_are(page):
    """GitHub shows files below blob and folders below tree, and serves pictures below raw."""
    blob, tree, raw = PREFIXES
    for link in links((ROOT / page).read_text("utf-8")):
        target = link.partition("#")[0]
        if target.startswith(blob):
            assert local(page, target).is_file(), link
        if target.startswith(tree):
            assert local(page, target).is_dir(), link
        if target.startswith(raw):
            assert local(page, target).suffix == ".png", link


@every_page
def test_paths_that_are_named_exist(page):
    text = (ROOT / page).read_text("utf-8")
    pattern = r"`((?:src|tests|docs|results|benchmarks|examples|\.github)/[\w./+-]*)`"
    for named in {*re.findall(pattern, text)} - MADE_BY_THE_READER:
        if page != "CHANGELOG.md":  # which names what there was before
            assert (ROOT / named).exists(), named


@every_page
def test_modules_and_names_that_are_named_exist(page):
    text = (ROOT / page).read_text("utf-8")
    code = {*re.findall(r"`(gpldla(?:\.\w+)+)`", text)}
    code |= {*re.findall(r"^\s*(?:from|import) (gpldla(?:\.\w+)+)", text, re.M)}
    for named in code - {"gpldla.heads", "gpldla.backbones", "gpldla.datasets", "gpldla.testing"}:
        if page == "CHANGELOG.md":
            continue
        try:
            if find_spec(named) is not None:
                continue
        except ModuleNotFoundError:
            pass  # a name in a module, then
        module, _, name = named.rpartition(".")
        assert hasattr(import_module(module), name), named


def test_modules_that_the_changelog_leads_to_exist():
    table = re.search(
        r"^### Moved modules\n(.*?)^##", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M | re.S
    )[1]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 15
    for before, now in rows:
        for named in re.findall(r"`(gpldla[\w.]*?)(?:\.\*)?`", now):
            assert find_spec(named) is not None or (ROOT / "src" / named.replace(".", "/")).is_dir(), named
        if now.count("`") == 2 and now.strip(" `").endswith(".*"):  # the same name in another folder
            for name in re.findall(r"`(?:gpldla\.(?:\w+\.)?)?(\w+)`", before):
                moved = ROOT / "src" / now.strip(" `").removesuffix(".*").replace(".", "/") / name
                assert moved.with_suffix(".py").exists() or moved.is_dir(), moved


def test_the_addresses_of_the_project_are_those_of_the_repository():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert {*urls} == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    site = re.search(r"^site_url: (.+)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert urls.pop("Documentation") == site[1]
    for url in urls.values():
        assert url == REPOSITORY or url.startswith(f"{REPOSITORY}/")
        path = local("README.md", url)
        assert path is None or path.exists(), url
    assert f"repository-code: {REPOSITORY}" in (ROOT / "CITATION.cff").read_text("utf-8")
