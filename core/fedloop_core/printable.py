"""Text of others as it may be shown and kept: one line that no terminal obeys, and no longer than asked."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, longest: int | None = None) -> str:
    r"""The text with every character that is not printed written as an escape, as in ``\x1b``.

    Those are control characters, line ends too, and what turns the direction of writing.

    Args:
        text: from anywhere.
        longest: characters that are kept, escapes counted as what they are written with; None: all.
    """
    if longest is not None:
        text = text[: longest + 1]  # an escape is never shorter than its character
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if longest is None or len(text) <= longest:
        return text
    return f"{text[: max(longest - 1, 0)]}…"
