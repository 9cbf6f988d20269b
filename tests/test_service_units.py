"""Units for other schedulers: quoted so that each word arrives as it was, and found valid."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Cli

from expunge.jobs import cli_schedule
from expunge.jobs.cron import parse_schedule
from expunge.jobs.service_units import cron_job, crontab, systemd_service

yaml = pytest.importorskip("yaml", reason="Dask brings PyYAML")
NIGHTLY = parse_schedule("0 2 * * *", "Europe/Berlin")
ODD = [
    "plain",
    "with space",
    "100%",
    "50%% off",
    "back\\slash",
    "back\\%percent",
    "two\\\\%percent",
    "$HOME",
    "${HOME}",
    "$(HOME)",
    "$$",
    "it's",
    "it's 5%",
    'double"quote',
    "semi;colon #hash",
    "*",
    "häuser",
    "",
    "a: b",
    "- x",
    "%n",
    "`id`",
]


def exec_words(text: str) -> list[str]:
    """ExecStart's words as systemd.service(5) says: unquoted, then %% and, past the first, $$."""
    line = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert line is not None
    words: list[str] = []
    for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', line[1]):
        word = re.sub(r"\\(.)", r"\1", quoted) if quoted or not plain else plain
        assert "%" not in word.replace("%%", "")
        word = word.replace("%%", "%")
        if words:
            assert "$" not in word.replace("$$", "")
            word = word.replace("$$", "$")
        words.append(word)
    return words


def cron_command(line: str) -> str:
    """What cron hands to the shell: it ends at a bare ``%``, and ``\\%`` stands for one (cron's loop)."""
    out, escaped = "", False
    for character in line:
        if escaped:
            out = out[:-1] + "%" if character == "%" else out + character
            escaped = False
            continue
        assert character != "%", "cron would end the command here"
        out += character
        escaped = character == "\\"
    return out


def test_systemd_gets_each_word_as_it_was() -> None:
    command = ['/opt/a b%c$d/ex"pu\\nge', *ODD]
    assert exec_words(systemd_service(command, "someone")) == command


def test_the_shell_gets_each_word_as_it_was_through_cron(tmp_path: Path) -> None:
    """The line's command is run by a real shell, which prints its words; exit 75 is tried again."""
    folder = tmp_path / "pro gram\\%"
    folder.mkdir()
    program = folder / "it's 5%"
    program.write_text(
        '#!/bin/sh\nprintf "%s\\0" "$@" >>"$OUT"\n[ -e "$OUT.again" ] && exit 3\n'
        ': >"$OUT.again"\nexit 75\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    lines = crontab([str(program), *ODD], NIGHTLY).splitlines()
    assert lines[-1].startswith("0 2 * * * ") and "CRON_TZ=Europe/Berlin" in lines
    shell = cron_command(lines[-1].removeprefix("0 2 * * * ")).replace("sleep 300", "sleep 0")
    out = tmp_path / "out"
    subprocess.run(["/bin/sh", "-c", shell], check=True, timeout=60, env={"OUT": str(out)})
    assert out.read_text().split("\0")[:-1] == [*ODD, *ODD]


def read_cron_job(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_a_cron_job_is_what_kubernetes_wants() -> None:
    folder = '/srv/a b: %c $(HOME) "ü"'
    volume: dict[str, object] = {"hostPath": {"path": folder, "type": "Directory"}}
    job = read_cron_job(cron_job(["expunge", *ODD], NIGHTLY, True, "registry/expunge:1", volume))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    spec = job["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("0 2 * * *", "Europe/Berlin")
    assert spec["concurrencyPolicy"] == "Forbid" and "startingDeadlineSeconds" not in spec
    work = spec["jobTemplate"]["spec"]
    pod = work["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # What a podFailurePolicy needs.
    container = pod["containers"][0]
    # Kubernetes makes $$ a dollar sign, and $(NAME) a variable.
    assert all("$" not in word.replace("$$", "") for word in container["command"])
    assert [w.replace("$$", "$") for w in container["command"]] == ["expunge", *ODD]
    assert container["volumeMounts"] == [{"name": "workspace", "mountPath": "/workspace"}]
    assert pod["volumes"] == [{"name": "workspace", **volume}]
    rules = {r["action"]: r["onExitCodes"] for r in work["podFailurePolicy"]["rules"]}
    assert rules["Ignore"]["values"] == [75] and 75 not in rules["FailJob"]["values"]
    # Tried again these would end with 0, or the same: usage, partly done, not verified.
    assert {2, 3, 5} <= set(rules["FailJob"]["values"])
    assert {r["containerName"] for r in rules.values()} == {container["name"]}


def test_kubernetes_knows_no_weekday_seven() -> None:
    for text, expected in (("0 2 * * 5-7", "0 2 * * 0,5,6"), ("0 2 * * 7", "0 2 * * 0")):
        job = read_cron_job(
            cron_job(["x"], parse_schedule(text, "UTC"), False, "i", {"emptyDir": {}})
        )
        assert job["spec"]["schedule"] == expected
        assert job["spec"]["startingDeadlineSeconds"] > 10


@pytest.fixture
def workspace(cli: Cli, tmp_path: Path) -> Path:
    cli("init", tmp_path / "ws")
    return tmp_path / "ws"


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in root.rglob("*")}


PRINT = ("batch", "schedule", "--cron", "0 2 * * *")


@pytest.mark.parametrize("unit", cli_schedule.UNITS)
def test_printing_writes_nothing(cli: Cli, workspace: Path, unit: str) -> None:
    before = files(workspace)
    found = cli(*PRINT, "--print", unit, "--workers", "2", "--method", "basel")
    assert found["unit"] == unit
    assert files(workspace) == before
    where = "/workspace" if unit == "kubernetes" else str(workspace)
    for word in (where, "schedule", "--workers", "2", "--method", "basel"):
        assert word in found["text"]
    assert ("--once" in found["text"]) == (unit != "systemd")


def test_systemd_accepts_the_service(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    folder = tmp_path / "a b%c$d ${HOME}"
    folder.mkdir()
    program = folder / "ex punge"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setattr(cli_schedule, "_program", lambda: [str(program)])
    cli("init", tmp_path / "ws")
    text = cli(*PRINT, "--timezone", "Europe/Berlin", "--no-catch-up", "--print", "systemd")["text"]
    words = exec_words(text)
    expected = [str(program), "-w", str(tmp_path / "ws"), *PRINT, "--timezone", "Europe/Berlin"]
    assert words[: len(expected)] == expected and "--no-catch-up" in words
    unit = tmp_path / "expunge-batch.service"
    unit.write_text(text)
    verify = [analyze, "verify", "--man=no", str(unit)]
    refused = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert refused.returncode and f"Command {program} is not executable" in refused.stderr
    program.chmod(0o755)
    accepted = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert (accepted.returncode, accepted.stderr) == (0, "")


def test_the_program_is_found_beside_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert cli_schedule._program() == [str(tmp_path / "python"), "-m", "expunge.jobs.cli"]
    (tmp_path / "expunge").touch(0o755)
    assert cli_schedule._program() == [str(tmp_path / "expunge")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cron", "0 2 * * *", "--print", "launchd"), "it is one of systemd, cron, kubernetes"),
        (("--once", "--print", "cron"), "a unit needs due times"),
        (("--print", "cron"), "say when by --cron"),
        (("--cron", "0 2 * * *", "--once"), "say when by --cron"),
        (("--cron", "0 2 * * 9"), "the day of the week is '9'"),
        (("--cron", "0 2 * * *", "--timezone", "Mars"), "--timezone is 'Mars'"),
        (("--cron", "0 2 * * *", "--method", "magic"), "--method is 'magic'"),
        (("--cron", "0 2 * * *", "--cluster", "far"), "--cluster is 'far'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cli: Cli, workspace: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in cli("batch", "schedule", *arguments, code=2)


def test_a_folder_that_is_no_workspace_is_refused(cli: Cli) -> None:
    assert "is not a workspace" in cli(*PRINT, "--print", "cron", code=2)


def test_a_line_break_in_the_path_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "line\nbreak"
    cli("init", folder)
    assert "can't stand in a unit" in cli("-w", folder, *PRINT, "--print", "systemd", code=2)
