"""Finding keys and tokens in what tools and callers say, before it enters the audit.

What keys and tokens look like is detect-secrets' knowledge, which somebody keeps up to date. Used of it are the
detectors that know a shape (those of providers, credentials in URLs) and the one that knows names (`password: …`). Not
used are those that measure randomness: an audit is full of digests and ids. A match is replaced whole, since what a
detector calls the secret may be a part of it. Nothing is ever verified, which would send it to a provider.

A private key is many lines, a JSON Web Token has a signature, and an HTTP header has a scheme before its credentials:
for these, of which detect-secrets names the beginning, the rules are here.

Most texts hold nothing that any rule could match. One look says so, in microseconds, and only the others are searched;
detect-secrets, which takes a tenth of a second to load, is loaded for the first of them.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from importlib import import_module
from typing import Any, Final

from ztrio.redaction import REDACTED

__all__ = ["load_soon", "redact"]

_SHAPES: Final = (
    "artifactory.ArtifactoryDetector",
    "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector",
    "cloudant.CloudantDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector",
    "ibm_cloud_iam.IbmCloudIamDetector",
    "ibm_cos_hmac.IbmCosHmacDetector",
    "jwt.JwtTokenDetector",
    "mailchimp.MailchimpDetector",
    "npm.NpmDetector",
    "openai.OpenAIDetector",
    "private_key.PrivateKeyDetector",
    "pypi_token.PypiTokenDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "softlayer.SoftlayerDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)

_OWN: Final = (
    # A private key to its end, or to the end of the text when that was cut off.
    re.compile(
        r"(?:-+ ?)?BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY"
        r".*?(?:END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?(?: ?-+)?|\Z)",
        re.DOTALL,
    ),
    re.compile(r"PuTTY-User-Key-File-\d.*", re.DOTALL),
    re.compile(r"eyJ[\w=-]{4,}\.[\w=-]{4,}(?:\.[\w.+/=-]*)?"),
    # A header, an assignment or a member of an object; what is kept of it is the name.
    re.compile(r"(?i)((?:authorization|cookie|passphrase|credentials?)['\"]*\s*[:=]\s*['\"]?)[^\s'\"][^\n'\"]*"),
    re.compile(r"(?i)(token['\"]*\s*[:=]\s*['\"]?)[^\s'\",;&]{6,}"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/-]{8,}=*"),
)

# What every rule, here and there, has somewhere in its matches: a name, a scheme, a beginning, or a long word. A
# message that has none of it, as nearly all of our own, cannot hold what a rule would find.
_WORDS: Final = (
    *("key", "pass", "pwd", "pw", "secret", "contrase", "token", "auth", "bearer", "basic", "cookie", "credential"),
    *("://", "private", "putty", "akc", "eyj", "xox"),
)
_LONG: Final = re.compile(r"AP[\dA-F]\w|[\w+/=.:~-]{16}")
_NAMES: Final = re.compile(r"(?i:key|pass|pwd|secret|contrase)")

_MAX_KEYWORDS: Final = 8  # secrets by name in one line that are looked for


def redact(text: str) -> str:
    """The text with every secret that is found replaced by `[redacted]`. A `ztrio.redaction.Redactor`."""
    if not _suspicious(text):
        return text
    for rule in _OWN:
        text = rule.sub(rf"\1{REDACTED}" if rule.groups else REDACTED, text)
    for rule in _rules():
        text = rule.sub(REDACTED, text)
    if _NAMES.search(text) is not None:
        text = "\n".join(_without_named(line) for line in text.split("\n"))
    return text


def _suspicious(text: str) -> bool:
    folded = text.casefold()
    return any(word in folded for word in _WORDS) or _LONG.search(text) is not None


def load_soon() -> None:
    """Load detect-secrets in a thread, so that the first text that needs it does not wait for that."""
    threading.Thread(target=_rules, name="load detect-secrets", daemon=True).start()


@cache
def _rules() -> tuple[re.Pattern[str], ...]:
    return tuple(rule for name in _SHAPES for rule in _detector(name).denylist)


@cache
def _keywords() -> Any:
    return _detector("keyword.KeywordDetector")


@cache
def _configuration() -> Any:
    # Where values may stand without quotes: `password: hunter2`, as people and programs write it in messages.
    return import_module("detect_secrets.plugins.keyword").CONFIG_DENYLIST_REGEX_TO_GROUP


def _detector(name: str) -> Any:
    module, _, kind = name.partition(".")
    return getattr(import_module(f"detect_secrets.plugins.{module}"), kind)()


def _without_named(line: str) -> str:
    """The line without the values that stand behind the name of a secret."""
    if _NAMES.search(line) is None:
        return line
    for _ in range(_MAX_KEYWORDS):
        found = {value for value in _keywords().analyze_string(line, _configuration()) if value.strip()}
        if not found:
            return line
        for value in sorted(found, key=len, reverse=True):
            # A short value is replaced where it is a word, lest a one-letter password wipes out that letter.
            whole = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
            line = whole.sub(REDACTED, line) if whole.search(line) else line.replace(value, REDACTED)
    return REDACTED  # so many that it is no message
