#!/usr/bin/env bash
# A Kubernetes node that is only namespaces: file system, network and control groups, then every component of the
# cluster. Started by `make e2e`, which has prepared what lies in WORK; not to be called by hand.
#
#   node.sh start WORK PROGRAMS GROUP   makes the control groups and the namespaces, and goes on in them
#
# What components and plugins use at fixed places (/etc, /opt, /run, /var/lib, /var/log) is the node's own there. The
# machine's settings that are no namespace's are not written: see `fake_settings`. All ends with the first process.
set -euo pipefail
mode=$1 work=$2 programs=$3
node=$work/node
logs=$work/logs

cgroup_mounts() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts; }

# In every hierarchy a group of our own, which becomes the root for all that runs here: the agent of the node then finds
# its pods in /kubepods, as everywhere.
enter_group() {
    local mount file
    while read -r mount; do
        mkdir -p "$mount/$1"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$mount/cgroup.clone_children" ] || [ ! -f "$mount/$file" ] || cat "$mount/$file" >"$mount/$1/$file"
        done
        [ -e "$mount/cgroup.clone_children" ] || hand_down "$mount"
        echo $$ >"$mount/$1/cgroup.procs"
    done < <(cgroup_mounts)
}

# Lets the groups below a group of version 2 have its controllers, as far as the machine allows it.
hand_down() {
    local controller controllers
    read -ra controllers <"$1/cgroup.controllers"
    for controller in "${controllers[@]}"; do
        echo "+$controller" >"$1/cgroup.subtree_control" 2>/dev/null || true
    done
}

mount_files() {
    local place
    for place in etc opt run var/lib; do mount --bind "$node/$place" "/$place"; done
    mkdir -p "$logs/var-log"
    mount --bind "$logs/var-log" /var/log
    # Detached, not covered: runc and the kubelet take the first line of the list of mounts that fits.
    umount -l /sys
    umount -l /proc
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
}

# The kubelet and the API server want these values and would set them for the whole machine.
fake_settings() {
    local path value
    mkdir -p "$node/settings"
    while read -r path value; do
        echo "$value" >"$node/settings/${path##*/}"
        mount --bind "$node/settings/${path##*/}" "/proc/sys/$path"
    done <<'SETTINGS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS
}

# Mounted anew, so that the own group is the root.
mount_groups() {
    local controllers place
    if ! grep -qv '^0::' /proc/self/cgroup; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        # A group that hands controllers down must not hold processes.
        mkdir /sys/fs/cgroup/init
        echo 1 >/sys/fs/cgroup/init/cgroup.procs
        hand_down /sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        place=/sys/fs/cgroup/${controllers#name=}
        if [ -z "$controllers" ]; then
            mkdir /sys/fs/cgroup/unified
            mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
            continue
        fi
        mkdir "$place"
        if [[ $controllers == name=* ]]; then
            mount -t cgroup -o "none,$controllers" cgroup "$place"
        else
            mount -t cgroup -o "$controllers" cgroup "$place"
        fi
        [[ $controllers != *,* ]] || for one in ${controllers//,/ }; do ln -s "$controllers" "/sys/fs/cgroup/$one"; done
    done </proc/self/cgroup
}

# keep NAME COMMAND...: starts a component again whenever it ends, as a real node does. Its process id, as seen in
# here, is in /run/NAME.pid.
keep() {
    local name=$1 code
    shift
    while :; do
        "$@" >>"$logs/$name.log" 2>&1 </dev/null &
        echo $! >"/run/$name.pid"
        code=0
        wait $! || code=$?
        echo "$(date +%T) $name ended with $code" >>"$logs/restarts.log"
        sleep 0.5
    done
}

until_open() { until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do sleep 0.05; done; }
# It includes the built-in roles, without which the controllers end at once.
until_api() {
    until "$programs/kubectl" --kubeconfig "$kube/admin.kubeconfig" get --raw=/readyz >/dev/null 2>&1; do sleep 0.2; done
}

api_server() {
    until_open 2379
    keep kube-apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=443 \
        --advertise-address=198.51.100.1 --allow-privileged --profiling=false \
        --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
        --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
        --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$pki/service-accounts.pub" \
        --service-account-signing-key-file="$pki/service-accounts.key" \
        --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
}

controllers() {
    until_api
    keep kube-controller-manager "$programs/kube-controller-manager" \
        --kubeconfig="$kube/kube-controller-manager.kubeconfig" --use-service-account-credentials \
        --service-account-private-key-file="$pki/service-accounts.key" --root-ca-file="$pki/ca.crt" \
        --leader-elect=false --bind-address=127.0.0.1 --profiling=false
}

scheduler() {
    until_api
    keep kube-scheduler "$programs/kube-scheduler" --kubeconfig="$kube/kube-scheduler.kubeconfig" \
        --leader-elect=false --bind-address=127.0.0.1 --profiling=false
}

kubelet() {
    until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
    until_open 443
    keep kubelet "$programs/kubelet" --config="$kube/kubelet.yaml" --kubeconfig="$kube/kubelet.kubeconfig" \
        --hostname-override=node-1 --node-ip=198.51.100.1
}

case $mode in
start)
    enter_group "$4"
    # Private first: a machine whose mounts are shared must not see ours.
    exec setpriv --pdeathsig KILL unshare --mount --net --pid --ipc --uts --cgroup --fork --kill-child \
        --propagation private bash "$0" inside "$work" "$programs"
    ;;
inside)
    hostname node-1
    mount_files
    fake_settings
    mount_groups
    # Volumes that follow mounts of the node need a shared mount above them.
    mount --make-rshared /
    mkdir -p /run/netns /run/lock
    # shellcheck source=/dev/null
    . "$work/network.sh"
    kube=/etc/kubernetes pki=/etc/kubernetes/pki
    export PATH="$programs:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin" HOME=/var/lib
    cd /
    keep etcd "$programs/etcd" --data-dir=/var/lib/etcd --unsafe-no-fsync --listen-peer-urls=http://127.0.0.1:2380 \
        --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 &
    keep containerd "$programs/containerd" --config=/etc/containerd.toml &
    api_server &
    controllers &
    scheduler &
    kubelet &
    # Adopts and collects what the components leave behind.
    wait
    ;;
esac
