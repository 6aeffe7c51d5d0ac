#!/usr/bin/env bash
# Fills in the recipes for other package managers (packaging/recipes) with the files of a release: OUT/recipes.
#
# usage: scripts/recipes.sh OUT       (OUT: what scripts/dist.sh made)
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: scripts/recipes.sh OUT}
version=$(scripts/version.sh)
tarball=$out/anyring-$version-x86_64-linux.tar.gz
sum256=$(sha256sum <"$tarball") sum512=$(sha512sum <"$tarball")
mkdir -p "$out/recipes"
for recipe in packaging/recipes/*.in; do
  name=$(basename "$recipe" .in)
  sed "s/@VERSION@/$version/g; s/@SHA256@/${sum256%% *}/; s/@SHA512@/${sum512%% *}/" "$recipe" >"$out/recipes/$name"
done
echo "$out/recipes"
