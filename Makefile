.PHONY: demo test coverage

PYTHON ?= python3.11

demo: .venv/demo
	.venv/bin/expunge demo

test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	# Two processes, a file of tests in one of them.
	.venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

# Apart from the tests: tracing lines costs a third of their processor time.
coverage: .venv/test
	.venv/bin/pytest --cov --cov-report=term:skip-covered $(PYTEST)

.venv/demo: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --editable .
	touch $@

.venv/test: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --editable '.[test]'
	touch $@
