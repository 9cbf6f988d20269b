"""Receipts as pages: they say it all, load nothing, and escape everything."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from receipt_workspace import at, command, issue, leaves, problem, read
from support import Cli

from expunge.jobs.receipt_page import page
from expunge.jobs.statements import STANDARD_LIMIT, limits


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workspace that has issued two signed receipts; tests leave it as it is."""
    root = tmp_path_factory.mktemp("issued")
    issue(root)
    return root


class Page(HTMLParser):
    """Reads a page: its tags must match, and it must load and run nothing."""

    EMPTY = ("meta", "br", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag not in ("script", "link", "img", "iframe", "object", "base", "form"), tag
        for name, _ in attrs:
            assert name in ("lang", "charset", "class", "scope"), name
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            assert "url(" not in data and "@import" not in data
        self.text += data


def test_the_page_says_it_all_and_loads_nothing(issued: Path, tmp_path: Path) -> None:
    command(issued, "receipt", "show", "R00000001", "--html", "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "http" not in text and text.startswith("<!DOCTYPE html>")
    found, receipt = Page(text), read(issued)
    assert {"h1", "h2", "h3", "table", "ul"} <= found.tags
    model = receipt["job"]["models"][0]
    for wanted in (
        receipt["unit_hash"],
        receipt["data"],
        receipt["statement"],
        *receipt["limits"],
        model["digest"],
        f"{model['version_before']} destroyed, {model['version']} in its place",
        "exact",
        "bit for bit a retrain",
        receipt["signature"]["key"],
        receipt["signature"]["value"],
        *("What was asked", "What was done", "How it was verified", "What is outside"),
    ):
        assert wanted in found.text, wanted
    # The JSON that is printed on it is the receipt that was signed.
    source = found.text[found.text.index('{\n  "schema"') :]
    assert problem(issued, source.strip()) is None


def test_an_approximate_model_on_the_page() -> None:
    model = {
        "model": "m",
        "data": "t",
        "algorithm": "logistic",
        "kind": "exact",
        "method": "delta",
        "action": "updated",
        "reason": "why",
        "exactness": "approximate",
        "change": 0.5,
        "estimate": 0.00123,
        "share_deleted": 0.25,
        "retrain_recommended": True,
        "rows": 8,
        "version_before": 1,
        "version": 2,
        "digest_before": "0",
        "digest": "1",
        "rows_before": 9,
    }
    receipt = {
        "schema": 1,
        "receipt": "R00000001",
        "request": 1,
        "data": "t",
        "unit_hash": "0",
        "received": "then",
        "issued": "now",
        "statement": "done",
        "job": {
            "job": 1,
            "requests": 1,
            "rows": 1,
            "cells": 1,
            "cells_read": 1,
            "bytes_read": 1,
            "bytes_written": 1,
            "started": "a",
            "committed": "b",
            "erased": "c",
            "finished": "d",
            "models": [model],
        },
    }
    text = Page(page(receipt)).text
    for wanted in ("approximate", "0.00123", "delta", "25%", "train it anew", "updated: why"):
        assert wanted in text
    assert STANDARD_LIMIT in limits([model], True)
    assert STANDARD_LIMIT not in limits([{**model, "algorithm": "sparse-logistic"}], True)


def test_everything_on_the_page_is_escaped(issued: Path) -> None:
    hostile = "<script>alert('&\"')</script>"
    receipt = read(issued)
    for path in leaves(receipt):
        if isinstance(at(receipt, path), str):
            at(receipt, path[:-1])[path[-1]] = hostile
    receipt["job"]["models"][0]["algorithm"] = hostile
    found = Page(page(receipt))
    assert found.text.count(hostile) > 20


def test_files_are_not_overwritten(issued: Path, cli: Cli) -> None:
    given = ("-w", issued / "ws", "receipt", "show", "R00000001", "--out")
    assert "exists" in cli(*given, issued / "receipt.json", code=2)
    assert "no such folder" in cli(*given, issued / "nowhere" / "receipt.json", code=2)
