.PHONY: demo test

demo: .venv/demo
	.venv/bin/expunge demo

test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/pytest --cov --cov-report=term:skip-covered $(PYTEST)

.venv/demo: pyproject.toml
	python3.11 -m venv .venv
	.venv/bin/pip install --quiet --editable .
	touch $@

.venv/test: pyproject.toml
	python3.11 -m venv .venv
	.venv/bin/pip install --quiet --editable '.[test]'
	touch $@
