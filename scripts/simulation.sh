#!/usr/bin/env bash
# Builds the simulation, plants bugs in it, and runs seeds.
#
# usage: scripts/simulation.sh TARGET-FOLDER RUNS
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --target-dir "$1" -p anyring-simulation --features simulated
simulation=$1/debug/anyring-simulation
"$simulation" planted --runs 60 --steps 200
"$simulation" run --seed 0 --runs 20 --twice
"$simulation" run --seed 0 --runs "$2"
