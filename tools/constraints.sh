#!/usr/bin/env bash
# Writes a file of constraints: what pip resolves today for the project, in an environment of its own.
# Without an argument constraints.txt, with all extras; with `compat`, tests/compat/constraints.txt, with the oldest Airflow;
# with `next`, tests/compat/constraints-next.txt, with the newest pre-release of Airflow that was tried.
set -euo pipefail
cd "$(dirname "$0")/.."

target=constraints.txt
wanted=('.[messaging,spark,dev]')
made_by="make constraints"
if [ "${1:-}" = compat ]; then
  target=tests/compat/constraints.txt
  wanted=('.[messaging,dev]' -r tests/compat/versions.txt)
  made_by="make constraints FOR=compat"
elif [ "${1:-}" = next ]; then
  target=tests/compat/constraints-next.txt
  wanted=('.[messaging,dev]' -r tests/compat/versions-next.txt)
  made_by="make constraints FOR=next"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check)

echo "== a fresh environment"
"${PYTHON:-python3.11}" -m venv "$scratch/venv"
echo "== resolving and installing everything for $target (more than a gigabyte with Spark)"
"${pip[@]}" install "${wanted[@]}"

# Only what stands on `name==version` lines: no address of an index or of a folder ever gets into the file.
echo "# The exact versions that the tests run on. Made by: $made_by" >"$scratch/constraints.txt"
"${pip[@]}" freeze --exclude airflow-provider-pawnqueue --exclude pawnqueue-engine | grep -E '^[A-Za-z0-9._-]+==[^ @]+$' >>"$scratch/constraints.txt"
cp "$scratch/constraints.txt" "$target"
echo "== $target: $(grep -c == "$target") versions"
