"""Which texts the redactor of the commands takes for secrets, and what it costs."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio.redaction import MAX_TEXT, redacted_values
from ztrio_cli.redaction import _rules, load_soon, redact

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"


@pytest.mark.case("R56")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Wrong password: hunter2", "Wrong password: [redacted]"),
        ('login(password="a b c", user="ann")', 'login(password="[redacted]", user="ann")'),
        (
            '{"headers": {"Authorization": "S3CR3T"}, "apiKey": "S3CR3T2", "n": 1}',
            '{"headers": {"Authorization": "[redacted]"}, "apiKey": "[redacted]", "n": 1}',
        ),
        ("Authorization: Bearer abc.def-ghi", "Authorization: [redacted]"),
        ("curl -H 'x: Bearer abcdefgh12'", "curl -H 'x: Bearer [redacted]'"),
        ("Cookie: sid=1; b=2\nHost: x", "Cookie: [redacted]\nHost: x"),
        ("GITHUB_TOKEN=abcdefgh1234 next", "GITHUB_TOKEN=[redacted] next"),
        ('"passphrase": "correct horse battery"', '"passphrase": "[redacted]"'),
        ("GET /x?access_token=abcdef123&page=2", "GET /x?access_token=[redacted]&page=2"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY=[redacted]"),
        ("key AKIAIOSFODNN7EXAMPLE is unknown", "key [redacted] is unknown"),
        ("remote: ghp_" + "a1B2" * 9, "remote: [redacted]"),
        ("glpat-a1b2c3d4e5f6g7h8i9j0 expired", "[redacted] expired"),
        ("sk_live_" + "a1" * 12, "[redacted]"),
        ("sk-" + "a" * 20 + "T3BlbkFJ" + "b" * 20, "[redacted]"),
        ("xoxb-123456-654321-abcdef", "[redacted]"),
        ("postgres://ann:pa55w@db:5432/x", "postgres[redacted]db:5432/x"),
        (f"token {JWT}.", "token [redacted]"),
        (f"read {KEY} from disk", "read [redacted] from disk"),
        (KEY[:60], "[redacted]"),
        ("PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\nAAAA", "[redacted]"),
        ("password=a; secret=b\npassword=c", "password=[redacted]\npassword=[redacted]"),
    ],
)
def test_secrets(text: str, clean: str) -> None:
    """Keys, tokens and whatever stands under the name of a secret are gone; what says where they were stays."""
    assert clean == redact(text)
    assert clean == redact(clean)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "build ran longer than 30 s and was stopped. Everything it did was discarded; allow it more time.",
        "OUTPUT_MISSING: /srv/site/out/index.html was not written",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "job_01hzy5t3m8k2p4q6r8s0v2w4x6 st_abcdefghijklmnopqrstuvwxyz",
        "KeyError: 'password'",
        "ModuleNotFoundError: No module named 'secrets_of_mine'",
        "unexpected token: '}' at 3; max tokens: 512000",
        "Wrong password for user bob",
        "é漢𝄞 \ud800",
    ],
)
def test_no_secrets(text: str) -> None:
    """Messages, paths, digests and ids stay as they are, and so does talk of secrets."""
    assert text == redact(text)


def test_names_of_arguments() -> None:
    """Arguments are hidden by their names."""
    given_ = {"apiKey": "x", "Authorization": "y", "client_secret": {"value": 7}, "auth_token": "t", "title": "z"}
    hidden = dict.fromkeys(("apiKey", "Authorization", "auth_token"), "[redacted]")
    assert {**hidden, "client_secret": {"value": "[redacted]"}, "title": "z"} == redacted_values(redact, given_)


# A text of each shape that detect-secrets knows, made from its own rules where they are plain.
@given(st.sampled_from(_rules()).flatmap(st.from_regex))
def test_whatever_a_rule_finds_is_looked_for(text: str) -> None:
    """The first look, which spares most texts the rules, lets pass every text that a rule would match."""
    text = text.strip("\n")
    found = [match.group() for rule in _rules() for match in rule.finditer(text)]
    clean = redact(text)
    assert not any(match in clean for match in found if len(match.strip()) > len("[redacted]"))


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "password=", "'", '"a" ', "key:", "aws key ", "eyJ.", "BEGIN ", "bearer ", "token", "secret\n", "://a:"),
        *("sk-", "cookie=", 'password = "', "'a' == secret ", " ", "http://", "://", "aws", "pwd'", "auth_token"),
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    """Whatever a tool says, no rule goes wild over it: the event loop waits for this."""
    text = (piece * MAX_TEXT)[:MAX_TEXT]
    redact(text)
    began = time.process_time()
    redact(text)
    assert 0.2 > time.process_time() - began


def test_what_is_not_needed_is_not_loaded() -> None:
    """detect-secrets is loaded for the first text that looks like one, or in a thread when that was asked for."""
    code = (
        "import sys; from ztrio_cli.redaction import redact, load_soon; redact('It ran too long.');"
        "print('detect_secrets' in sys.modules); redact('password: x'); print('detect_secrets' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False\nTrue\n" == ran.stdout
    load_soon()
    assert "a [redacted]" == redact("a AKIAIOSFODNN7EXAMPLE")
