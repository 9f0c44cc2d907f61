"""Commands that end, fail, hang, flood and leave children behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paritygate.converter.processes import run_supervised


def _shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended between open and read
        return False
    return state != "Z"


def _wait_until_dead(pid: int, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _is_alive(pid)


def test_exit_code_and_both_streams_come_back() -> None:
    lines: list[bytes] = []
    ended = run_supervised(_shell("echo out; echo err >&2; exit 3"), timeout_s=10, on_output=lines.append)
    assert (ended.returncode, ended.ok, ended.timed_out) == (3, False, False)
    assert lines == [b"out", b"err"]
    assert ended.last_line == "err"
    assert ended.describe() == "ended with exit code 3"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM", "SIGABRT"])
def test_death_by_signal_is_told_as_such(name: str) -> None:
    ended = run_supervised(_shell(f"kill -{name.removeprefix('SIG')} $$"), timeout_s=10)
    assert ended.returncode == -getattr(signal, name)
    why = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    assert ended.describe() == f"was killed by {name}{why}"


def test_a_hanging_command_is_killed_with_all_that_it_started() -> None:
    ended = run_supervised(_shell("sleep 60 & echo $!; exec sleep 60"), timeout_s=0.5)
    assert ended.timed_out
    assert "longer than" in ended.describe()
    assert ended.seconds < 5
    assert _wait_until_dead(int(ended.tail))


def test_what_a_command_leaves_running_is_killed_when_it_ends() -> None:
    ended = run_supervised(_shell("sleep 60 & echo $!; exit 0"), timeout_s=30)
    assert ended.ok
    assert ended.seconds < 5
    assert _wait_until_dead(int(ended.tail))


def test_a_command_dies_with_its_children_when_we_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    ours = (
        "from paritygate.converter.processes import run_supervised;"
        f"run_supervised(['/bin/sh','-c','sleep 60 & echo $! $$ > {pids}.part; mv {pids}.part {pids}; wait'],"
        " timeout_s=60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", ours])
    deadline = time.monotonic() + 20
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    for pid in map(int, pids.read_text().split()):
        assert _wait_until_dead(pid)


def test_an_error_in_a_listener_kills_the_command() -> None:
    seen: list[int] = []

    def listener(line: bytes) -> None:
        seen.append(int(line))
        raise RuntimeError("the listener failed")

    with pytest.raises(RuntimeError, match="the listener failed"):
        run_supervised(_shell("echo $$; exec sleep 60"), timeout_s=30, on_output=listener)
    assert _wait_until_dead(seen[0])


def test_a_flood_of_output_keeps_only_its_last_lines() -> None:
    ended = run_supervised(_shell("seq 200000; printf 'no line end'"), timeout_s=60)
    assert ended.ok
    assert ended.tail.splitlines()[-2:] == ["200000", "no line end"]
    assert len(ended.tail.splitlines()) == 40


def test_a_line_without_end_does_not_fill_memory() -> None:
    sizes: list[int] = []
    run_supervised(
        _shell("head -c 5000000 /dev/zero"), timeout_s=60, on_output=lambda line: sizes.append(len(line))
    )
    assert sum(sizes) == 5_000_000
    assert max(sizes) < 1_200_000


def test_the_channel_carries_nothing_that_is_printed() -> None:
    said: list[bytes] = []
    script = (
        'import os; print(\'{"kind": "result"}\', flush=True);'
        "os.write(int(os.environ['PARITYGATE_CHANNEL_FD']), b'real\\n')"
    )
    run_supervised([sys.executable, "-I", "-c", script], timeout_s=10, on_channel=said.append)
    assert said == [b"real"]


def test_memory_beyond_the_limit_is_refused_to_the_command() -> None:
    command = [sys.executable, "-I", "-c", "x = bytearray(800 * 2**20); print(len(x))"]
    assert run_supervised(command, timeout_s=30).ok
    ended = run_supervised(command, timeout_s=30, memory_bytes=200 * 2**20)
    assert ended.last_line == "MemoryError"


def test_a_lock_stays_held_until_the_group_is_dead(tmp_path: Path) -> None:
    import fcntl

    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    states: list[bool] = []

    def close_ours_and_try(_line: bytes) -> None:
        os.close(lock)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            states.append(False)

    run_supervised(_shell("echo go; sleep 0.2"), timeout_s=10, keep_open=[lock], on_output=close_ours_and_try)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert states == [False]


def test_a_command_reads_what_it_is_given_and_by_default_nothing() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"orders\n")
        lines: list[bytes] = []
        assert run_supervised(_shell("head -n 1"), timeout_s=10, stdin=reading, on_output=lines.append).ok
        assert run_supervised(_shell("cat"), timeout_s=10, on_output=lines.append).ok
    finally:
        os.close(reading)
        os.close(writing)
    assert lines == [b"orders"]
