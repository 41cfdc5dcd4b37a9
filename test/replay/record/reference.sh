#!/usr/bin/env bash
# Starts etcd and kube-apiserver as the recordings need them, and runs a command while
# they run, with KUBECONFIG and KELSON_REFERENCE set to the file of an administrator.
#
#   test/replay/record/reference.sh PEERS default|versions|gates|emulated COMMAND...
#
# PEERS is a folder with the programs etcd and kube-apiserver. default is for most of the
# recordings, versions for testdata/versions, gates for testdata/gates, emulated for
# testdata/emulated. All listen on 127.0.0.1, on free ports; everything that they write is
# removed at the end.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
peers=$(realpath "$1") mode=$2
shift 2

here=$(realpath "$(dirname "$0")")
flags=()
case $mode in
default) ;;
versions) flags+=(--runtime-config api/all=true) ;;
gates)
	# The gates are those of TestReplayGates.
	gates=$(sed -n '/^func TestReplayGates/,/^	} {/p' "$here/../replay_test.go" | grep -o '"[A-Za-z0-9]*"' | tr -d '"' | sed 's/$/=true/' | paste -sd,),DRAResourcePoolStatus=true
	flags+=(--runtime-config api/all=true --feature-gates "$gates" --disable-admission-plugins ServiceAccount)
	;;
emulated) flags+=(--emulated-version 1.35 --min-compatibility-version 1.35) ;;
*) echo "unknown mode $mode" >&2 && exit 2 ;;
esac

work=$(mktemp -d)
pids=()
stop() {
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill "${pids[i]}" 2>/dev/null && wait "${pids[i]}" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap stop EXIT

# Three ports on which nobody listens, below those that the system hands out.
ports=()
for _ in {1..1000}; do
	[ ${#ports[@]} -lt 3 ] || break
	port=$((20000 + RANDOM % 12000))
	[[ " ${ports[*]-} " == *" $port "* ]] && continue
	(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue
	ports+=("$port")
done
client=http://127.0.0.1:${ports[0]} peer=http://127.0.0.1:${ports[1]} server=https://127.0.0.1:${ports[2]}

"$peers/etcd" --data-dir "$work/etcd" --unsafe-no-fsync --listen-client-urls "$client" --advertise-client-urls "$client" \
	--listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$work/etcd.log" 2>&1 &
pids+=($!)

# Recordings of expired revisions need the first ones to be gone before kube-apiserver
# begins to cache what comes after them.
for _ in {1..120}; do
	[[ $(curl -s -m 5 "$client/health" || true) != *true* ]] || break
	sleep 0.5
done
for _ in {1..10}; do
	revision=$(curl -s "$client/v3/kv/put" -d '{"key":"eA==","value":"eA=="}' | grep -o '"revision":"[0-9]*"' | grep -o '[0-9]*')
done
curl -s "$client/v3/kv/compaction" -d "{\"revision\":\"$revision\",\"physical\":true}" >/dev/null

openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
openssl rsa -in "$work/sa.key" -pubout -out "$work/sa.pub" 2>/dev/null
token=$(openssl rand -hex 16)
(umask 077 && echo "$token,admin,admin,\"system:masters\"" >"$work/tokens.csv")

# The advertised address may not be a loopback one; nobody connects to it.
"$peers/kube-apiserver" --etcd-servers "$client" --bind-address 127.0.0.1 --secure-port "${ports[2]}" \
	--advertise-address 192.0.2.1 --cert-dir "$work/certs" --authorization-mode Node,RBAC --token-auth-file "$work/tokens.csv" \
	--service-account-issuer https://kubernetes.default.svc.cluster.local \
	--service-account-key-file "$work/sa.pub" --service-account-signing-key-file "$work/sa.key" \
	--service-cluster-ip-range 10.0.0.0/16 --allow-privileged "${flags[@]}" >"$work/kube-apiserver.log" 2>&1 &
pids+=($!)

for _ in {1..240}; do
	kill -0 "${pids[1]}" 2>/dev/null || { tail -n 20 "$work/kube-apiserver.log" >&2; exit 1; }
	ready=$(curl -sk -m 5 -H "Authorization: Bearer $token" "$server/readyz" || true)
	[ "$ready" != ok ] || break
	sleep 0.5
done
[ "${ready-}" = ok ] || { echo "kube-apiserver is not ready" >&2; tail -n 20 "$work/kube-apiserver.log" >&2; exit 1; }

export KUBECONFIG=$work/kubeconfig KELSON_REFERENCE=$work/kubeconfig
(umask 077 && cat >"$KUBECONFIG") <<EOF
apiVersion: v1
kind: Config
clusters:
- name: reference
  cluster: {server: "$server", insecure-skip-tls-verify: true}
users:
- name: admin
  user: {token: "$token"}
contexts:
- name: reference
  context: {cluster: reference, user: admin}
current-context: reference
EOF
"$@"
