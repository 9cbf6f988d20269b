"""Tables of the ledger for the life of requests, and for holds: what came with versions 3 and 4."""

from __future__ import annotations

OPEN_REQUESTS = (
    "CREATE UNIQUE INDEX open_requests ON requests (data_set, unit_hash) WHERE state != 'cancelled'"
)
"""A unit has one request, unless it was cancelled: then it can be asked anew."""
REQUEST_TABLES = f"""
{OPEN_REQUESTS};
CREATE INDEX requests_by_unit ON requests (data_set, unit_hash);
CREATE INDEX requests_by_state ON requests (state, due);
CREATE INDEX requests_by_reference ON requests (reference) WHERE reference IS NOT NULL;
CREATE TABLE asked_references (
    reference TEXT NOT NULL, data_set TEXT NOT NULL, units_hash TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (reference, data_set)
) WITHOUT ROWID;
CREATE TABLE other_references (
    reference TEXT NOT NULL, request INTEGER NOT NULL, PRIMARY KEY (reference, request)
) WITHOUT ROWID;
CREATE TABLE holds (
    id INTEGER PRIMARY KEY, data_set TEXT NOT NULL, ground TEXT NOT NULL, placed TEXT NOT NULL,
    until TEXT, state TEXT NOT NULL, ended TEXT
);
CREATE TABLE held_units (
    data_set TEXT NOT NULL, unit_hash TEXT NOT NULL, hold INTEGER NOT NULL, unit INTEGER,
    PRIMARY KEY (data_set, unit_hash, hold)
) WITHOUT ROWID;
CREATE INDEX held_units_by_hold ON held_units (hold);
"""
