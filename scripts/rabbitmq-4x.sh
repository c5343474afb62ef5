#!/usr/bin/env bash
# A real RabbitMQ 4.x node from Debian's newer releases, in a chroot: trixie has 4.0, forky 4.3.
#
#   rabbitmq-4x.sh DIR 40|43 install           make DIR/root40 or DIR/root43 (as root; about 2 minutes, 500 MB)
#   rabbitmq-4x.sh DIR 40|43 start NODE [ERL]  start a node whose files are in DIR/NODE/mnesia; prints its port
#                                              ERL: a line of advanced configuration, as [{rabbit,[{msg_store_file_size_limit,1048576}]}].
#   rabbitmq-4x.sh DIR 40|43 stop|kill NODE    stop it cleanly, or by SIGKILL
#   rabbitmq-4x.sh DIR 40|43 ctl NODE ...      rabbitmqctl
set -euo pipefail
dir=$(realpath -m "$1"); version=$2; verb=$3; node=${4:-node}
case $version in 40) suite=trixie ;; 43) suite=forky ;; *) echo "40 or 43" >&2; exit 2 ;; esac
root=$dir/root$version; home=$dir/$node; port=56$version; epmd=43$version

inside() { # run a command in the root, with DIR at /nodes, in a mount namespace of its own
  unshare --mount -- /bin/bash -c '
    root=$1; dir=$2; shift 2
    mount --make-rprivate /
    mount --bind /proc "$root/proc"; mount --bind /dev "$root/dev"
    mkdir -p "$root/nodes"; mount --bind "$dir" "$root/nodes"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"' \
    - "$root" "$dir" HOME=/nodes/home \
    RABBITMQ_NODENAME="node$version@localhost" RABBITMQ_DIST_PORT="257$version" \
    RABBITMQ_MNESIA_BASE="/nodes/$node/mnesia" RABBITMQ_LOG_BASE="/nodes/$node/log" \
    RABBITMQ_PID_FILE="/nodes/$node/pid" RABBITMQ_GENERATED_CONFIG_DIR="/nodes/$node/gen" \
    RABBITMQ_CONFIG_FILE="/nodes/$node/rabbitmq.conf" RABBITMQ_CONF_ENV_FILE="/nodes/$node/env.conf" \
    RABBITMQ_ADVANCED_CONFIG_FILE="/nodes/$node/advanced.config" \
    RABBITMQ_ENABLED_PLUGINS_FILE="/nodes/$node/enabled_plugins" \
    ERL_EPMD_PORT="$epmd" ERL_EPMD_ADDRESS=127.0.0.1 \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none" \
    RABBITMQ_CTL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none" "$@"
}
gone() { while kill -0 "$1" 2>/dev/null; do sleep 0.05; done; rm -f "$home/pid"; }

case $verb in
install)
  command -v debootstrap >/dev/null || { apt-get update -qq; apt-get install -y -qq debootstrap; }
  mirror=$(awk '/^URIs:/ { print $2; exit } /^deb / { print $2; exit }' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null)
  mkdir -p "$dir"
  debootstrap --variant=minbase "$suite" "$root" "$mirror" /usr/share/debootstrap/scripts/sid
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"; chmod +x "$root/usr/sbin/policy-rc.d"
  [ -f "$root/etc/hosts" ] || echo '127.0.0.1 localhost' >"$root/etc/hosts"
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  chroot "$root" apt-get install -y --no-install-recommends rabbitmq-server
  chroot "$root" dpkg-query -W rabbitmq-server erlang-base
  ;;
start)
  mkdir -p "$home/log" "$home/gen" "$home/mnesia" "$dir/home"
  printf 'listeners.tcp.1 = 127.0.0.1:%s\nloopback_users = none\nlog.console = false\nvm_memory_high_watermark.relative = 0.4\ndisk_free_limit.absolute = 50MB\n' "$port" >"$home/rabbitmq.conf"
  echo "${5:-[].}" >"$home/advanced.config"; echo '[].' >"$home/enabled_plugins"; : >"$home/env.conf"
  (exec 3<>"/dev/tcp/127.0.0.1/$epmd") 2>/dev/null || inside /usr/bin/epmd -port "$epmd" -address 127.0.0.1 -daemon
  inside /usr/bin/setsid /usr/lib/rabbitmq/bin/rabbitmq-server >"$home/stdout" 2>&1 </dev/null &
  for _ in $(seq 1 240); do
    sleep 0.5
    grep -q "Kernel pid terminated" "$home/stdout" && { tail -n 3 "$home/stdout" >&2; exit 1; }
    [ -f "$home/pid" ] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
  done
  inside /usr/lib/rabbitmq/bin/rabbitmqctl await_startup --timeout 120 >/dev/null
  echo "$port"
  ;;
stop) pid=$(cat "$home/pid"); inside /usr/lib/rabbitmq/bin/rabbitmqctl stop "/nodes/$node/pid" >/dev/null; gone "$pid" ;;
kill) pid=$(cat "$home/pid"); kill -9 "$pid"; gone "$pid" ;;
ctl) shift 4; inside /usr/lib/rabbitmq/bin/rabbitmqctl "$@" ;;
*) echo "install, start, stop, kill or ctl" >&2; exit 2 ;;
esac
