-- The output of running attempts: a table.
-- oldest_supported: 3

-- The end of what an attempt has printed, as of the latest renewal of its lease. It is deleted when the attempt ends: what is
-- kept is in attempt_outputs. Of an attempt that was lost, it stays.
create table yamlsched.running_outputs (
    run_id        bigint not null references yamlsched.job_runs (id) on delete cascade,
    attempt       integer not null,
    worker        text not null,
    written_at    timestamptz not null,
    omitted_bytes bigint not null check (omitted_bytes >= 0),  -- before `output`
    output        text not null,
    primary key (run_id, attempt)
);
