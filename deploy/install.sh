#!/usr/bin/env bash
# Install from the directory that pack.sh made; nothing is fetched.
#
#     ./install.sh PREFIX        for example /opt/sssd
#
# Checks every file, makes a virtual environment at PREFIX, and tries the bundle on this machine.
set -euo pipefail
[ $# -eq 1 ] || { sed -n 's/^# \{0,1\}//;2,6p' "$0" >&2; exit 2; }
prefix=$1
[ ! -e "$prefix" ] || { echo "$prefix exists: remove it, or give another place" >&2; exit 1; }
cd "$(dirname "$0")"
sha256sum --quiet --check SHA256SUMS || { echo "the medium is damaged: copy it again" >&2; exit 1; }
trap 'rm -rf "$prefix"; echo "nothing was installed" >&2' ERR
${PYTHON:-python3} -m venv "$prefix"
"$prefix/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links wheels \
    "sssd[${EXTRAS:-cpu,server,datastore}]"
"$prefix/bin/sssd" serve --engine bundle --check
echo "$prefix/bin/sssd"
