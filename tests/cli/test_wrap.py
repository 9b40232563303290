"""`ztrio wrap`: what it takes, what it hands to the gateway, what it says and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import structlog
import typer

from tests.cli.conftest import Command
from ztrio.errors import StoreUnavailable
from ztrio.pending.reasons import Mode
from ztrio_cli.app import app
from ztrio_cli.instances import take
from ztrio_cli.wrap_settings import LIMITS, SETTINGS
from ztrio_mcp.gateway.settings import GatewaySettings, ToolLimits

ROOT = Path(__file__).parents[2]
SERVER = ("npx", "-y", "some-server", "--", "--name", "theirs", "--token", "S3CR3T", "--json")


@attrs.define
class Gateway:
    """A gateway that is none: it notes what it is given."""

    ends: int | Exception = 0
    command: tuple[str, ...] = ()
    settings: GatewaySettings | None = None
    options: dict[str, Any] = attrs.field(factory=dict)
    logged: list[Any] = attrs.field(factory=list)

    def run_wrap(self, command: tuple[str, ...], settings: GatewaySettings, **options: Any) -> int:
        """As the real one has it."""
        self.command, self.settings, self.options = command, settings, options
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ztrio" / "wrap"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """Stands where the gateway is."""
    made = Gateway()
    monkeypatch.setattr("ztrio_cli.wrap_run.configure_logging", lambda *_args, **_options: None)
    monkeypatch.setattr("ztrio_cli.wrap_run.load_soon", lambda: None)
    module: Any = ModuleType("ztrio_mcp.gateway.running")
    module.run_wrap = made.run_wrap
    monkeypatch.setitem(sys.modules, "ztrio_mcp.gateway.running", module)
    with structlog.testing.capture_logs() as made.logged:
        yield made


def options_of_wrap() -> dict[str, Any]:
    """Option → parameter of the command."""
    command: Any = typer.main.get_command(app)
    return {param.opts[0].removeprefix("--"): param for param in command.commands["wrap"].params}


def test_every_setting_is_an_option() -> None:
    """Each key of a file is an option of the same name."""
    assert {*LIMITS, *SETTINGS} | {"name", "config", "log-level", "json", "help"} == {*options_of_wrap(), "help"}


def test_the_defaults_that_help_names_are_the_defaults() -> None:
    """`--help` promises what happens when an option is not given."""
    meant = GatewaySettings(name="x")
    fields = attrs.asdict(meant, recurse=False) | attrs.asdict(meant.limits)
    for key, field in (LIMITS | SETTINGS).items():
        said = re.search(r"\[default: (.*)\]$", options_of_wrap()[key].help)
        value = fields[field]
        shown = "no" if value is False else f"{value:g}" if isinstance(value, int | float) else value
        if key == "max-timeout":
            shown = "--timeout, or 10 idle timeouts"
        assert (key, shown) == (key, None if said is None else said[1])


def test_the_documented_options_are_the_options() -> None:
    """docs/gateway.md has one row for each option of `ztrio wrap`, with its default, and one for no other."""
    rows = re.findall(
        r"^\| `--([a-z-]+)(?: [^`]*)?` \| (\S.*?) \|", (ROOT / "docs/gateway.md").read_text(), re.MULTILINE
    )
    expected = {}
    for name, param in options_of_wrap().items():
        said = re.search(r"\[default: (.*)\]$", param.help)
        expected[name] = "\N{EN DASH}" if said is None else said[1]
    assert sorted(expected.items()) == sorted((name, default.replace("`", "")) for name, default in rows)


def test_everything_behind_the_dashes_is_the_servers(cli: Command, gateway: Gateway, state: Path) -> None:
    """The command arrives as it was typed, more dashes and options that look like ours included."""
    ran = cli("wrap", "--gate", "enforce", "--timeout", "5", "--late-results", "--", *SERVER)
    assert (0, "", SERVER) == (ran.status, ran.out, gateway.command)
    assert gateway.settings is not None
    name = gateway.settings.name
    assert gateway.settings == GatewaySettings(
        name=name, gate=Mode.ENFORCE, limits=ToolLimits(timeout=5.0), late_results=True
    )
    assert (True, state / name) == (name.startswith("npx-"), gateway.options["instance"])
    assert state / name / "sent.journal" == gateway.options["journal"]


def test_options_win_over_the_file(cli: Command, gateway: Gateway, tmp_path: Path) -> None:
    """A file is read, and what is typed beside it is meant."""
    file = tmp_path / "wrap.toml"
    file.write_text('gate = "enforce"\nlate-results = true\nqueue = 7\n')
    assert 0 == cli("wrap", "--config", file, "--no-late-results", "--name", "mail", "--", "x").status
    assert GatewaySettings(name="mail", gate=Mode.ENFORCE, queue=7) == gateway.settings


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["wrap"], "USAGE: give the server's command after --, as in: ztrio wrap -- npx -y some-server"),
        (["wrap", "--"], "USAGE: give the server's command after --"),
        (["wrap", "--", ""], "USAGE: give the server's command after --"),
        (["wrap", "npx", "server"], "USAGE: Got unexpected extra argument"),
        (["wrap", "--late-results", "true", "--", "npx"], "USAGE: Got unexpected extra argument"),
        (["wrap", "--gate", "on", "--", "npx"], "USAGE: Invalid value for '--gate'"),
        (["wrap", "--timeout", "soon", "--", "npx"], "USAGE: Invalid value for '--timeout'"),
        (["wrap", "--timeout", "nan", "--", "npx"], "USAGE: --timeout: nan is no time"),
        (["wrap", "--queue", "-1", "--", "npx"], "USAGE: --queue: -1 is no whole number"),
        (["wrap", "--max-timeout", "5", "--timeout", "6", "--", "npx"], "USAGE: --timeout: 6 s is more than"),
        (["wrap", "--name", "a/b", "--", "npx"], "USAGE: --name 'a/b'"),
        (["wrap", "--config", "/none.toml", "--", "npx"], "CONFIG_INVALID: /none.toml cannot be read"),
        (["wrap", "--nonsense", "--", "npx"], "USAGE: No such option"),
    ],
)
def test_a_wrong_command_line_starts_nothing(
    cli: Command, gateway: Gateway, state: Path, words: list[str], why: str
) -> None:
    """What cannot be meant ends with 2 and one line on stderr; nothing is made, nothing goes to the client."""
    ran = cli(*words)
    assert (2, "", True) == (ran.status, ran.out, ran.err.startswith(f"error: {why}")), ran.err
    assert ((), False) == (gateway.command, state.exists())


def test_there_is_no_such_level(cli: Command) -> None:
    """A level of the log that does not exist is a usage error."""
    ran = cli("wrap", "--log-level", "loud", "--", "npx")
    assert (2, True) == (ran.status, "debug, info, warning, error" in ran.err)


def test_help_teaches(cli: Command) -> None:
    """`--help` shows a client's configuration that is JSON, the meaning of -- and the exit statuses."""
    shown = cli("wrap", "--help").out
    [example] = re.findall(r"^ +(\{\"mcpServers\".*?\}\}\})$", shown, re.MULTILINE | re.DOTALL)
    words = json.loads(example)["mcpServers"]["mail"]
    assert ("ztrio", "wrap", "--") == (words["command"], words["args"][0], words["args"][-4])
    assert "Everything behind -- is the server's command" in shown
    assert "128 + signal" in shown


@pytest.mark.parametrize("status", [0, 1, 130, 143])
def test_the_gateways_end_is_the_commands(cli: Command, gateway: Gateway, status: int) -> None:
    """The exit status is the gateway's."""
    gateway.ends = status
    assert status == cli("wrap", "--", "npx").status


def test_a_failure_is_told_on_stderr(cli: Command, gateway: Gateway) -> None:
    """Text or JSON, an error never goes to the client as a frame."""
    gateway.ends = StoreUnavailable("The disk is full.")
    for words, expected in (
        ([], "error: STORE_UNAVAILABLE: The disk is full."),
        (["--json"], '{"error": {"code": "STORE_UNAVAILABLE", "message": "The disk is full."'),
    ):
        ran = cli("wrap", *words, "--", "npx")
        assert (1, "", True) == (ran.status, ran.out, ran.err.splitlines()[-1].startswith(expected)), ran.err


def test_a_name_is_one_gateway(cli: Command, gateway: Gateway, tmp_path: Path) -> None:
    """A second process under a name is refused with the pid of the first, and its server is not started."""
    with take("mail", ["another"], tmp_path):
        ran = cli("wrap", "--name", "mail", "--", "npx")
    assert (1, ()) == (ran.status, gateway.command)
    assert ran.err.startswith("error: GATEWAY_BUSY: This process itself uses the gateway 'mail'"), ran.err


@pytest.mark.case("R56")
def test_arguments_are_not_logged(cli: Command, gateway: Gateway, state: Path) -> None:
    """A secret among the server's arguments is neither in the log nor in the state."""
    ran = cli("wrap", "--", *SERVER)
    assert ["wrapping", "ended"] == [entry["event"] for entry in gateway.logged]
    assert "S3CR3T" not in f"{gateway.logged}{ran.err}"
    assert not [path for path in state.rglob("*") if path.is_file() and b"S3CR3T" in path.read_bytes()]


# What runs in a process of its own, with a gateway that says what it finds.
PROGRAM = """if True:
    import json, os, sys, types
    def run_wrap(command, settings, **options):
        {body}
        return 7
    module = types.ModuleType("ztrio_mcp.gateway.running")
    module.run_wrap = run_wrap
    sys.modules["ztrio_mcp.gateway.running"] = module
    from ztrio_cli.main import main
    sys.exit(main(sys.argv[1:]))"""


def process(body: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command with a gateway of this body, in a process of its own."""
    words = [sys.executable, "-c", PROGRAM.format(body=body), "wrap", "--", "npx"]
    return subprocess.run(words, timeout=60, check=False, **options)


def test_nothing_is_imported_that_a_gateway_does_not_need() -> None:
    """Until the gateway runs, no protocol library, no second event loop and no database are loaded."""
    foreign = {"mcp", "mcp_types", "anyio", "sqlalchemy", "alembic"}
    body = f"os.write(1, json.dumps(sorted({foreign} & {{*sys.modules}})).encode())"
    done = process(body, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert (7, []) == (done.returncode, json.loads(done.stdout))


def test_environment_and_directory_are_passed_on(tmp_path: Path) -> None:
    """The server starts where the client is, with what the client has set."""
    body = 'os.write(1, json.dumps([os.getcwd(), os.environ["ZT_THEIRS"]]).encode())'
    environment = {**os.environ, "ZT_THEIRS": "yes"}
    done = process(body, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    assert [str(tmp_path), "yes"] == json.loads(done.stdout)


def _closing(*fds: int) -> Callable[[], None]:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    return close


@pytest.mark.parametrize("fds", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_descriptors_are_filled(tmp_path: Path, fds: tuple[int, ...]) -> None:
    """Where stdin, stdout or stderr is closed the null device is, so no file of ours gets the number."""
    note = tmp_path / "note"
    body = f"open({str(note)!r}, 'w').write(json.dumps([os.fstat(fd).st_rdev for fd in (0, 1, 2)]))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = process(body, preexec_fn=_closing(*fds), **{k: v for i, (k, v) in enumerate(pipes.items()) if i not in fds})
    assert 7 == done.returncode
    null = os.stat(os.devnull).st_rdev
    assert [fd in fds for fd in (0, 1, 2)] == [device == null for device in json.loads(note.read_text())]
