#!/usr/bin/env bash
# A throw-away Ceph cluster with an S3 gateway, on 127.0.0.1 only: one monitor, one manager, one OSD in memory, radosgw.
#
#   ceph.sh DIRECTORY MON_V1_PORT MON_V2_PORT GATEWAY_PORT ACCESS_KEY SECRET_KEY
#
# Stays in the foreground. Creates DIRECTORY/ready once the gateway knows the user; ends all its daemons, by pid, when it
# is sent SIGTERM or SIGINT, or when one of them ends. DIRECTORY must be empty.
# Debian: apt-get install --no-install-recommends ceph-mon ceph-osd ceph-mgr radosgw ceph-common
set -euo pipefail

if (( $# != 6 )); then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 64
fi
home=$(realpath "$1") mon_v1=$2 mon_v2=$3 gateway=$4 access_key=$5 secret_key=$6
host=127.0.0.1
export CEPH_CONF=$home/ceph.conf
daemons=()

launch() {  # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$home/log/$name.out" 2>&1 &
    daemons+=("$!")
}

stop_all() {
    trap - EXIT TERM INT
    # Without a farewell: all of it is in memory, and the gateway's takes seconds.
    kill -KILL "${daemons[@]}" 2>/dev/null || true
    wait "${daemons[@]}" 2>/dev/null || true
}

until_true() {  # SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if (( SECONDS > deadline )); then
            echo "gave up waiting for: $*" >&2
            return 1
        fi
        sleep 0.1
    done
}

port_is_open() { (exec 3<>"/dev/tcp/$host/$1"); }
osd_is_up() { ceph osd stat --connect-timeout 5 | grep -q '1 up'; }

write_configuration() {  # CLUSTER_ID
    cat >"$CEPH_CONF" <<CONF
[global]
fsid = $1
public_addr = $host
cluster_addr = $host
mon_host = [v2:$host:$mon_v2,v1:$host:$mon_v1]
mon_initial_members = solo
mon_data = $home/mon
mgr_data = $home/mgr
osd_data = $home/osd
run_dir = $home/run
log_file = $home/log/\$name.log
pid_file = $home/run/\$name.pid
admin_socket = $home/run/\$name.asok

# Nobody else can reach it: no authentication between the daemons.
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_allow_insecure_global_id_reclaim = true
ms_mon_client_mode = crc secure

# One OSD is a whole cluster.
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 2000
mon_data_avail_crit = 1
mgr_initial_modules =

# In memory, and with room.
osd_objectstore = memstore
memstore_device_bytes = 4294967296
memstore_page_set = false
osd_memory_target = 1073741824

[client.rgw.solo]
rgw_data = $home/gateway
rgw_frontends = beast endpoint=$host:$gateway
rgw_thread_pool_size = 128
rgw_gc_max_objs = 8
CONF
}

start_monitor() {  # CLUSTER_ID
    monmaptool --create --fsid "$1" --enable-all-features \
        --addv solo "[v2:$host:$mon_v2,v1:$host:$mon_v1]" "$home/monmap"
    ceph-mon -i solo --mkfs --monmap "$home/monmap"
    launch mon ceph-mon -i solo -f
    until_true 30 ceph mon stat --connect-timeout 5
}

start_osd() {
    local id
    id=$(cat /proc/sys/kernel/random/uuid)
    timeout 30 ceph osd new "$id"
    ceph-osd -i 0 --mkfs --osd-uuid "$id"
    launch osd ceph-osd -i 0 -f
    until_true 60 osd_is_up
}

start_gateway() {
    launch gateway radosgw -n client.rgw.solo -f
    until_true 60 port_is_open "$gateway"
    radosgw-admin user create --uid=test --display-name=test \
        --access-key="$access_key" --secret-key="$secret_key"
}

trap stop_all EXIT
trap 'exit 143' TERM INT
mkdir -p "$home"/{mon,mgr,osd,gateway,log,run}
cluster_id=$(cat /proc/sys/kernel/random/uuid)
write_configuration "$cluster_id"
start_monitor "$cluster_id"
launch mgr ceph-mgr -i solo -f
start_osd
start_gateway
touch "$home/ready"
wait -n "${daemons[@]}"
echo "a daemon ended by itself" >&2
exit 1
