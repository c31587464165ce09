#!/usr/bin/env bash
# Everything that a machine without a network needs, in one directory with checksums.
#
#     deploy/pack.sh OUT BUNDLE [DATASTORE]
#
# Run it from a checkout, on a machine with the same Python version and processor as the target. EXTRAS chooses what is
# taken along (default cpu,server,datastore). An existing OUT is left alone.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//;2,8p' "$0" >&2; exit 2; }
out=$1 bundle=$2 datastore=${3:-}
[ ! -e "$out" ] || { echo "$out exists: give a new place" >&2; exit 1; }
[ -f "$bundle/manifest.json" ] || { echo "$bundle is no bundle: make one with sssd export" >&2; exit 1; }
[ -z "$datastore" ] || [ -f "$datastore" ] || { echo "no datastore at $datastore" >&2; exit 1; }
staged=$(mktemp -d "$(dirname "$out")/.pack.XXXXXX")
trap 'rm -rf "$staged"' EXIT
${PYTHON:-python3} -m pip wheel --quiet --disable-pip-version-check --wheel-dir "$staged/wheels" \
    "$here[${EXTRAS:-cpu,server,datastore}]"
cp -r "$bundle" "$staged/bundle"
[ -z "$datastore" ] || cp "$datastore" "$staged/datastore.store"
cp "$here/deploy/install.sh" "$here/deploy/sssd.service" "$here/deploy/serve.yaml" "$here/deploy/keys.yaml" "$staged/"
(cd "$staged" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum > SHA256SUMS)
chmod 755 "$staged"
mv "$staged" "$out"
trap - EXIT
echo "$out"
