#!/bin/sh
# Install Debian's rabbitmq-server so that the tests can start real nodes of their own.
#
# Starts no broker: neither now nor at the next boot. A broker that is there already is left as it is.
# Exit status: 0 installed (now or before), 3 it can't be installed here, for the reason printed.
set -eu

server=/usr/lib/rabbitmq/bin/rabbitmq-server
policy=/usr/sbin/policy-rc.d
log=$(mktemp)
saved=
ours=no

cleanup() {
    if [ "$ours" = yes ]; then
        rm -f "$policy"
        if [ -n "$saved" ]; then mv "$saved" "$policy"; fi
    fi
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 3' HUP INT TERM

give_up() {
    echo "install-rabbitmq: cannot install rabbitmq-server: $1" >&2
    exit 3
}

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

last_error() {
    grep -E '^(E|Err):?' "$log" | tail -n 1 || true
}

if [ -x "$server" ]; then
    echo "install-rabbitmq: rabbitmq-server is installed"
    exit 0
fi
command -v apt-get >/dev/null 2>&1 || give_up "there is no apt-get on this system"
[ "$(id -u)" -eq 0 ] || give_up "this needs root"

export DEBIAN_FRONTEND=noninteractive
apt="apt-get -q -y -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120"
# apt-get update exits 0 when it could not reach a mirror; the old lists may still do, so only
# the installation decides.
$apt update >"$log" 2>&1 || true
update_error=$(last_error)
apt-get -s --no-install-recommends install rabbitmq-server >"$log" 2>&1 ||
    give_up "${update_error:-$(last_error)}"

# What was not there before is not to run afterwards; what was there keeps its state.
new_units=
installed rabbitmq-server || new_units=rabbitmq-server.service
installed erlang-base || new_units="$new_units epmd.service epmd.socket"

# The package's postinst starts the broker unless this policy forbids it.
if [ -e "$policy" ]; then
    saved=$(mktemp "$policy.XXXXXX")
    mv "$policy" "$saved"
fi
ours=yes
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

$apt --no-install-recommends install rabbitmq-server >"$log" 2>&1 || give_up "$(last_error)"
[ -x "$server" ] || give_up "the package has no $server"

if command -v systemctl >/dev/null 2>&1; then
    for unit in $new_units; do
        if ! systemctl disable "$unit" >"$log" 2>&1; then
            echo "install-rabbitmq: note: could not disable $unit: $(tail -n 1 "$log")" >&2
        fi
    done
fi
echo "install-rabbitmq: rabbitmq-server $(dpkg-query -W -f='${Version}' rabbitmq-server) installed"
