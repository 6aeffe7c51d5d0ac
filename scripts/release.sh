#!/usr/bin/env bash
# Does every step of a release except pushing: checks, files, notes and the tag. docs/release.md says what comes before
# and after.
#
# usage: [ANYRING_SIGNING_KEY=KEY] scripts/release.sh [RELEASE]
#
# The files are in target/out, with NOTES.md and the recipes for other package managers. With RELEASE the build in
# RELEASE is packed instead of a new one, to try the other steps. Otherwise there are files for aarch64, too, built by
# Debian's cross compiler. The script prints the commands that push, and leaves
# them to you.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
out=$target/out
version=$(scripts/version.sh)
tag=v$version
fail() {
  echo "release: $*" >&2
  exit 1
}

[ -z "$(git status --porcelain)" ] || fail "there are changes that no commit has: a release is of a commit"
# The top section, which has a day: what is still collected is no release.
grep -m1 '^## ' CHANGELOG.md | grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" ||
  fail "CHANGELOG.md does not begin with [$version] and its day"
for file in action.yml packaging/ci/gitlab.yml packaging/Dockerfile{,.release,.scratch,.example} \
  packaging/{kubernetes,postgresql}.yaml README.md docs/{postgresql,release,start}.md crates/anyring/Cargo.toml; do
  grep -qF "$version" "$file" || fail "$file names another version than $version"
done
if git rev-parse -q --verify "refs/tags/$tag" >/dev/null && [ "$(git rev-list -n 1 "$tag")" != "$(git rev-parse HEAD)" ]; then
  fail "the tag $tag is of another commit"
fi

scripts/dist.sh "$target" "$out" "$@"
[ $# != 0 ] || KEEP=1 CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu scripts/dist.sh "$target" "$out"
scripts/recipes.sh "$out"
awk '/^## /{ if (seen++) exit; next } seen' CHANGELOG.md >"$out/NOTES.md"
[ -s "$out/NOTES.md" ] || fail "CHANGELOG.md says nothing of $version"
git rev-parse -q --verify "refs/tags/$tag" >/dev/null || git tag --annotate --message "anyring $version" "$tag"
echo "release: $tag is made; now: git push origin $tag"
