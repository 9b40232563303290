"""What a command line and a file say about a gateway, and what they are told when it cannot be meant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ztrio.pending.reasons import Mode
from ztrio_cli.console import Complaint
from ztrio_cli.wrap_settings import LIMITS, SETTINGS, read_settings
from ztrio_mcp.gateway.settings import LONGEST, GatewaySettings, ToolLimits

WHOLE = """\
# what is set for everybody
gate = "enforce"
concurrency = 8
queue = 0
queue-timeout = 5
forward-cancel = "explicit"
on-expire = "hold"
on-reset = "open"
late-results = true
journal-sync = "power"
start-timeout = 20.5
health-interval = 0

[limits]
timeout = 120
idle-timeout = 30
max-timeout = 600

[tools."export board"]
timeout = 300
[tools.ping]
idle-timeout = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a file of settings is."""
    return tmp_path / "wrap.toml"


def read(file: Path, text: str | bytes, **options: Any) -> GatewaySettings:
    """The settings that a file and options give."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_settings({key.replace("_", "-"): value for key, value in options.items()}, file, name="mail")


def complaint(file: Path, text: str | bytes, **options: Any) -> str:
    """What is said against a file: code and message, the file's name left out of it."""
    with pytest.raises(Complaint) as refused:
        read(file, text, **options)
    assert 2 == refused.value.status
    return f"{refused.value.code} {refused.value.message.replace(str(file), 'FILE')}"


def test_every_key_is_a_setting_and_every_setting_has_a_key() -> None:
    """Whatever can be set about a gateway can be written in a file and on a command line."""
    assert {each.name for each in attrs.fields(ToolLimits)} == set(LIMITS.values())
    own = {each.name for each in attrs.fields(GatewaySettings)} - {"name", "limits", "tools"}
    assert own == set(SETTINGS.values())


def test_a_whole_file(file: Path) -> None:
    """Every key arrives where it belongs; a tool's table inherits what it does not say, zero stands for none."""
    found = read(file, WHOLE)
    assert found == GatewaySettings(
        name="mail",
        gate=Mode.ENFORCE,
        limits=ToolLimits(timeout=120, idle=30, ceiling=600),
        tools={
            "export board": ToolLimits(timeout=300, idle=30, ceiling=600),
            "ping": ToolLimits(timeout=120, idle=None, ceiling=600),
        },
        concurrency=8,
        queue=0,
        queue_timeout=5,
        forward_cancel="explicit",
        on_expire="hold",
        on_reset="open",
        late_results=True,
        journal_sync="power",
        start_timeout=20.5,
        health_interval=None,
    )
    assert found.tools["ping"] == found.limits_of("ping")
    assert found.limits == found.limits_of("another")


def test_options_win_over_the_file_and_a_tools_table_over_both(file: Path) -> None:
    """What is typed is meant more than what is written down, and what is said of one tool more than of all."""
    found = read(file, WHOLE, gate="off", timeout=10.0, late_results=False, concurrency=2)
    assert (Mode.OFF, False, 2) == (found.gate, found.late_results, found.concurrency)
    assert (10.0, 300) == (found.limits.timeout, found.limits_of("export board").timeout)
    assert read_settings({"gate": None}, None, name="mail") == GatewaySettings(name="mail") == read(file, "")


def test_limits_that_follow_from_each_other() -> None:
    """The ceiling is the timeout, ten idle times where progress counts; a lower one alone lowers the timeout."""

    def limits(**options: float) -> tuple[float, float | None, float]:
        found = read_settings({key.replace("_", "-"): value for key, value in options.items()}, None, name="x").limits
        return found.timeout, found.idle, found.ceiling

    assert (60.0, None, 60.0) == limits()
    assert (5.0, None, 5.0) == limits(timeout=5.0)
    assert (60.0, 30.0, 300.0) == limits(idle_timeout=30.0)
    assert (60.0, 1.0, 60.0) == limits(idle_timeout=1.0)
    assert (20.0, None, 20.0) == limits(max_timeout=20.0)
    assert (60.0, None, 90.0) == limits(max_timeout=90.0)
    assert (60.0, LONGEST / 2, LONGEST) == limits(idle_timeout=LONGEST / 2)


@pytest.mark.case("R68")
@pytest.mark.parametrize("text", [b"\xef\xbb\xbf" + WHOLE.encode(), WHOLE.replace("\n", "\r\n").encode()])
def test_what_editors_make_of_a_file_is_read(file: Path, text: bytes) -> None:
    """A byte order mark or CRLF changes nothing, and the file stays as it was."""
    assert read(file, WHOLE) == read(file, text)
    assert text == file.read_bytes()


@pytest.mark.case("R68")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gate = enforce", "CONFIG_INVALID FILE, line 1, column 8: Invalid value."),
        ("\ngate = 'off'\ngate = 'warn'\n", "CONFIG_INVALID FILE, line 3, column 14: Cannot overwrite a value."),
        ("[limits", "CONFIG_INVALID FILE, end of document: Expected ']' at the end of a table declaration."),
        (b"# \xff\ngate = 1", "CONFIG_INVALID FILE, line 1: this is not UTF-8."),
        (b"a = 'x'\n\xff\xfeg\0a\0", "CONFIG_INVALID FILE, line 2: this is not UTF-8."),
        ("x = " + "[" * 5000, "CONFIG_INVALID FILE: maximum recursion depth exceeded"),
        ("queue = " + "1" * 5000, "CONFIG_INVALID FILE: Exceeds the limit"),
        ("#" * (2**20 + 1), "CONFIG_INVALID FILE has more than 1048576 bytes."),
        ("\n\nidle_timeout = 3", "CONFIG_INVALID FILE, line 3: idle_timeout: idle-timeout belongs into [limits], or"),
        (
            "[limits]\nidle_timeout = 3",
            "CONFIG_INVALID FILE, line 2: limits.idle_timeout: there is no such setting; is",
        ),
        ("late_results = true", "CONFIG_INVALID FILE, line 1: late_results: there is no such setting; is late-results"),
        ("timeout = 3", "CONFIG_INVALID FILE, line 1: timeout: timeout belongs into [limits], or [tools.NAME]"),
        ("[limits]\ngate='off'", "CONFIG_INVALID FILE, line 2: limits.gate: gate belongs in front of all tables."),
        ("[mcpServers.mail]\ncommand='x'", "CONFIG_INVALID FILE, line 1: mcpServers: there is no such setting; there"),
        ("limits = 3", "CONFIG_INVALID FILE, line 1: limits: this has to be a table, [limits]."),
        ("[[tools]]", "CONFIG_INVALID FILE, line 1: tools: this has to be a table, [tools]."),
        ("[tools]\nexport = 3", "CONFIG_INVALID FILE, line 2: tools.export: this has to be a table, [tools.export]."),
        ("gate = 'on'", "CONFIG_INVALID FILE, line 1: gate: 'on' is not one of off, warn, enforce."),
        ("gate = true", "CONFIG_INVALID FILE, line 1: gate: True is not one of off, warn, enforce."),
        ("gate = []", "CONFIG_INVALID FILE, line 1: gate: [] is not one of off, warn, enforce."),
        ("late-results = 1", "CONFIG_INVALID FILE, line 1: late-results: 1 is neither true nor false."),
        ("queue = 2.0", "CONFIG_INVALID FILE, line 1: queue: 2.0 is no whole number from 0 to 65536."),
        ("concurrency = 0", "CONFIG_INVALID FILE, line 1: concurrency: 0 is no whole number from 1 to 65536."),
        ("health-interval = false", "CONFIG_INVALID FILE, line 1: health-interval: False is no time; give seconds"),
        ("[limits]\n\ntimeout = nan", "CONFIG_INVALID FILE, line 3: limits.timeout: nan is no time; give seconds"),
        ("[limits]\ntimeout = '5 s'", "CONFIG_INVALID FILE, line 2: limits.timeout: '5 s' is no time; give seconds"),
        ("[limits]\ntimeout = 0", "CONFIG_INVALID FILE, line 2: limits.timeout: 0 is no time; give seconds"),
        (
            "limits = {timeout = 90, max-timeout = 30}",
            "CONFIG_INVALID FILE, line 1: limits.timeout: 90 s is more than the ceiling of 30 s.",
        ),
        (
            "[tools.a.b]\ntimeout = 3",
            "CONFIG_INVALID FILE, line 1: tools.a.b: there is no such setting; there are idle-timeout",
        ),
    ],
)
def test_a_mistake_is_named_by_line_and_key(file: Path, text: str | bytes, expected: str) -> None:
    """Whatever is wrong stops the start, in one sentence that says where and what."""
    assert complaint(file, text).startswith(expected)


def test_a_mistake_is_laid_to_where_it_was_made(file: Path) -> None:
    """An option that does not fit the file is named where it clashes, an option alone as the option."""
    assert "CONFIG_INVALID FILE, line 2: tools.export.timeout: 300 s is more than the ceiling of 100 s." == complaint(
        file, "[tools.export]\ntimeout = 300", max_timeout=100.0
    )
    assert "USAGE --timeout: 90 s is more than the ceiling of 30 s." == complaint(
        file, "[limits]\nmax-timeout = 30", timeout=90.0
    )
    assert "USAGE --queue: -1 is no whole number from 0 to 65536." == complaint(file, "", queue=-1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, 3.2e7])
def test_times_are_times(value: float) -> None:
    """What no clock can wait for is refused by the name of its option."""
    for key in ("timeout", "max-timeout", "queue-timeout", "start-timeout"):
        with pytest.raises(Complaint, match=f"^--{key}: {value!r} is no time") as refused:
            read_settings({key: value}, None, name="x")
        assert "USAGE" == refused.value.code


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No file, a directory: the sentence says which."""
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(Complaint, match=f"{path} cannot be read: {why}") as refused:
            read_settings({}, path, name="x")
        assert ("CONFIG_INVALID", 2) == (refused.value.code, refused.value.status)


VALUES = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.none())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*LIMITS, *SETTINGS]), VALUES))
def test_no_value_gets_past_or_breaks_the_check(options: dict[str, Any]) -> None:
    """Whatever values come, they are settings that hold their bounds, or a complaint about one option."""
    try:
        found = read_settings(options, None, name="x")
    except Complaint as refused:
        assert refused.code == "USAGE"
        assert refused.message.removeprefix("--").partition(":")[0] in options
    else:
        assert 0 < found.limits.timeout <= found.limits.ceiling <= LONGEST
        assert 1 <= found.concurrency
