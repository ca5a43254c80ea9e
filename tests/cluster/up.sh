#!/usr/bin/env bash
# Starts a real Kubernetes with S3 beside it, in a network namespace of its own: nothing meets the host's interfaces.
#
#   up.sh DIR                         API server, controllers, scheduler, S3 and one node
#   CONTROL_PLANE_ONLY=1 up.sh DIR    without the node: pods are made but never run
#
# DIR keeps keys, data and logs; what an earlier cluster in DIR held is removed, its keys excepted.
#   DIR/kubectl ...                   from anywhere; everybody else has to be inside the namespace:
#   DIR/run/namespace                 its name: nsenter --net=/run/netns/NAME ...
#   DIR/admin.kubeconfig, DIR/s3.env  how to reach the API server and S3 from there
#   NS                                the namespace's name, where the one made from DIR is not wanted
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${1:?usage: up.sh DIR}
# shellcheck source=tests/cluster/lib.sh
source "$here/lib.sh"
[[ $(id -u) == 0 ]] || die "a cluster needs root: namespaces, mounts, cgroups"
(( ${#DIR} < 85 )) || die "$DIR: too long for a path with sockets in it"

"$here/packages.sh" "$([[ ${CONTROL_PLANE_ONLY:-} ]] && echo control-plane || echo node)"
bin=$("$here/build.sh")
mkdir -p "$DIR"
chmod 700 "$DIR"
"$here/down.sh" "$DIR"
cd "$DIR"
rm -rf etcd s3 logs run kubelet ipam containerd
mkdir -p etcd logs run s3/curateevo pki
ln -s "$bin" run/bin
echo "$NS" >run/namespace
printf '#!/bin/sh\nexec nsenter --net=/run/netns/%q %q --kubeconfig %q "$@"\n' \
  "$NS" "$bin/kubectl" "$DIR/admin.kubeconfig" >kubectl
chmod +x kubectl
trap '(( $? == 0 )) || "$here/down.sh" "$DIR"' EXIT

# ---- the namespace: the node's address on a bridge; ClusterIPs must be routable from the node too

ip netns add "$NS"
inside sh -euc "
  ip link set lo up
  sysctl -qw net.ipv4.ip_forward=1
  ip link add node0 type bridge
  ip addr add $NODE_IP/24 dev node0
  ip link set node0 up
  ip route add $SERVICES dev node0"

# ---- keys: one authority, tokens for the administrator and the node, S3's keys

certificate() {  # name, subject, names, usage
  openssl req -newkey rsa:2048 -nodes -keyout "pki/$1.key" -out "pki/$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "pki/$1.csr" -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 365 -out "pki/$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=%s\n' "$3" "$4") 2>/dev/null
}
kubeconfig() {  # user, token
  cat >"$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $DIR/pki/ca.crt}}]
users: [{name: $1, user: {token: $2}}]
contexts: [{name: test, context: {cluster: test, user: $1}}]
current-context: test
EOF
}
if [[ ! -f pki/done ]]; then
  openssl req -x509 -newkey rsa:2048 -nodes -keyout pki/ca.key -out pki/ca.crt -days 365 -subj /CN=test-ca 2>/dev/null
  certificate apiserver /CN=kube-apiserver \
    "IP:$NODE_IP,IP:${SERVICES%.*}.1,IP:127.0.0.1,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local" \
    serverAuth
  certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet DNS:apiserver clientAuth
  certificate kubelet /CN=node0 "IP:$NODE_IP,DNS:node0" serverAuth
  openssl genrsa -out pki/sa.key 2048 2>/dev/null
  openssl rsa -in pki/sa.key -pubout -out pki/sa.pub 2>/dev/null
  admin=$(openssl rand -hex 16) node=$(openssl rand -hex 16)
  printf '%s,admin,admin,system:masters\n%s,system:node:node0,node0,system:nodes\n' "$admin" "$node" >pki/tokens.csv
  kubeconfig admin "$admin"
  kubeconfig node "$node"
  cat >s3.env <<EOF
AWS_ACCESS_KEY_ID=test
AWS_SECRET_ACCESS_KEY=$(openssl rand -hex 16)
AWS_DEFAULT_REGION=us-east-1
AWS_ENDPOINT_URL=http://$NODE_IP:7070
EOF
  touch pki/done
fi

# ---- the control plane and S3

in_ns=(nsenter "--net=/run/netns/$NS")
kubectl() { "$DIR/kubectl" "$@"; }

# shellcheck source=/dev/null
source s3.env
start s3 "${in_ns[@]}" env "ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID" "ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY" \
  "$bin/versitygw" --port "${AWS_ENDPOINT_URL#http://}" posix "$DIR/s3"
start etcd "${in_ns[@]}" "$bin/etcd" --data-dir "$DIR/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380
start kube-apiserver "${in_ns[@]}" "$bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
  --advertise-address "$NODE_IP" --secure-port 6443 --cert-dir "$DIR/pki" \
  --tls-cert-file "$DIR/pki/apiserver.crt" --tls-private-key-file "$DIR/pki/apiserver.key" \
  --client-ca-file "$DIR/pki/ca.crt" --kubelet-certificate-authority "$DIR/pki/ca.crt" \
  --kubelet-client-certificate "$DIR/pki/apiserver-kubelet.crt" \
  --kubelet-client-key "$DIR/pki/apiserver-kubelet.key" --kubelet-preferred-address-types InternalIP \
  --service-cluster-ip-range "$SERVICES" --service-account-issuer https://kubernetes.default.svc \
  --service-account-key-file "$DIR/pki/sa.pub" --service-account-signing-key-file "$DIR/pki/sa.key" \
  --token-auth-file "$DIR/pki/tokens.csv" --authorization-mode Node,RBAC --allow-privileged \
  --enable-admission-plugins NodeRestriction
within 60 kubectl get --raw /readyz
start kube-controller-manager "${in_ns[@]}" "$bin/kube-controller-manager" --kubeconfig "$DIR/admin.kubeconfig" \
  --service-account-private-key-file "$DIR/pki/sa.key" --root-ca-file "$DIR/pki/ca.crt" \
  --use-service-account-credentials --leader-elect=false
start kube-scheduler "${in_ns[@]}" "$bin/kube-scheduler" --kubeconfig "$DIR/admin.kubeconfig" --leader-elect=false
within 60 kubectl get serviceaccount default
within 20 inside bash -c "exec 3<>/dev/tcp/$NODE_IP/7070"
if [[ ${CONTROL_PLANE_ONLY:-} ]]; then
  echo "control plane up: $DIR/kubectl" >&2
  exit 0
fi

# ---- the node's containerd: in a mount namespace, which the kubelet joins. What both keep at places that can't be
# changed (pods' networks, sockets, logs) is in there too: two nodes don't meet, and nothing of it is left behind.

mkdir -p cni
cat >cni/10-bridge.conflist <<EOF
{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$DIR/ipam", "ranges": [[{"subnet": "$PODS"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
EOF
cat >containerd.toml <<EOF
version = 2
root = "$DIR/containerd"
state = "$DIR/run/containerd"
[grpc]
  address = "$DIR/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/run/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # for machines without CAP_SYS_RESOURCE
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$DIR/cni"
EOF
start containerd "${in_ns[@]}" unshare --mount --propagation private sh -euc '
  mount --make-rshared /
  for folder in /run/netns /run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers; do
    mkdir -p $folder
    mount -t tmpfs tmpfs $folder
  done
  exec containerd --config "$1"' sh "$DIR/containerd.toml"
within 60 ctr -a containerd.sock version
pause=run/pause  # its image: one file, packed by hand
mkdir "$pause"
tar -C "$bin" --owner 0 --group 0 --numeric-owner -cf "$pause/layer.tar" pause
cat >"$pause/config.json" <<EOF
{"architecture": "$(dpkg --print-architecture)", "os": "linux", "config": {"Entrypoint": ["/pause"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum <"$pause/layer.tar" | cut -d' ' -f1)"]}}
EOF
echo '[{"Config": "config.json", "RepoTags": ["localhost/pause:1"], "Layers": ["layer.tar"]}]' >"$pause/manifest.json"
tar -C "$pause" -c manifest.json config.json layer.tar | ctr -a containerd.sock -n k8s.io images import - >/dev/null

# ---- kubelet, kube-proxy, DNS, NetworkPolicy

if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
  mkdir -p "/sys/fs/cgroup/$ID"
else  # v1: one hierarchy for each controller
  for group in /sys/fs/cgroup/*/cgroup.procs; do mkdir -p "${group%/*}/$ID"; done
fi
: >resolv.conf
cat >kubelet.yaml <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$ID
oomScoreAdj: 0
containerRuntimeEndpoint: unix://$DIR/containerd.sock
podLogsDir: $DIR/logs/pods
resolvConf: $DIR/resolv.conf
tlsCertFile: $DIR/pki/kubelet.crt
tlsPrivateKeyFile: $DIR/pki/kubelet.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $DIR/pki/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
failSwapOn: false
evictionHard: {memory.available: 200Mi, nodefs.available: 2%, imagefs.available: 2%}
imageGCHighThresholdPercent: 100  # images can't be pulled again
EOF
cat >proxy.yaml <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $DIR/admin.kubeconfig}
hostnameOverride: node0
conntrack: {maxPerCore: 0}
clusterCIDR: $PODS
EOF
cat >Corefile <<EOF
.:53 {
    errors
    health 127.0.0.1:8081
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $DIR/admin.kubeconfig
    }
    cache 5
}
EOF
start kubelet "${in_ns[@]}" "--mount=/proc/$(pid_of containerd)/ns/mnt" "$bin/kubelet" --config "$DIR/kubelet.yaml" \
  --kubeconfig "$DIR/node.kubeconfig" --hostname-override node0 --node-ip "$NODE_IP" --root-dir "$DIR/kubelet" \
  --cert-dir "$DIR/kubelet/pki"
within 90 kubectl wait --for=condition=Ready node/node0 --timeout=2s
start kube-proxy "${in_ns[@]}" "$bin/kube-proxy" --config "$DIR/proxy.yaml"
start coredns "${in_ns[@]}" "$bin/coredns" -conf "$DIR/Corefile"
kubectl apply -f - >/dev/null <<EOF
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: $DNS_IP, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-node, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: [$NODE_IP], conditions: {ready: true}}]
EOF
start kube-router "${in_ns[@]}" "$bin/kube-router" --kubeconfig "$DIR/admin.kubeconfig" \
  --master "https://$NODE_IP:6443" --hostname-override node0 --run-router=false --run-service-proxy=false \
  --run-loadbalancer=false --run-firewall=true --service-cluster-ip-range "$SERVICES"
within 60 inside sh -c 'iptables-save | grep -q KUBE-ROUTER'
within 60 inside sh -c 'iptables-save -t nat | grep -q KUBE-SERVICES'
echo "cluster up: $DIR/kubectl" >&2
