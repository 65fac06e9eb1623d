"""Text of users for a terminal, which would obey the escape codes in it."""

# All control characters but tab and line feed: ESC and others move the cursor, change colours or titles.
_VISIBLE = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n"}


def visible(text: object) -> str:
    r"""Return a text with its control characters written out, such as ESC as \x1b."""
    return str(text).translate(_VISIBLE)
