# make run    a phase diagram with real text marked on it, in a few minutes
# make test   lint, types and tests
# make bench  timings, as ratios within one run

PYTHON ?= python3
BIN := .venv/bin
OUT ?= runs/phase
TOPICS := runs/python_topics.txt
CORPUS ?= $(TOPICS)

.PHONY: run test slow bench clean

.venv: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; set PYTHON to one."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[notebooks]" --group dev
	@touch .venv

$(TOPICS): | .venv
	@mkdir -p $(@D)
	@$(BIN)/python -c 'from pydoc_data.topics import topics; print("\n".join(topics.values()))' > $@

run: .venv $(filter $(TOPICS),$(CORPUS))
	$(BIN)/imir phase --blocks 16 --x rare_fraction=0.01:1:16 --y variability=0:0.98:16 \
		--until 2e5 --corpus $(CORPUS) --out $(OUT)
	@echo "The figure is $(OUT)/phase.png"

test: .venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10

slow: .venv
	$(BIN)/pytest -m slow

bench: .venv
	$(BIN)/pytest benchmarks -s
	$(BIN)/imir bench --write README.md

clean:
	rm -rf .venv runs
