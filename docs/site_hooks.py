"""What the site changes of a page before it is rendered: links out of docs/ lead to the repository."""

import re
from typing import Any

REPOSITORY = "https://github.com/gpldla/gpldla/blob/main/"
OUTSIDE = re.compile(
    r"\]\((?:\.\./)+((?:src|results|tests|benchmarks|examples|pyproject\.toml|Dockerfile|compose\.yaml|README\.md|CONTRIBUTING\.md|CHANGELOG\.md)[^)]*)\)"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with such links as addresses."""
    return OUTSIDE.sub(rf"]({REPOSITORY}\1)", markdown)
