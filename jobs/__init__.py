"""Decides and records: the workspace, the ledger, training and deletion jobs, the command line."""
