"""How jobs are verified, by name, and what is kept of a verification that failed."""

from __future__ import annotations

from typing import Any

from .errors import UsageError, VerifyError
from .ledger import Ledger, now
from .pending import UNVERIFIED
from .request_states import FAILED
from .workspace import Workspace

NONE, SAMPLE, RETRAIN, SCAN = "none", "sample", "retrain", "scan"
WAYS = (NONE, SAMPLE, RETRAIN, SCAN)
READ_BACK = "read back"
SETTING = "verify"
FAILURES = "verification_failures"
"""Where a job's report has what earlier attempts found wrong."""
AT_FAULT = "at_fault"
"""Where a failure has the models that were not as they should be."""
BY_DATA = "by_data"
"""Where a failure has its problems by data set, if they are known to be of one."""
PASSED, INCOMPLETE, NOT_DONE = "passed", "incomplete", "not done"
Found = dict[str, Any]


def verify_setting(ws: Workspace) -> str:
    """Return how the workspace's jobs are verified, one of WAYS."""
    return ws.ledger.setting(SETTING) or NONE


def set_verify(ws: Workspace, how: str) -> None:
    """Have jobs verified so from now on; UsageError unless it is one of WAYS."""
    if how not in WAYS:
        raise UsageError(f"--verify is {how!r}; it is one of {', '.join(WAYS)}")
    with ws.ledger.transaction():
        ws.ledger.set(SETTING, how)
        ws.ledger.event("setting", {SETTING: how})


def told(outcome: str, what: str, **more: Any) -> Found:
    """Return an outcome and what was done, in words; with ``models`` or ``scan`` where there are any."""
    return {"outcome": outcome, "what": what, "models": [], "scan": None, **more}


def unverified(ws: Workspace, job: int, failure: Found) -> VerifyError:
    """Keep what a verification found wrong, and return the error to raise; the job can be resumed.

    failure: ``verify`` and ``problem``, perhaps ``by_data``, and evidence without personal data.
    """

    def without_root(problem: object) -> str:
        return str(problem).replace(f"{ws.root}/", "")

    failure = {"at": now(), **failure, "problem": without_root(failure["problem"])}
    if BY_DATA in failure:
        failure[BY_DATA] = {data: without_root(p) for data, p in failure[BY_DATA].items()}
    ledger = ws.ledger
    with ledger.transaction():
        report = ledger.job(job)["report"]
        ledger.report_job(job, {**report, FAILURES: [*report.get(FAILURES, []), failure]})
        ledger.event("verification failed", {"job": job, **_without_places(failure)})
        close_unverified(ledger, job)
    cure = f"expunge job resume {job} erases and verifies again"
    if AT_FAULT in failure:
        cure += f", expunge job retry {job} also trains the regressions anew that are not right"
    return VerifyError(
        f"job {job}: verification failed: {failure['problem']}; no receipt is issued; {cure}"
    )


def close_unverified(ledger: Ledger, job: int) -> None:
    """Leave a job and its requests as those whose verification failed; call inside a transaction."""
    ledger.run("UPDATE jobs SET state = ? WHERE id = ?", UNVERIFIED, job)
    ledger.run("UPDATE requests SET state = ? WHERE job = ?", FAILED, job)


def _without_places(failure: Found) -> Found:
    return {name: value for name, value in failure.items() if name != "places"}
