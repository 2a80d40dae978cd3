#!/bin/sh
# `make cluster`: starts a Dask scheduler and two Dask workers on this machine, runs the schedule of this folder on them,
# shows the runs, and stops everything. The argument is the folder of the programs of a Python environment.
set -eu
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"
address=$(sed -n 's/.*address: "\([^"]*\)".*/\1/p' schedules.yaml)
scratch=$(mktemp -d)
started=""

stop() {
    trap - EXIT
    for pid in $started; do kill -KILL "$pid" 2>/dev/null || true; done   # they hold nothing that must be kept
    for pid in $started; do wait "$pid" 2>/dev/null || true; done
    "$bin/yamlsched" db stop >/dev/null
    rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM

step() {
    echo
    echo "\$ yamlsched $*"
    "$bin/yamlsched" "$@"
}

"$bin/yamlsched" db start >/dev/null
dsn=$("$bin/yamlsched" db dsn)   # the Dask workers have it in their environment: it is never sent to them

echo "a Dask scheduler at $address, and two Dask workers; one has a GPU, or says so"
"$bin/dask" scheduler --host 127.0.0.1 --port "${address##*:}" --no-dashboard >"$scratch/scheduler.log" 2>&1 &
started="$started $!"
for place in plain gpu; do
    set -- "$address" --name "$place" --nthreads 2 --no-nanny --no-dashboard --local-directory "$scratch"
    [ "$place" = plain ] || set -- "$@" --resources GPU=1
    YAMLSCHED_DSN=$dsn PLACE="Dask worker $place" "$bin/dask" worker "$@" >"$scratch/$place.log" 2>&1 &
    started="$started $!"
done

step validate
step sync
for part in 1 2 3 4; do step enqueue score_customers --payload "{\"part\": $part}"; done
step enqueue train_model
created=$(step enqueue train_model)
echo "$created"
step enqueue clean_up
step work   # it ends when all attempts have begun on the cluster: any later worker writes their outcomes
while "$bin/yamlsched" runs --status running --format json | grep -q '"id"'; do
    sleep 1
    "$bin/yamlsched" work
done
step runs
step doctor
step show "$(echo "$created" | sed -n 's/^run \([0-9]*\) .*/\1/p')"
