#!/usr/bin/env bash
# Writes constraints.txt: what pip resolves today for the project with all its extras, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check)

echo "== a fresh environment"
"${PYTHON:-python3.11}" -m venv "$scratch/venv"
echo "== resolving and installing everything (more than a gigabyte with Spark)"
"${pip[@]}" install '.[messaging,spark,dev]'

# Only what stands on `name==version` lines: no address of an index or of a folder ever gets into the file.
echo "# The exact versions that the tests run on. Made by: make constraints" >"$scratch/constraints.txt"
"${pip[@]}" freeze --exclude airflow-provider-pawnqueue | grep -E '^[A-Za-z0-9._-]+==[^ @]+$' >>"$scratch/constraints.txt"
cp "$scratch/constraints.txt" constraints.txt
echo "== constraints.txt: $(grep -c == constraints.txt) versions"
