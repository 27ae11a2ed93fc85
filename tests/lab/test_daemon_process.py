"""Daemons of the lab are found again, ended, and never confused with another process."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import daemon_process, lab_errors

SYS_EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # ends one thread


@pytest.fixture
def records(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    (tmp_path / "logs").mkdir()
    return tmp_path / "records"


def start(records: Path, *argv: str) -> int:
    return daemon_process.start(daemon_process.Process("daemon", argv), records, records.parent / "logs")


def test_a_daemon_is_not_started_twice_and_ends_with_its_record(records: Path) -> None:
    pid = start(records, "sleep", "60")
    assert start(records, "sleep", "60") == pid == daemon_process.pid_of("daemon", records)
    daemon_process.stop([("daemon", 5.0)], records)
    assert daemon_process.start_time(pid) is None
    assert list(records.iterdir()) == []


def test_daemon_that_ignores_sigterm_is_killed(records: Path) -> None:
    stubborn = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    )
    pid = start(records, sys.executable, "-c", stubborn)
    log = records.parent / "logs" / "daemon"
    while "ready" not in log.read_text():
        assert daemon_process.pid_of("daemon", records) == pid
    daemon_process.stop([("daemon", 0.05)], records)
    assert daemon_process.start_time(pid) is None


def test_a_daemon_outlives_its_launcher(records: Path) -> None:
    script = (
        "import pathlib, sys; from lab import daemon_process as process; r = pathlib.Path(sys.argv[1]);"
        "process.start(process.Process('daemon', ('sleep', '60')), r, r.parent / 'logs')"
    )
    subprocess.run([sys.executable, "-c", script, str(records)], check=True)
    assert daemon_process.pid_of("daemon", records) is not None
    daemon_process.stop([("daemon", 5.0)], records)


def test_process_with_a_reused_pid_is_not_ended(records: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    other = subprocess.Popen(["sleep", "60"])
    try:
        started = daemon_process.start_time(other.pid)
        assert started is not None
        for record in (f"{other.pid} {started - 1}\n{boot}", f"{other.pid} {started}\nanother-boot\n", "", "torn"):
            (records / "daemon").write_text(record)
            assert daemon_process.pid_of("daemon", records) is None
            daemon_process.stop([("daemon", 0.1)], records)
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_zombie_counts_as_ended(records: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    os.kill(child.pid, signal.SIGKILL)
    # it has ended, and stays a zombie until its parent waits for it
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert daemon_process.start_time(child.pid) is None
    child.wait()


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """Its ports stay open until then."""
    ends_alone = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    child = subprocess.Popen([sys.executable, "-c", f"{ends_alone}; ctypes.CDLL(None).syscall({SYS_EXIT}, 0)"])
    began = time.monotonic()
    while ") Z " not in Path(f"/proc/{child.pid}/stat").read_text() and time.monotonic() - began < 10:
        time.sleep(0.01)
    assert daemon_process.start_time(child.pid) is not None
    child.kill()
    child.wait()
    assert daemon_process.start_time(child.pid) is None


def test_daemon_that_cannot_start_names_its_log(records: Path) -> None:
    unwritable = daemon_process.Process("daemon", ("sleep", "60"), groups=(Path("/nowhere"),))
    began = time.monotonic()
    with pytest.raises(lab_errors.LabError, match=r"daemon did not start: see .*\n.*nowhere"):
        daemon_process.start(unwritable, records, records.parent / "logs")
    assert time.monotonic() - began < daemon_process.LAUNCH_SECONDS, "it was waited for, though its shell had ended"
