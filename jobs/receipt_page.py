"""A receipt as one page of HTML that a data protection officer can print and file.

The page loads nothing and runs nothing; whatever comes from the receipt is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .console import shown

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 52rem; margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #bbb; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .75rem .2rem 0; }
th { font-weight: 600; width: 14rem; }
td { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 12px/1.4 ui-monospace, monospace; }
.lead { color: #555; margin: 0; }
.warning { border-left: 4px solid #b00020; padding: .25rem .75rem; background: #fdf0f1; }
@media print { body { margin: 0; max-width: none; } h2, h3 { break-after: avoid; } }
"""
_PERCENT = 100.0


def page(receipt: Mapping[str, Any]) -> str:
    """Return the page of a receipt, of any schema."""
    name = escape(str(receipt["receipt"]))
    sections = (_asked, _done, _models, _verified, _outside, _signed)
    body = "".join(section(receipt) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Deletion receipt {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Deletion receipt {name}</h1>\n"
        f'<p class="lead">Issued {_value(receipt["issued"])}; schema {_value(receipt["schema"])}</p>\n'
        f"{body}</body>\n</html>\n"
    )


def _value(value: object) -> str:
    """A value as a person reads it, escaped."""
    return escape(shown(value))


def _table(rows: Iterable[tuple[str, object]]) -> str:
    """Rows of a name and a value; those without a value are left out."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th><td>{_value(value)}</td></tr>\n'
        for name, value in rows
        if value is not None
    )
    return f"<table>\n{''.join(lines)}</table>\n"


def _list(texts: Sequence[str]) -> str:
    return f"<ul>\n{''.join(f'<li>{escape(text)}</li>' for text in texts)}\n</ul>\n"


def _asked(receipt: Mapping[str, Any]) -> str:
    rows = (
        ("Request", f"number {receipt['request']}: delete all rows of one unit"),
        ("Reference", receipt.get("reference")),
        ("Ground", receipt.get("ground")),
        ("Received", receipt["received"]),
        ("Due", receipt.get("due")),
        ("Data set", receipt["data"]),
        ("Unit, by its keyed hash", receipt["unit_hash"]),
    )
    return f"<h2>What was asked</h2>\n{_table(rows)}"


def _done(receipt: Mapping[str, Any]) -> str:
    job = receipt["job"]
    rows = (
        ("Rows of this unit deleted", receipt.get("rows")),
        ("Deletion took effect", job["committed"]),
        ("Rows overwritten", job["erased"]),
        ("Job", f"number {job['job']}, with {job['requests']:,} requests in all"),
        ("Job started", job["started"]),
        ("Job finished", job["finished"]),
        ("Rows deleted by the job", job["rows"]),
        ("Chunks that held them", job["cells"]),
        ("Chunks read", job["cells_read"]),
        ("Bytes read", job["bytes_read"]),
        ("Bytes written", job["bytes_written"]),
    )
    text = escape(receipt["statement"])
    return f"<h2>What was done</h2>\n<p>{text}</p>\n{_table(rows)}"


def _models(receipt: Mapping[str, Any]) -> str:
    models, retired = receipt["job"]["models"], receipt["job"].get("retired", [])
    if not models and not retired:
        return "<h2>Models</h2>\n<p>No model of this data set was there.</p>\n"
    failures = receipt["job"].get("update_failures", [])
    rows = [(f"Failed at {shown(f['at'])}", f"model {f['model']}: {f['error']}") for f in failures]
    rows += [(f"Retired at {shown(m['at'])}", f"model {m['model']}, all versions") for m in retired]
    told = _table(rows) if rows else ""
    return f"<h2>Models</h2>\n{told}" + "".join(map(_model, models))


def _model(model: Mapping[str, Any]) -> str:
    recommended = {None: None, True: "train it anew", False: "none"}
    share = model.get("share_deleted")
    rows = (
        ("Algorithm", model["algorithm"]),
        ("Version", f"{model['version_before']} destroyed, {model['version']} in its place"),
        ("Method", model.get("method")),
        ("Provenance", model.get("kind")),
        ("What happened", _because(model)),
        ("Exact or approximate", model["exactness"]),
        ("Change of the parameters", model.get("change")),
        ("Estimated distance to a retrain", model.get("estimate")),
        ("Deleted since the first fit", None if share is None else f"{share * _PERCENT:.3g}%"),
        ("Recommendation", recommended[model.get("retrain_recommended")]),
        ("Rows it depends on", f"{model['rows']:,}, {model['rows_before']:,} before"),
        ("Digest before", model["digest_before"]),
        ("Digest", model["digest"]),
    )
    return f"<h3>{escape(model['model'])}</h3>\n{_table(rows)}"


def _because(model: Mapping[str, Any]) -> str:
    return f"{model['action']}: {model['reason']}" if model.get("reason") else model["action"]


def _verified(receipt: Mapping[str, Any]) -> str:
    done = receipt.get("verification")
    if done is None:
        text = "The job read back what it wrote before this receipt was issued."
        return f"<h2>How it was verified</h2>\n<p>{text}</p>\n"
    back = done["read_back"]
    rows = [
        ("Read back", f"{back['slots']:,} erased rows, {back['versions']:,} new model versions"),
        ("Asked for", done["verify"]),
        ("Outcome", done["outcome"]),
        ("What was done", done["what"]),
        ("When", done["at"]),
    ]
    rows += [(f"Model {m['model']}", _compared(m)) for m in done["models"]]
    if (scan := done["scan"]) is not None:
        rows.append(("Searched", f"{scan['files']:,} files, {scan['bytes']:,} bytes"))
        rows += [("Not searched", text) for text in scan["skipped"]]
    rows += [(f"Failed at {shown(f['at'])}", f["problem"]) for f in done["earlier_failures"]]
    return f"<h2>How it was verified</h2>\n{_table(rows)}"


def _compared(model: Mapping[str, Any]) -> str:
    if "exact" in model:
        return "bit for bit a retrain" if model["exact"] else "not what a retrain gives"
    return f"{shown(model['distance'])} from a retrain, {shown(model['estimate'])} estimated"


def _outside(receipt: Mapping[str, Any]) -> str:
    texts = receipt.get("limits")
    if not texts:
        return ""
    return f"<h2>What is outside this receipt</h2>\n{_list(texts)}"


def _signed(receipt: Mapping[str, Any]) -> str:
    signature = receipt.get("signature")
    if signature is None:
        text = "This receipt is not signed: the workspace had no key when it was issued."
        return f'<h2>Signature</h2>\n<p class="warning">{text}</p>\n'
    rows = (
        ("Algorithm", signature["algorithm"]),
        ("Key", signature["key"]),
        ("Signature", signature["value"]),
    )
    text = (
        "The signature is of the receipt's JSON, which follows; this page is a rendering of it. "
        "Save it to a file and check it with: expunge receipt verify FILE --public-key KEY"
    )
    source = escape(json.dumps(receipt, indent=2, ensure_ascii=False))
    return f"<h2>Signature</h2>\n{_table(rows)}<p>{text}</p>\n<pre>{source}</pre>\n"
