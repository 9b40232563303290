"""Where gateways keep their state: one process each, told apart, found again, private."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ztrio.errors import AlreadyInUse, StoreUnavailable
from ztrio.management import place
from ztrio_cli.console import Complaint
from ztrio_cli.instances import Instance, find, root, running, take

COMMAND = ("/usr/bin/npx", "-y", "some-server", "--token", "S3CR3T")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ztrio" / "wrap"


def answering(instance: Instance) -> ExitStack:
    """A socket where operators look for the instance's."""
    stack = ExitStack()
    bound, path = place.bind(instance.folder)
    stack.callback(place.remove, path)
    stack.enter_context(bound)
    bound.listen(1)
    return stack


def test_the_same_command_finds_its_state_again(state: Path, tmp_path: Path) -> None:
    """Without a name, command and directory make one; another word, order or directory makes another."""
    with take(None, COMMAND, tmp_path) as one:
        assert (one.name[:4], one.folder) == ("npx-", state / one.name)
    with take(None, COMMAND, tmp_path) as again:
        assert one == again
    others = [
        (COMMAND[:-1], tmp_path),
        ((*COMMAND[:-2], *reversed(COMMAND[-2:])), tmp_path),
        ((*COMMAND[:3], "".join(COMMAND[3:])), tmp_path),
        (COMMAND, tmp_path.parent),
    ]
    names = {one.name}
    for argv, cwd in others:
        with take(None, argv, cwd) as other:
            names.add(other.name)
    assert 1 + len(others) == len(names)


def test_a_program_of_any_name_gives_a_directory(state: Path, tmp_path: Path) -> None:
    """What a name cannot have is left out of it, and the digest still tells commands apart."""
    for word in ("./my server!", "/opt/π", "..", "-x", "\udcff\udcfe", "n" * 300):
        with take(None, [word], tmp_path) as instance:
            assert state == instance.folder.parent
            assert instance.facts() is not None


def test_a_command_started_several_times_has_several_instances(tmp_path: Path) -> None:
    """Sixteen processes of one command have a place each, the first free one; the seventeenth is refused."""
    with ExitStack() as stack:
        taken = [stack.enter_context(take(None, COMMAND, tmp_path)) for _ in range(16)]
        base = taken[0].name
        assert [base, *(f"{base}-{number}" for number in range(2, 17))] == [each.name for each in taken]
        with pytest.raises(AlreadyInUse, match="16 processes run this command") as refused:
            stack.enter_context(take(None, COMMAND, tmp_path))
        assert "GATEWAY_BUSY" == refused.value.code
    with take(None, COMMAND, tmp_path) as first:
        assert base == first.name


def test_a_given_name_is_one_process(tmp_path: Path) -> None:
    """A second process under a name is refused with the pid of the first, which is another process here."""
    program = f"""if True:
        import sys
        from pathlib import Path
        from ztrio_cli.instances import take
        with take("mail", ["server"], Path({str(tmp_path)!r})):
            print("taken", flush=True)
            sys.stdin.read()"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert "taken\n" == other.stdout.readline()
        with pytest.raises(AlreadyInUse, match=f"Process {other.pid} uses the gateway 'mail'") as refused:
            take("mail", ["server"], tmp_path).__enter__()
        assert ("GATEWAY_BUSY", other.pid) == (refused.value.code, refused.value.details["pid"])
        other.kill()
    with take("mail", ["server"], tmp_path) as mine:
        facts = mine.facts()
        assert facts is not None
        assert os.getpid() == facts.pid


@pytest.mark.case("R56")
def test_nothing_secret_is_kept(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither arguments nor environment are written down, and what is can be read by its owner alone."""
    monkeypatch.setenv("ZT_SECRET", "S3CR3T")
    with take(None, COMMAND, tmp_path) as instance:
        files = [path for path in state.rglob("*") if path.is_file()]
        assert {"instance.json", "lock"} == {path.name for path in files}
        for path in files:
            assert b"S3CR3T" not in path.read_bytes()
            assert 0o600 == stat.S_IMODE(path.stat().st_mode)
        assert 0o700 == stat.S_IMODE(instance.folder.stat().st_mode)
        facts = instance.facts()
        assert facts is not None
        assert ("/usr/bin/npx", 4, str(tmp_path)) == (facts.program, facts.arguments, facts.directory)
        assert f"{instance.name} (/usr/bin/npx, process {os.getpid()}, in {tmp_path}" in str(instance)
        (instance.folder / "instance.json").write_bytes(b"\xff{")
        assert (None, instance.name) == (instance.facts(), str(instance))


def test_a_directory_that_others_may_enter_is_closed(state: Path, tmp_path: Path) -> None:
    """The directory is private when it is used, whatever it was before."""
    (state / "mail").mkdir(parents=True)
    (state / "mail").chmod(0o755)
    with take("mail", ["server"], tmp_path) as instance:
        assert 0o700 == stat.S_IMODE(instance.folder.stat().st_mode)


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no directory can be, the refusal names it and what to set; a relative XDG_STATE_HOME counts for nothing."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreUnavailable, match=r"file/ztrio/wrap/mail cannot be used: Not a directory.*XDG_STATE_HOME"):
        take("mail", ["server"], tmp_path).__enter__()
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".local/state/ztrio/wrap" == root()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "-x", "a b", "é", "x" * 65, "x\n"])
def test_names_are_checked(name: str, tmp_path: Path) -> None:
    """What is no name is refused as such, when one is started and when one is looked for."""
    with pytest.raises(Complaint, match="--name") as refused:
        take(name, ["server"], tmp_path).__enter__()
    assert "USAGE" == refused.value.code
    with pytest.raises(Complaint, match="--name"):
        find(name)


def test_who_is_meant(state: Path, tmp_path: Path) -> None:
    """The only one that runs is meant, though it be too busy to answer; of several, one has to be named, and they are
    listed."""
    with pytest.raises(Complaint) as none:
        find(None)
    assert ("SERVER_NOT_RUNNING", []) == (none.value.code, running())
    with take("mail", ["mailer"], tmp_path) as mail, take(None, COMMAND, tmp_path) as other:
        assert [] == running()
        (state / "not a name").mkdir()
        with answering(other):
            assert other == find(None)
            with answering(mail):
                assert sorted([mail, other], key=str) == running()
                with pytest.raises(Complaint, match=r"--name.*mail \(mailer, process.*npx-") as several:
                    find(None)
                assert "GATEWAY_AMBIGUOUS" == several.value.code
                assert mail == find("mail")
            assert mail == find("mail")
    with pytest.raises(Complaint, match=r"No `ztrio wrap` of the name post ever ran here\. None runs") as never:
        find("post")
    assert "GATEWAY_NOT_FOUND" == never.value.code


def test_a_socket_that_a_dead_process_left_is_nobody(tmp_path: Path) -> None:
    """After a kill the socket is still there; nobody runs, and the next process of the name takes its place."""
    with take("mail", ["server"], tmp_path) as mail:
        bound, path = place.bind(mail.folder)
        bound.close()
        assert path.is_socket() or path.is_symlink()
        assert [] == running()
        with answering(mail) as stack:
            assert [mail] == running()
            stack.pop_all().close()
        assert isinstance(bound, socket.socket)
