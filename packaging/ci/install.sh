#!/usr/bin/env bash
# A step of action.yml: fetches a release, checks it against its SHA256SUMS, and makes it the following steps' `anyring`.
#
# environment: ANYRING_VERSION, ANYRING_URL (empty: GitHub), RUNNER_TEMP, GITHUB_PATH, GITHUB_OUTPUT
set -euo pipefail

case $(uname -sm) in
  "Linux x86_64" | "Linux aarch64") ;;
  *)
    echo "::error::anyring is for x86-64 and aarch64 Linux, not for $(uname -sm)"
    exit 1
    ;;
esac
name=anyring-$ANYRING_VERSION-$(uname -m)-linux
url=${ANYRING_URL:-https://github.com/anyring/anyring/releases/download/v$ANYRING_VERSION}
cd "$RUNNER_TEMP"
for file in SHA256SUMS "$name.tar.gz"; do
  curl --fail --silent --show-error --location --retry 3 --output "$file" "$url/$file"
done
# Fails if the file is not named there, too.
grep "  $name.tar.gz\$" SHA256SUMS | sha256sum --check --strict --quiet
tar -xzf "$name.tar.gz"
echo "$RUNNER_TEMP/$name/bin" >>"$GITHUB_PATH"
echo "library=$RUNNER_TEMP/$name/lib/anyring/libanyring.so" >>"$GITHUB_OUTPUT"
"$name/bin/anyring" doctor
