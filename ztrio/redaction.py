"""Keeping secrets out of the audit: where text of tools and callers enters an event, it passes a redactor first.

What a secret looks like is no knowledge of the core: a `Redactor` is given to whoever opens a supervisor. What is
promised here holds whatever it does: text has a bound, a redactor that fails withholds the text instead of letting it
through, and a value that stands under the name of a secret is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["MAX_TEXT", "REDACTED", "Redactor", "redacted_text", "redacted_values"]

Redactor = Callable[[str], str]
"""Returns the text with every secret in it replaced by `REDACTED`. Called on the event loop, for `MAX_TEXT` characters
at the most, so it must be quick."""

REDACTED: Final = "[redacted]"
"""What stands in an event where a secret stood."""

MAX_TEXT: Final = 2048
"""Characters of one text that an event holds; what is beyond is left out, since nobody would look for secrets in it."""

_CUT: Final = 256  # characters before the bound in which a word is looked for that the bound cuts in two


def redacted_text(redact: Redactor | None, text: str) -> str:
    """The text as an event may hold it.

    Args:
        redact: Replaces secrets; None where nobody does.
        text: What a tool or a caller said.
    """
    left_out = ""
    if len(text) > MAX_TEXT:
        kept = _before_the_bound(text)
        left_out = f" [{len(text) - len(kept)} more characters]"
        text = kept
    if redact is not None:
        try:
            text = redact(text)
        except Exception as error:  # noqa: BLE001 - whatever it is, the text was not looked through to its end
            text = f"[withheld: the redactor failed with {type(error).__name__}]"
    return text + left_out


def redacted_values(redact: Redactor, value: Any, *, secret: bool = False) -> Any:
    """JSON-like data as an event may hold it.

    Args:
        redact: Replaces secrets.
        value: The data.
        secret: Whether it stands under the name of a secret, such as `password`.
    """
    if isinstance(value, str):
        return REDACTED if secret else redacted_text(redact, value)
    if isinstance(value, Mapping):
        return {
            redacted_text(redact, str(name)): redacted_values(
                redact, inner, secret=secret or _names_a_secret(redact, str(name))
            )
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted_values(redact, inner, secret=secret) for inner in value]
    return REDACTED if secret and value is not None and not isinstance(value, bool) else value


def _names_a_secret(redact: Redactor, name: str) -> bool:
    shown = f'{name[:_CUT]}: "x1y2z3"'
    return redacted_text(redact, shown) != shown


def _before_the_bound(text: str) -> str:
    """As much as is kept, without the beginning of a word: half a token is not recognized as one."""
    kept = text[:MAX_TEXT]
    if not text[MAX_TEXT].isspace():
        whole = max(kept.rfind(blank) for blank in " \t\n")
        kept = kept[: max(whole, MAX_TEXT - _CUT)]
    return kept
