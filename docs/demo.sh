#!/bin/sh
# What `make run` shows: the shipped schedule at work on the embedded database, whatever the hour. A new job has no
# past, so a few runs are enqueued by hand; the tick is the one that crontab would start each minute.
set -eu
yamlsched=${1:-yamlsched}

step() {
    echo
    echo "\$ yamlsched $*"
    "$yamlsched" "$@"
}

"$yamlsched" db start >/dev/null              # one server for all the steps
trap '"$yamlsched" db stop >/dev/null' EXIT
trap 'exit 130' INT TERM

step validate
step sync
for job in cleanup_nightly refresh_cache weekly_activity invoice_reminders billing_check sales_report fetch_rates; do
    step enqueue "$job"
done
step tick
step runs
echo
echo "That was real: see var/ for the mails, the reports, the cache. Go on with:"
echo "    $yamlsched status          health at a glance"
echo "    $yamlsched show 1          a run with its attempts"
echo "    $yamlsched next            the coming slots"
