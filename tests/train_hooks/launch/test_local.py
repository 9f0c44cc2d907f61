"""Jobs on this machine: their lines, their ends, and that nothing of them stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from paritygate.train_hooks.errors import JobFailed, NotRunnable
from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import JobEvent, JobResult, JobSpec, JobState
from support.jobs import job_of, processes_of, wait_for_file, wait_until_gone

WHO = "import os, json; rank = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
"""First line of a script: which rank it is."""


def run(job: JobSpec) -> tuple[JobResult, list[JobEvent]]:
    events: list[JobEvent] = []
    return launcher.run(launcher.plan(job), events.append), events


def lines_of(events: list[JobEvent], source: str) -> list[str]:
    return [event.text for event in events if event.kind == "line" and event.source == source]


def test_every_rank_is_told_its_place_and_the_job_succeeds(tmp_path: Path) -> None:
    script = WHO + "print('rank', rank, 'of', len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']))"
    result, events = run(job_of(tmp_path, script, nodes=3))
    assert result.state is JobState.SUCCEEDED
    assert result.exit_code == 0
    assert [lines_of(events, f"rank {rank}") for rank in range(3)] == [
        [f"rank {rank} of 3"] for rank in range(3)
    ]


def test_lines_of_ranks_that_write_in_pieces_stay_whole_and_in_order(tmp_path: Path) -> None:
    script = (
        WHO
        + """
import sys
for number in range(1500):
    for piece in (f"{rank}:", str(number), ":" + "x" * 200, "\\n"):
        os.write(1 + number % 2, piece.encode())  # stdout and stderr by turns
"""
    )
    result, events = run(job_of(tmp_path, script))
    assert result.state is JobState.SUCCEEDED
    for rank in range(2):
        expected = [f"{rank}:{number}:" + "x" * 200 for number in range(1500)]
        assert lines_of(events, f"rank {rank}") == expected


def test_a_slow_reader_loses_no_line(tmp_path: Path) -> None:
    script = "for number in range(30000):\n    print(number, 'y' * 300)"
    job = job_of(tmp_path, script, nodes=1)
    seen: list[int] = []

    def slowly(event: JobEvent) -> None:
        if event.kind == "line":
            seen.append(int(event.text.split()[0]))
            if len(seen) % 3000 == 1:
                time.sleep(0.1)

    launcher.run(launcher.plan(job), slowly)
    assert seen == list(range(30000))


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"one\rtwo\rthree\n", ["one", "two", "three"]),
        (b"dos\r\nunix\n", ["dos", "unix"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"no end", ["no end"]),
        (b"broken \xff text\n", ["broken \N{REPLACEMENT CHARACTER} text"]),
        (b"z" * 70000 + b"\n", None),
    ],
    ids=["progress-bar", "carriage-return", "blank-line", "no-newline", "not-utf8", "too-long"],
)
def test_odd_output_becomes_lines(tmp_path: Path, written: bytes, lines: list[str] | None) -> None:
    pieces = [written[at : at + 4096] for at in range(0, len(written), 4096)]
    script = f"import os\nfor piece in {pieces!r}:\n    os.write(1, piece)"
    result, events = run(job_of(tmp_path, script, nodes=1))
    got = lines_of(events, "rank 0")
    assert result.state is JobState.SUCCEEDED
    if lines is None:
        assert "".join(got) == "z" * 70000
        assert max(map(len, got)) <= 2 * 65536
    else:
        assert got == lines


def test_a_failed_rank_ends_the_job_and_is_named_with_its_code_and_last_line(tmp_path: Path) -> None:
    script = WHO + "import sys, time\nif rank == 1: print('out of data'); sys.exit(3)\ntime.sleep(60)"
    result, events = run(job_of(tmp_path, script))
    assert result.state is JobState.FAILED
    assert result.exit_code == 1
    assert result.message == "job small failed: rank 1 exited with code 3; its last line: out of data"
    assert result.failure is not None
    assert (result.failure.rank, result.failure.exit_code) == (1, 3)
    assert result.failure.last_lines == ("out of data",)
    assert [(end.source, end.signal) for end in result.ends] == [("rank 1", None), ("rank 0", "SIGTERM")]
    assert "stopping" in [event.kind for event in events]
    assert result.seconds < 10
    with pytest.raises(JobFailed, match="rank 1 exited with code 3"):
        result.check()


def test_a_rank_that_is_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    script = WHO + "import time\nif rank == 0: os.kill(os.getpid(), 9)\ntime.sleep(60)"
    result, _ = run(job_of(tmp_path, script))
    assert result.message == "job small failed: rank 0 was killed by SIGKILL; it wrote nothing"


WAIT_FOR_OTHER = """
import pathlib, signal, sys, time
def ready():
    pathlib.Path("ready").touch()
def wait():
    while not pathlib.Path("ready").exists():
        time.sleep(0.01)
"""
"""Lets rank 1 fail no sooner than rank 0 is where the test wants it."""


def test_ranks_that_do_not_end_when_asked_are_killed_after_the_grace(tmp_path: Path) -> None:
    script = """
if rank:
    wait()
    sys.exit(1)
signal.signal(15, signal.SIG_IGN)
ready()
time.sleep(60)
"""
    result, _ = run(job_of(tmp_path, WHO + WAIT_FOR_OTHER + script))
    assert result.state is JobState.FAILED
    assert {end.source: end.signal for end in result.ends}["rank 0"] == "SIGKILL"
    assert 1 <= result.seconds < 20


def test_a_rank_is_asked_to_end_once_and_may_say_goodbye(tmp_path: Path) -> None:
    script = """
def leave(number, frame):
    print('goodbye')
    time.sleep(0.2)
    sys.exit(0)
if rank:
    wait()
    sys.exit(1)
signal.signal(15, leave)
ready()
time.sleep(60)
"""
    result, events = run(job_of(tmp_path, WHO + WAIT_FOR_OTHER + script, stop_grace_s=20))
    assert lines_of(events, "rank 0") == ["goodbye"]
    assert {end.source: end.exit_code for end in result.ends} == {"rank 1": 1, "rank 0": 0}


def test_a_job_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    result, _ = run(job_of(tmp_path, "import time; time.sleep(60)", timeout_s=1))
    assert result.state is JobState.TIMED_OUT
    assert result.exit_code == 124
    assert result.message == "job small was stopped: timeout_s of 1 s passed; raise it in the job file"
    assert result.seconds < 10


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (
            {"python": "/no/such/python"},
            "rank 0 exited with code 127; its last line: cannot be started: .*/no/such/python",
        ),
        (
            {"script": None, "command": ["no-such-program"]},
            "cannot be started: no-such-program: No such file",
        ),
    ],
    ids=["interpreter", "command"],
)
def test_a_program_that_is_not_there_is_named(tmp_path: Path, fields: dict[str, object], match: str) -> None:
    result, _ = run(job_of(tmp_path, "pass", **fields))
    assert result.state is JobState.FAILED
    assert re.search(match, result.message), result.message


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"workdir": "/no/such/place"}, "workdir /no/such/place is not a directory"),
        ({"script": "other.py"}, "script other.py is not in"),
        ({"nodes": 300}, "job small has 300 ranks; expected at most 256 on one machine"),
        (
            {"hosts": ["gpu-a", "gpu-b"]},
            "names hosts gpu-a, gpu-b, and --on local starts processes on this machine only",
        ),
    ],
    ids=["workdir", "script", "too-many", "hosts"],
)
def test_what_cannot_run_here_is_refused_before_anything_starts(
    tmp_path: Path, fields: dict[str, object], match: str
) -> None:
    with pytest.raises(NotRunnable, match=match):
        run(job_of(tmp_path, "pass", **fields))


def test_ranks_see_the_jobs_variables_and_none_of_an_outer_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PET_NNODES": "9", "RANK": "5", "TF_CONFIG": "{}", "KEPT": "yes"}.items():
        monkeypatch.setenv(name, value)
    script = (
        "import os\nprint([os.environ.get(n) for n in ('PET_NNODES', 'RANK', 'TF_CONFIG', 'KEPT', 'OWN')])"
    )
    _, events = run(job_of(tmp_path, script, nodes=1, env={"OWN": 7}))
    assert lines_of(events, "rank 0") == ["[None, None, None, 'yes', '7']"]


def test_a_variable_of_another_framework_confuses_no_rank(tmp_path: Path) -> None:
    result, events = run(job_of(tmp_path, "import os; print(os.environ['RANK'])", env={"RANK": "5"}))
    assert result.state is JobState.SUCCEEDED
    assert [lines_of(events, f"rank {rank}") for rank in range(2)] == [["5"], ["5"]]


def test_ranks_cannot_wait_for_input(tmp_path: Path) -> None:
    result, events = run(job_of(tmp_path, "import sys; print(repr(sys.stdin.read()))", nodes=1))
    assert lines_of(events, "rank 0") == ["''"]
    assert result.state is JobState.SUCCEEDED


def test_two_nodes_on_this_machine_get_different_free_ports(tmp_path: Path) -> None:
    script = "import os, json; print(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])"
    _, events = run(job_of(tmp_path, script))
    (first,), (second,) = lines_of(events, "rank 0"), lines_of(events, "rank 1")
    assert first == second
    ports = re.findall(r"localhost:(\d+)", first)
    assert len(set(ports)) == 2


def test_a_child_that_goes_on_writing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    script = """
import os, sys
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"y\\n" * 2000)
sys.exit(4)
"""
    result, _ = run(job_of(tmp_path, script, nodes=1))
    assert "rank 0 exited with code 4" in result.message
    assert result.seconds < 10


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    result, _ = run(job_of(tmp_path, "import os\nos.kill(os.getpid(), 40)", nodes=1))
    assert result.message == "job small failed: rank 0 was killed by signal 40; it wrote nothing"


@pytest.mark.parametrize("written", ["no json", "[1]", '{"name": "x"}'])
def test_a_result_that_is_none_is_told_and_ends_nothing(tmp_path: Path, written: str) -> None:
    script = (
        f"import os\nwith open(os.environ['PARITYGATE_RESULT_FILE'], 'a') as file: file.write({written!r})"
    )
    result, events = run(job_of(tmp_path, script, nodes=1))
    assert result.state is JobState.SUCCEEDED
    assert result.hooks == ()
    assert [event.text for event in events if event.source == "job"] == [
        f"a hook reported what is no result: {written}"
    ]


# Nothing stays.

ESCAPES = """
import os, sys, time
def escape(depth):
    if os.fork() == 0:
        os.setsid()
        if depth:
            escape(depth - 1)
            os._exit(0)
        os.closerange(0, 64)
        os.chdir('/')
        time.sleep(300)
        os._exit(0)
escape(0)
escape(2)
with open(os.environ['READY'], 'a') as file:
    file.write('ready\\n')
"""
"""Leaves a child in a session of its own, and one three forks away whose parents have ended."""


def test_processes_that_ranks_leave_behind_end_with_the_job(tmp_path: Path) -> None:
    unique = f"{os.getpid()}-{time.monotonic_ns()}"
    job = job_of(tmp_path, ESCAPES, env={"READY": str(tmp_path / "ready"), "UNIQUE": unique})
    result, _ = run(job)
    assert result.state is JobState.SUCCEEDED
    assert processes_of("UNIQUE", unique) == {}


LAUNCH = """
import signal, sys
# As in a terminal: a test run in the background of a shell hands on that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from paritygate.train_hooks.config import load_job
from paritygate.train_hooks.launch import launcher
result = launcher.run(launcher.plan(load_job(sys.argv[1])), on_line=lambda line: print(line, flush=True))
print(result.message)
sys.exit(result.exit_code)
"""


def start_launcher(tmp_path: Path, script: str, framework: str, unique: str) -> subprocess.Popen[str]:
    """A launcher in a process of its own, as the command line is one, with two ranks that are ready."""
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    ranks = {"processes_per_node": 2} if framework == "pytorch" else {"nodes": 2}
    value = {
        "schema": "paritygate.job/v1",
        "name": "small",
        "framework": framework,
        "script": "train.py",
        "stop_grace_s": 5,
        "env": {"READY": str(tmp_path / "ready"), "UNIQUE": unique},
        **ranks,
    }
    (tmp_path / "job.yaml").write_text(json.dumps(value))
    launcher_process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(tmp_path / "job.yaml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for_file(tmp_path / "ready", lines=2)
    return launcher_process


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_nothing_stays_when_the_launcher_is_killed(tmp_path: Path, framework: str) -> None:
    unique = f"{framework}-{os.getpid()}-{time.monotonic_ns()}"
    process = start_launcher(tmp_path, ESCAPES + "time.sleep(300)", framework, unique)
    before = processes_of("UNIQUE", unique)
    assert len(before) >= 6, before  # two ranks, and two escaped processes of each
    process.kill()
    process.communicate()
    assert wait_until_gone("UNIQUE", unique) == {}


def test_nothing_stays_whenever_the_launcher_is_killed(tmp_path: Path) -> None:
    """From before its supervisor runs, through the starts of the ranks, to their work."""
    unique = f"any-time-{os.getpid()}-{time.monotonic_ns()}"
    job = {
        "schema": "paritygate.job/v1",
        "name": "small",
        "framework": "tensorflow",
        "script": "train.py",
        "nodes": 3,
    }
    (tmp_path / "job.yaml").write_text(json.dumps({**job, "env": {"READY": str(tmp_path / "ready")}}))
    (tmp_path / "train.py").write_text(ESCAPES + "time.sleep(300)")
    command = [sys.executable, "-c", LAUNCH, str(tmp_path / "job.yaml")]
    seen: list[int] = []
    for delay_ms in range(60, 700, 40):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "WHOLE_JOB": unique},
            start_new_session=True,
        )
        time.sleep(delay_ms / 1000)
        seen.append(len(processes_of("WHOLE_JOB", unique)))
        process.kill()
        process.wait()
        assert wait_until_gone("WHOLE_JOB", unique) == {}, f"killed after {delay_ms} ms"
    assert max(seen) > 3  # some of the kills came when ranks were there


def test_nothing_stays_when_the_launcher_is_killed_while_another_child_holds_its_pipes(
    tmp_path: Path,
) -> None:
    unique = f"fork-{os.getpid()}-{time.monotonic_ns()}"
    process = start_launcher(tmp_path, ESCAPES + "time.sleep(300)", "tensorflow", unique)
    supervisors = [
        pid
        for pid, command in processes_of("PARITYGATE_JOB_ID", _marker_of(unique)).items()
        if "supervisor.py" in command
    ]
    assert len(supervisors) == 1
    lifeline = os.open(f"/proc/{process.pid}/fd/{_stdin_writer(process.pid, supervisors[0])}", os.O_WRONLY)
    try:
        process.kill()
        process.communicate()
        assert wait_until_gone("UNIQUE", unique) == {}
    finally:
        os.close(lifeline)


def test_nothing_stays_when_the_supervisor_is_killed_and_the_job_counts_as_failed(tmp_path: Path) -> None:
    unique = f"supervisor-{os.getpid()}-{time.monotonic_ns()}"
    process = start_launcher(tmp_path, ESCAPES + "time.sleep(300)", "tensorflow", unique)
    (supervisor,) = [
        pid
        for pid, command in processes_of("PARITYGATE_JOB_ID", _marker_of(unique)).items()
        if "supervisor.py" in command
    ]
    os.kill(supervisor, signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "job small failed: its supervisor was killed; all its processes were ended" in output
    assert wait_until_gone("UNIQUE", unique) == {}


def test_ctrl_c_asks_the_ranks_to_end_and_says_so(tmp_path: Path) -> None:
    unique = f"interrupt-{os.getpid()}-{time.monotonic_ns()}"
    script = """
        import os, signal, sys, time
        signal.signal(15, lambda number, frame: (print('saving'), sys.exit(0)))
        with open(os.environ['READY'], 'a') as file:
            file.write('ready\\n')
        time.sleep(300)
    """
    process = start_launcher(tmp_path, script, "tensorflow", unique)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "[rank 0] saving" in output
    assert "[rank 1] saving" in output
    assert "was stopped on request" in output
    assert "Traceback" not in output
    assert wait_until_gone("UNIQUE", unique) == {}


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    unique = f"impatient-{os.getpid()}-{time.monotonic_ns()}"
    script = """
        import os, signal, time
        signal.signal(15, signal.SIG_IGN)
        with open(os.environ['READY'], 'a') as file:
            file.write('ready\\n')
        time.sleep(300)
    """
    process = start_launcher(tmp_path, script, "tensorflow", unique)
    started_at = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - started_at < 4.5  # stop_grace_s is 5
    assert wait_until_gone("UNIQUE", unique) == {}


def test_a_caller_that_raises_in_its_callback_leaves_nothing(tmp_path: Path) -> None:
    unique = f"raising-{os.getpid()}-{time.monotonic_ns()}"
    job = job_of(tmp_path, "import time\nprint('go')\ntime.sleep(300)", env={"UNIQUE": unique})

    def refuse(event: JobEvent) -> None:
        if event.kind == "line":
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        launcher.run(launcher.plan(job), refuse)
    assert wait_until_gone("UNIQUE", unique) == {}


def test_a_job_can_run_in_a_thread_and_leaves_signal_handlers_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    results: list[JobResult] = []
    job = job_of(tmp_path, "print('done')")
    thread = threading.Thread(target=lambda: results.append(launcher.run(launcher.plan(job))))
    thread.start()
    thread.join(30)
    run(job)
    assert results[0].state is JobState.SUCCEEDED
    assert signal.getsignal(signal.SIGINT) is before


def _marker_of(unique: str) -> str:
    """The marker of the run whose ranks carry this variable."""
    rank = next(iter(processes_of("UNIQUE", unique)))
    variables = Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    (marker,) = [entry for entry in variables if entry.startswith(b"PARITYGATE_JOB_ID=")]
    return marker.partition(b"=")[2].decode()


def _stdin_writer(launcher_pid: int, supervisor: int) -> int:
    """The launcher's descriptor of the pipe that is the supervisor's stdin."""
    pipe = os.readlink(f"/proc/{supervisor}/fd/0")
    for entry in Path(f"/proc/{launcher_pid}/fd").iterdir():
        if os.readlink(entry) == pipe:
            return int(entry.name)
    raise AssertionError("the launcher holds no pipe to its supervisor")
