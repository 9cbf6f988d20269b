"""What other schedulers are told: a systemd service, a crontab line, a Kubernetes CronJob.

Each is a text made from the command's words; what quoting the words need there is here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from .cron import Schedule
from .errors import UsageError

RETRY_SECONDS = 300
STOP_SECONDS = 3600
"""How long a batch may take to end before it is killed, and resumed at the next start."""
_SYSTEMD = """\
[Unit]
Description=Deletion batches of expunge
After=local-fs.target remote-fs.target

[Service]
Type=exec
User={user}
ExecStart={command}
# Only the driver is told to stop: its workers are needed until the running batch has ended.
KillMode=mixed
TimeoutStopSec={stop}
# Also where another scheduler holds the workspace (exit code 75).
Restart=on-failure
RestartSec=60

[Install]
WantedBy=multi-user.target
"""
_CRONTAB = """\
# Keep this at the crontab's end: CRON_TZ holds for all lines below it. Debian's cron does not know
# CRON_TZ: write the times in the machine's own time zone there.
CRON_TZ={zone}
# Exit code 75: another process works in the workspace; tried again then.
{cron} while {command}; [ $? -eq 75 ]; do sleep {retry}; done
"""
_KUBERNETES = """\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: expunge-batch
spec:
  schedule: {cron}
  timeZone: {zone}
  concurrencyPolicy: Forbid
{deadline}\
  jobTemplate:
    spec:
      backoffLimit: 3
      podFailurePolicy:
        rules:
          # Another process works in the workspace: tried again, and not counted.
          - action: Ignore
            onExitCodes: {{containerName: expunge, operator: In, values: [75]}}
          # Usage, jobs that are partly done, a verification that failed: trying again at once would
          # not help, and would end with 0 though somebody has to do something.
          - action: FailJob
            onExitCodes: {{containerName: expunge, operator: In, values: [2, 3, 5]}}
      template:
        spec:
          restartPolicy: Never
          # A batch that runs may end; killed, it is resumed by the next one.
          terminationGracePeriodSeconds: {stop}
          containers:
            - name: expunge
              image: {image}
              command: {command}
              volumeMounts:
                - {{name: workspace, mountPath: {mount}}}
          volumes:
            - name: workspace
              {volume}
"""
_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+")
"""Words that no unit file reads as anything else."""
MOUNT = "/workspace"
"""Where a container finds the workspace."""


def check_path(path: Path) -> Path:
    """UsageError unless a path can stand in a unit: no line break or other control character."""
    if not str(path).isprintable():
        raise UsageError(
            f"{str(path)!r} has characters that can't stand in a unit; rename the folder"
        )
    return path


def systemd_service(command: Sequence[str], user: str) -> str:
    """Return a service that runs ``command``, a daemon; the first word is its absolute path."""
    program, *arguments = command
    words = [_systemd_word(program, "$"), *(_systemd_word(word, "$$") for word in arguments)]
    return _SYSTEMD.format(
        user=user,
        command=" ".join(words),
        stop=STOP_SECONDS,
    )


def crontab(command: Sequence[str], schedule: Schedule) -> str:
    """Return crontab lines that run ``command``, which ends, at the due times."""
    return _CRONTAB.format(
        zone=schedule.zone_name,
        cron=schedule.text,
        command=_crontab_words(command),
        retry=RETRY_SECONDS,
    )


def cron_job(
    command: Sequence[str],
    schedule: Schedule,
    catch_up: bool,
    image: str,
    volume: dict[str, object],
) -> str:
    """Return a CronJob that runs ``command``, which ends, in a container with the workspace at MOUNT.

    volume: the workspace's volume, as Kubernetes describes one.
    """
    kind, description = next(iter(volume.items()))
    fields = schedule.text.split()[:4]
    return _KUBERNETES.format(
        # Sunday is 0 there, never 7.
        cron=_json(" ".join([*fields, _weekday(schedule)])),
        zone=_json(schedule.zone_name),
        deadline="" if catch_up else f"  startingDeadlineSeconds: {RETRY_SECONDS}\n",
        image=_json(image),
        # $(NAME) would be replaced by a variable of the container.
        command=_json([word.replace("$", "$$") for word in command]),
        mount=_json(MOUNT),
        volume=f"{kind}: {_json(description)}",
        stop=STOP_SECONDS,
    )


def _weekday(schedule: Schedule) -> str:
    if "7" not in schedule.weekday.text:
        return schedule.weekday.text
    return ",".join(map(str, schedule.weekday.numbers))


def _json(value: object) -> str:
    """A value as JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False)


def _systemd_word(word: str, dollar: str) -> str:
    """A word of ExecStart, quoted where needed: systemd.service(5), "Command lines".

    dollar: a dollar sign there; variables are replaced in all words but the first.
    """
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", dollar)}"'


def _crontab_words(command: Sequence[str]) -> str:
    """Words for the shell, less what cron does to them: crontab(5) ends a command at ``%``.

    ``\\%`` stands for it, but not after another backslash, which the shell's ``''`` keeps apart.
    """
    words = " ".join(shlex.quote(word) for word in command)
    return re.sub(r"(\\?)%", lambda m: m[1] + ("''" if m[1] else "") + "\\%", words)
