#!/bin/sh
# `make cluster`: starts a Dask scheduler and two Dask workers on this machine, with TLS, runs the jobs of this folder, shows
# them, and stops everything. The argument is the folder of the programs of the environment of yamlsched.
set -eu
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"
address=tls://127.0.0.1:${PORT:-8786}
scratch=$(mktemp -d)
started=""

stop() {
    trap - EXIT
    for pid in $started; do    # the workers before the scheduler: without it, they may never end
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
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

# one certificate for all, which is its own authority; in /etc/dask of a real cluster each machine has its own
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=dask -keyout "$scratch/key.pem" -out "$scratch/cert.pem" 2>"$scratch/openssl.log"
cat >"$scratch/dask.yaml" <<EOF
scheduler-address: $address
distributed:
  comm:
    require-encryption: true
    tls:
      ca-file: $scratch/cert.pem
      scheduler: &own {cert: $scratch/cert.pem, key: $scratch/key.pem}
      worker: *own
      client: *own
EOF
export DASK_CONFIG="$scratch/dask.yaml"

"$bin/yamlsched" db start >/dev/null
dsn=$("$bin/yamlsched" db dsn)   # the Dask workers have it in their environment: it is never sent to them

echo "a Dask scheduler at $address, and two Dask workers, of which one has two GPUs, or says so"
dask="timeout --kill-after=5 1d .venv/bin/dask"   # what does not end 5 seconds after SIGTERM is killed
$dask scheduler --host 127.0.0.1 --port "${address##*:}" --no-dashboard >"$scratch/scheduler.log" 2>&1 &
started=$!
for place in plain gpu; do
    set -- --name "$place" --nthreads 4 --no-nanny --no-dashboard --local-directory "$scratch"
    [ "$place" = plain ] || set -- "$@" --resources GPU=2
    PATH="$bin:$PATH" YAMLSCHED_DSN=$dsn PLACE="Dask worker $place" $dask worker "$@" >"$scratch/$place.log" 2>&1 &
    started="$! $started"
done

step sync
created=$(step enqueue train_model)
echo "$created"
step enqueue train_model
step enqueue clean_up
sleep 10    # a run is due for a worker that must be started once it could be claimed for 10 seconds
step tick   # as cron does each minute: it executes clean_up, and starts workers for the others
while "$bin/yamlsched" runs --job train_model --format json | grep -qE '"status": "(queued|running)"'; do
    sleep 1
    "$bin/yamlsched" tick >/dev/null
done
step status
step runs
step show "$(echo "$created" | sed -n 's/^run \([0-9]*\) .*/\1/p')"
