-- The tables, functions and views of yamlsched: version 1. Later versions are in sql/migrations.
create schema if not exists yamlsched;

-- The versions of the tables: this file is the first, and each migration makes the next.
create table yamlsched.migrations (
    version    integer primary key,
    name       text not null,
    checksum   text not null,  -- sha256 of the file: a released one is never edited
    applied_at timestamptz not null default clock_timestamp()
);

-- The identity of the database. Every key that is passed to a provider contains it, so that no two
-- databases pass the same key. A restored backup keeps it; a copy that is used beside its original
-- needs `yamlsched db identity --new`.
create table yamlsched.database_identity (
    only_row   boolean primary key default true check (only_row),
    identity   uuid not null default gen_random_uuid(),
    created_at timestamptz not null default clock_timestamp()
);
insert into yamlsched.database_identity default values;

-- One row per namespace, locked while a file is applied, with the file in use: the one that was
-- applied last. Before the first one its columns are null.
create table yamlsched.namespaces (
    namespace         text primary key,
    hash              text,                      -- sha256 of the bytes
    environment       text not null default '',  -- '' if none is set
    -- the newest release and time zone data that applied it
    yamlsched_version text,
    tzdata_version    text,
    host              text,                      -- of the place that applied it, with its path
    path              text,
    commit            text,
    applied_at        timestamptz,
    retention         jsonb not null default '{}',
    -- the queues of the file, and who serves them: {queue: open | dedicated | started}
    queues            jsonb not null default '{}',
    housekept_at      timestamptz,               -- when retention last ran
    prune_failing_since timestamptz,             -- since when it could not, until somebody acts
    prune_error       text,
    swept_at          timestamptz not null default '-infinity',
    repairs           bigint not null default 0
);

-- The files that were in use: one that is superseded comes back only when no other place has the
-- file in use. Remembered for 400 days.
create table yamlsched.files (
    namespace     text not null,
    hash          text not null,
    environment   text not null,
    last_used_at  timestamptz not null,
    primary key (namespace, hash, environment)
);

-- The places that sync: a host and the path of its file, as given. A place counts for the file that
-- it has until expected_until.
create table yamlsched.hosts (
    namespace         text not null,
    host              text not null,
    path              text not null,
    include           text[] not null default '{}',  -- its patterns, of its latest tick
    is_named          boolean not null,  -- an option or variable names the namespace
    hash              text,              -- of its latest valid file; null: it never had one
    environment       text not null,     -- of its latest tick, like the versions
    yamlsched_version text not null,
    tzdata_version    text not null,
    since             timestamptz not null,  -- when it, or the place that it follows, got the file
    refused_hash      text,              -- of a file that is invalid, or of another environment
    refused_at        timestamptz,
    errors            text[],            -- the first ones
    -- which queues it serves, '*' for all that are not dedicated: {queue: {seen_at, until}}
    queues            jsonb not null default '{}',
    -- the jobs whose code, program or variables are missing here: {job: {reason, since}}
    cannot_start      jsonb not null default '{}',
    first_seen_at     timestamptz not null,
    seen_at           timestamptz not null,
    expected_until    timestamptz not null,
    primary key (host, path, namespace)
);


-- Jobs

-- The jobs, as last applied from schedules.yaml, which was checked before. A job that leaves the
-- file is retired, never deleted.
create table yamlsched.job_definitions (
    id             bigint generated always as identity primary key,
    namespace      text not null,
    job_type       text not null,
    -- this or command; both for display only: a worker uses its own file
    handler        text,
    command        text[] not null default '{}',
    env            jsonb not null default '{}',
    cwd            text,
    stdin          text,
    exit_codes     jsonb not null default '{}',
    payload        jsonb not null default '{}',
    queue          text not null default 'default',  -- where its runs execute
    schedule       text,               -- the cron expression; null: runs only when enqueued
    timezone       text not null,
    -- high, normal, low: see job_runs
    priority       smallint not null default 2,
    max_attempts   integer not null,
    backoff        jsonb not null,
    timeout        interval not null,
    kill_after     interval not null default '10 seconds',
    lease          interval not null,
    overlap        text not null,  -- wait, skip, allow
    catchup        text not null,  -- latest, all, none
    catchup_window interval not null,
    spread         interval not null,
    on_dead        text[] not null default '{}',  -- names of jobs, like the next two: see `hook`
    on_failure     text[] not null default '{}', on_success text[] not null default '{}',
    output         jsonb not null default '{"keep": "failed"}',
    description    text not null default '',
    owner          text not null default '',
    tags           text[] not null default '{}',
    enabled        boolean not null,   -- by the file and the environment
    effective_from timestamptz not null,  -- slots after this instant count
    last_slot_at   timestamptz,        -- the cursor: every slot up to here is accounted for
    next_slot_at   timestamptz,        -- the next slot to account for; null: none is owed
    paused_at      timestamptz,        -- no sync changes these five
    paused_until   timestamptz, paused_by text, paused_reason text,
    -- of a pause by pause_after: how many runs in a row had died; null: an operator paused the job
    paused_after   integer,
    retired_at     timestamptz,        -- when the job left the file
    created_at     timestamptz not null default clock_timestamp(),
    applied_at     timestamptz not null default clock_timestamp(),  -- when a file changed it last
    updated_at     timestamptz not null default clock_timestamp(),
    requires_env   text[] not null default '{}',
    limit_name     text,  -- a key of `limits` in the file
    limit_by       text[] not null default '{}',  -- keys of the payload, by whose values it counts
    after          text[] not null default '{}',  -- names of jobs
    -- calendars: [{"name": "holidays", "dates": [...], "until": ...}]
    skip_on        jsonb not null default '[]',
    only_on        jsonb not null default '[]',
    on_upstream_failure text not null default 'wait',  -- wait, skip, run
    -- ended, succeeded; null: it does not wait for what the runs of `after` enqueue
    after_enqueued text,
    -- now or before: the ends of its runs are handed on
    is_followed    boolean not null default false,
    notify         text[] not null default '{}',  -- names of targets
    start_within   interval not null default '15 minutes',
    finish_within  interval,     -- null: no limit
    pause_after    integer,      -- null: never
    resumed_at     timestamptz,  -- when an operator resumed the job last
    slots_error    text,  -- why its due slots could not be written; null: they could
    -- one run for each combination of values: {"by": [keys], "while": "unfinished"}
    unique_rule    jsonb,
    expires_after  interval,     -- an enqueued run does not start later than this; null: it does
    unique (namespace, job_type)
);

-- Whether a job's runs may not be claimed now: it is disabled, paused or retired.
create function yamlsched.is_closed(d yamlsched.job_definitions, now timestamptz) returns boolean
    language sql immutable
as $$ select not d.enabled or d.retired_at is not null
    or (d.paused_at is not null and coalesce(d.paused_until > now, true)) $$;

-- An idle tick finds jobs with due slots, and with limits, through indexes, however many there are.
create index job_definitions_due on yamlsched.job_definitions (namespace, next_slot_at)
    where next_slot_at is not null;
create index job_definitions_limit on yamlsched.job_definitions (namespace, limit_name)
    where limit_name is not null;
create index job_definitions_expire on yamlsched.job_definitions (namespace)
    where expires_after is not null;
-- Jobs after whose success there is more to do than to write it.
create index job_definitions_followed on yamlsched.job_definitions (id)
    where is_followed or on_success <> '{}';
create index job_definitions_after_enqueued on yamlsched.job_definitions (namespace)
    where after_enqueued is not null;

-- Write jobs: insert those that are new, update the others in place. Each job is an object with the
-- same keys, which are columns. The statement is made from the keys, so that there is no second
-- list of columns, and columns that a newer yamlsched has added keep their value.
create function yamlsched.put_definitions(jobs jsonb) returns void
    language plpgsql
as $$
declare
    given text[] := array(select format('%I', k.key) from jsonb_object_keys(jobs -> 0) as k (key)
        order by k.key);
    kept  text[] := array['namespace', 'job_type', 'created_at', 'effective_from'];
begin
    execute format(
        'insert into yamlsched.job_definitions as d (%s) select %s'
        ' from jsonb_populate_recordset(null::yamlsched.job_definitions, $1) j'
        ' on conflict (namespace, job_type) do update set %s, effective_from = case'
        ' when d.retired_at is null and (d.enabled or not excluded.enabled) and (d.schedule,'
        ' d.timezone) is not distinct from (excluded.schedule, excluded.timezone)'
        ' then d.effective_from else excluded.effective_from end',
        (select string_agg(g.name, ', ') from unnest(given) as g (name)),
        (select string_agg('j.' || g.name, ', ') from unnest(given) as g (name)),
        (select string_agg(g.name || ' = excluded.' || g.name, ', ') from unnest(given) as g (name)
         where g.name <> all (kept)))
    using jobs;
end
$$;


-- Runs

-- One row per slot or enqueue, executed once.
create table yamlsched.job_runs (
    -- First the columns that every row has, of fixed width and without gaps: an update compares all
    -- columns that indexes mention, and finds those after a string or a null by reading the row.
    -- Then in the order in which they change, by a claim and at the end of an attempt: what is
    -- logged of an update starts at the first change.
    id              bigint generated always as identity primary key,
    definition_id   bigint not null references yamlsched.job_definitions (id),
    run_at          timestamptz not null,
    created_at      timestamptz not null default clock_timestamp(),
    max_attempts    integer not null,
    -- attempts before the latest retry: the backoff starts over
    prior_attempts  integer not null default 0,
    -- of attempts in a row that had begun: from the fourth on, each costs an attempt
    releases        integer not null default 0,
    -- 1 high, 2 normal, 3 low
    priority        smallint not null default 2 check (priority between 1 and 3),
    exclusive       boolean not null default false,  -- a slot run of a wait or skip job
    namespace       text not null,
    job_type        text not null,
    payload         jsonb not null default '{}',
    idempotency_key text,
    unique_key      text,              -- see the function; null: there may be others like it
    scheduled_for   timestamptz,       -- the slot; null: enqueued
    parent_id       bigint,            -- the run whose handler enqueued this one
    -- The end of the parent that it reports: its job is in on_dead, on_failure or on_success of
    -- the parent's. Null: the parent's handler enqueued it, or nobody did.
    hook            text check (hook in ('dead', 'failed', 'succeeded')),
    -- W3C: the traceparent of the span that enqueued it, and after a space the tracestate
    trace_context   text,
    attempts        integer not null default 0 check (attempts >= 0),
    -- new for every claim; kept when the lease ends: the last owner
    locked_by       text,
    started_at      timestamptz,       -- of the latest claim
    begun_at        timestamptz,       -- of the first claim that was not returned unstarted
    status          text not null default 'queued' check (status in (
                        'queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')),
    updated_at      timestamptz not null default clock_timestamp(),
    -- Somebody may execute the run until then: the lease, also of one that was cancelled, or
    -- finished by its handler's own transaction, until its worker knows that the handler has ended.
    locked_until    timestamptz,
    finished_at     timestamptz,
    failed_at       timestamptz,       -- of the latest failed attempt
    -- finished_at of dead runs, for an index that does not mention status
    dead_at         timestamptz,
    last_error      text,
    error_type      text,
    result          jsonb,
    -- Of a waiting run the gate at which a claim found no room; null: it may be claimed. Only a
    -- claim (and a pause, and who decides about followers) stores a name, under that gate. Who
    -- makes room, or changes the run, writes null: the next claim looks again.
    blocked_on      text,
    queue           text not null default 'default',  -- workers claim by queue: that of its job
    unreleased      boolean not null default false,  -- it waits for runs of other jobs; see awaits
    -- created by a backfill, or retried before its first attempt: it does not expire
    by_hand         boolean not null default false,
    -- From then on it is late, unless it has begun. Null while it waits for a pause, a run of its
    -- own job or other jobs: who stores such a name in blocked_on clears it, and who ends the wait
    -- sets it anew. An edit of start_within or finish_within counts for new runs.
    late_at         timestamptz,
    finish_by       timestamptz,  -- of a slot, but for backfills: when it is to have succeeded
    -- Of the latest attempt. A peak below zero is a bound: a program that took at most that much
    -- was not larger than the process that started it.
    cpu_seconds     double precision,
    peak_memory_bytes bigint,
    revision        text,  -- the commit of its code, abbreviated, or what YAMLSCHED_REVISION named
    -- A running run has a lease: half-claimed rows cannot be stored.
    constraint running_is_locked check (status <> 'running' or locked_until is not null),
    constraint blocked_only_waiting check (blocked_on is null or finished_at is null),
    constraint finished_iff_final check ((status in ('succeeded', 'dead', 'cancelled'))
        = (finished_at is not null)),
    constraint dead_has_a_time check ((status = 'dead') = (dead_at is not null)),
    -- what waits has an attempt left
    constraint attempts_within_budget check (
        attempts + (status in ('queued', 'failed'))::integer <= max_attempts),
    constraint running_has_an_owner check (status <> 'running'
        or (locked_by is not null and attempts >= 1))
) with (fillfactor = 40);  -- room for the row version of a claim on the same page: no index changes

-- What a run waits for: a slot of another job, and what became of it. A slot of a job that follows
-- others gets its run at once, which is released when what it waits for has ended.
create table yamlsched.awaits (
    run_id          bigint not null references yamlsched.job_runs (id) on delete cascade,
    definition_id   bigint not null references yamlsched.job_definitions (id),
    -- the latest one of that job at the run's own slot; null: it has had none
    slot            timestamptz,
    upstream_run_id bigint,            -- whose end counted
    -- null: the run waits; "waiting": it was started by force while it did
    outcome         text check (outcome in ('succeeded', 'dead', 'cancelled', 'skipped',
        'waiting')),
    -- of a job with after_enqueued: how many runs that run had enqueued, by their status then
    enqueued        jsonb,
    primary key (run_id, definition_id)
);
-- One row per key, however many ticks race.
create unique index job_runs_key on yamlsched.job_runs (namespace, idempotency_key)
    where idempotency_key is not null;
-- One unfinished run of a job for the values of `unique`, however many sessions enqueue it.
create unique index job_runs_unique on yamlsched.job_runs (unique_key)
    where unique_key is not null and finished_at is null;
create index job_runs_open_exclusive on yamlsched.job_runs (namespace, definition_id, priority,
    run_at, id)
    where finished_at is null and exclusive;
-- Runs of one job by their end, unfinished ones included, for retention and monitoring. Each index
-- slows every finish. So there is no second index by id: a page of one job's history is found
-- through the primary key if the job has many runs, and by sorting if it has few. The next indexes
-- order runs by their death and by their latest failure.
create index job_runs_history on yamlsched.job_runs (definition_id, finished_at, id);
create index job_runs_dead on yamlsched.job_runs (definition_id, dead_at) where dead_at is not null;
-- The runs of a job by their slots.
create index job_runs_slot on yamlsched.job_runs (definition_id, scheduled_for)
    where scheduled_for is not null;
-- The runs of a namespace that died last, of all jobs.
create index job_runs_died on yamlsched.job_runs (namespace, dead_at, definition_id)
    where dead_at is not null;
create index job_runs_failed on yamlsched.job_runs (definition_id, failed_at)
    where failed_at is not null;
-- The runs that a run enqueued, and those of its hooks.
create index job_runs_children on yamlsched.job_runs (parent_id, hook, id)
    where parent_id is not null;
create index job_runs_open_children on yamlsched.job_runs (parent_id, id)
    where parent_id is not null and hook is null and finished_at is null;
-- What may be claimed, and what is executed: a claim changes no index.
create index job_runs_ready on yamlsched.job_runs (namespace, queue, priority, run_at, id)
    where blocked_on is null and finished_at is null;
-- What waits at gates, in the order in which it is offered room.
create index job_runs_blocked on yamlsched.job_runs (namespace, blocked_on, priority, run_at, id)
    where blocked_on is not null and finished_at is null;
create index job_runs_unreleased on yamlsched.job_runs (namespace, definition_id)
    where unreleased and finished_at is null;

create index awaits_open on yamlsched.awaits (definition_id, slot) where outcome is null;
create index awaits_ended on yamlsched.awaits (upstream_run_id) where upstream_run_id is not null;

-- A gate is a row to lock. closed/ID: of a job; no room while that is paused, disabled or retired.
-- job/ID: its slot runs, if overlap is wait or skip. limit/NAME, and of a limit with `by`
-- limit/NAME/VALUE. after/ID: what follows the job waits there. The order of locks: own runs by id,
-- gates by name, then other runs, which are skipped if they are locked. So who holds a gate never
-- waits for a run, and a claim waits for nothing. A sync makes those of jobs and limits.
create table yamlsched.gates (
    namespace text not null,
    name      text not null,
    capacity  integer,                 -- of limit/NAME; null: no bound. The others derive theirs
    -- An edit has skipped runs that another session had locked. The sweep continues it.
    is_edited boolean not null default false,
    primary key (namespace, name)
);
create index gates_edited on yamlsched.gates (namespace, name) where is_edited;

-- A run that executes holds a permit at each gate at which it stands, until nobody may execute it.
-- n: a free number from 1 to the capacity. Two claims that do not see each other's permits take the
-- same number, so that the key makes one run too many impossible, whatever locks there are.
-- -run_id: granted without asking for room: it executed when its gate came to be.
create table yamlsched.permits (
    namespace text not null,
    name      text not null,
    n         bigint not null,
    run_id    bigint not null,
    primary key (namespace, name, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Not with the name: a plan for an empty table would search it by that, and read the whole index.
create index permits_run on yamlsched.permits (run_id);


-- Workers

-- `work`, once or as a loop: a row for each process and queue that it serves. Who starts a worker
-- writes requested_at, before the command; the rest is written by the worker itself. It decides
-- nothing about runs, only the lease does. A worker is live for 60 s after seen_at.
create table yamlsched.workers (
    namespace    text not null,
    id           text not null,        -- locked_by of the runs that it claims begins with it
    queue        text not null,
    host         text,
    path         text,                 -- of its file
    revision     text,                 -- of its code
    requested_at timestamptz,          -- null: nobody requested it
    start_by     timestamptz,          -- when the start counts as failed without a report
    reported_at  timestamptz,          -- of the process that has the id now
    seen_at      timestamptz,
    leaving_at   timestamptz,          -- since then it claims nothing more
    ended_at     timestamptz,
    runs         bigint not null default 0,  -- that it has begun to execute
    error        text,                 -- why its start has failed, or it was lost
    cannot_start jsonb not null default '{}',  -- the jobs that it cannot: {job: reason}
    primary key (namespace, id, queue)
);
create index workers_queue on yamlsched.workers (namespace, queue, ended_at);

-- What is remembered of a queue whose workers are started. Its row is locked by who decides about
-- starts, and by a requested worker that comes: each sees what the others have done.
create table yamlsched.queue_states (
    namespace     text not null,
    queue         text not null,
    failed_starts integer not null default 0,  -- in a row
    failed_at     timestamptz,         -- when the latest one was noticed
    next_start_at timestamptz,         -- no worker is started before
    decided_at    timestamptz,         -- ends before this were counted
    primary key (namespace, queue)
);


-- Attempts

-- One row per failed or lost attempt: the audit trail.
create table yamlsched.job_failures (
    run_id     bigint not null references yamlsched.job_runs (id) on delete cascade,
    attempt    integer not null,
    worker     text not null,
    started_at timestamptz,
    failed_at  timestamptz not null,
    error      text not null,
    error_type text,
    stack      text,
    cpu_seconds double precision,
    peak_memory_bytes bigint,
    revision   text,
    primary key (run_id, attempt)
);

-- The end of what an attempt printed, if its job keeps it. A table of its own, so that nothing else
-- reads past it. An attempt that was released leaves its number to the next one: worker is the
-- claim that the output belongs to.
create table yamlsched.attempt_outputs (
    run_id        bigint not null references yamlsched.job_runs (id) on delete cascade,
    attempt       integer not null,
    worker        text not null,
    ended_at      timestamptz not null,
    omitted_bytes bigint not null,  -- before `output`
    output        text not null,
    primary key (run_id, attempt)
);

-- The end of what an attempt has printed, as of the latest renewal of its lease. It is deleted when
-- the attempt ends: what is kept is in attempt_outputs. Of an attempt that was lost, it stays.
create table yamlsched.running_outputs (
    run_id        bigint not null references yamlsched.job_runs (id) on delete cascade,
    attempt       integer not null,
    worker        text not null,
    written_at    timestamptz not null,
    omitted_bytes bigint not null,  -- before `output`
    output        text not null,
    primary key (run_id, attempt)
);

-- How far attempts have come, as their handlers report it. A table of its own: it is written each
-- second, and the old versions of its rows stay out of job_runs, which claims read. One row per
-- attempt, `worker` as in attempt_outputs.
create table yamlsched.attempt_progress (
    run_id      bigint not null references yamlsched.job_runs (id) on delete cascade,
    attempt     integer not null,
    reported_at timestamptz not null,   -- when this value was written first
    done        double precision not null,
    total       double precision,
    worker      text not null,
    note        text not null,
    primary key (run_id, attempt)
) with (fillfactor = 50);


-- Slots that have no run

-- Slots that were not run, one row per gap, and why.
create table yamlsched.skipped_slots (
    id            bigint generated always as identity primary key,
    definition_id bigint not null references yamlsched.job_definitions (id),
    first_slot    timestamptz not null,
    last_slot     timestamptz not null,
    slots         integer not null,
    reason        text not null
                  check (reason in (
        'overlap', 'late', 'superseded', 'paused', 'disabled', 'retired', 'key_taken', 'upstream',
        'calendar')),
    recorded_at   timestamptz not null default clock_timestamp(),
    detail        text,  -- of upstream: the job, and its run; of calendar: which
    constraint gap_is_a_span check (last_slot >= first_slot),
    unique (definition_id, last_slot)
);

-- Slots that were lost in an outage are recorded after it: reports look for gaps by that time, too.
create index skipped_slots_recorded on yamlsched.skipped_slots (definition_id, recorded_at);

-- What is left of pruned runs: how those of a day ended, and how long the successful ones took. A
-- run belongs to the day of its slot, else of its end, in the time zone of its job then.
create table yamlsched.job_days (
    definition_id bigint not null references yamlsched.job_definitions (id),
    day           date not null,
    succeeded     integer not null,
    retried       integer not null,  -- of these, after a failed attempt
    dead          integer not null,
    cancelled     integer not null,
    seconds       double precision not null,
    longest       double precision not null,  -- seconds
    succeeded_at  timestamptz,  -- the latest end of a success
    histogram     integer[] not null,  -- of the seconds, by the bounds of ask/job_days.py
    primary key (definition_id, day)
);


-- Effects and keys

-- Effects that happen once however often a run is attempted.
create table yamlsched.effects (
    id         bigint generated always as identity primary key,
    namespace  text not null,
    key        text not null,          -- run:<run id>:<name>, or a business key
    run_id     bigint not null,
    attempt    integer not null,
    locked_by  text not null,          -- the claim under which it was entered
    -- new each time a handler enters the effect: the owner of this row
    entry      uuid not null,
    provider_key uuid not null,        -- effect.key: the same however often the effect is repeated
    state      text not null check (state in ('claimed', 'done', 'in_doubt')),
    result     jsonb,
    claimed_at timestamptz not null default clock_timestamp(),
    -- in doubt since; on a done effect: in_doubt="skip" counted it as done
    doubted_at timestamptz,
    done_at    timestamptz,
    unique (namespace, key),
    constraint done_has_a_time check ((state = 'done') = (done_at is not null)),
    constraint doubt_has_a_time check (state <> 'in_doubt' or doubted_at is not null),
    constraint claimed_is_not_doubted check (state <> 'claimed' or doubted_at is null)
);
create index effects_run on yamlsched.effects (run_id);
-- Effects in doubt, for monitoring, among millions of done effects.
create index effects_open on yamlsched.effects (namespace, claimed_at) where state <> 'done';
create index effects_age on yamlsched.effects (namespace, claimed_at);

-- Keys of pruned runs: a key cannot be used again before retention.keys has passed.
create table yamlsched.used_keys (
    namespace       text not null,
    idempotency_key text not null,
    run_id          bigint not null,
    job_type        text not null,
    scheduled_for   timestamptz,
    pruned_at       timestamptz not null default clock_timestamp(),
    primary key (namespace, idempotency_key)
);
create index used_keys_pruned on yamlsched.used_keys (namespace, pruned_at);


-- Files, edits and actions

-- Each file that was applied, and the jobs that it changed: who changed what, and when. Retention
-- keeps them.
create table yamlsched.edits (
    id          bigint generated always as identity primary key,
    namespace   text not null,
    environment text not null,         -- '' if none is set
    hash        text not null,         -- sha256 of the bytes
    host        text not null,         -- that applied it
    path        text not null,
    yamlsched_version text not null,
    -- that changed the file last, or YAMLSCHED_REVISION; null: not known
    commit      text,
    is_dirty    boolean not null default false,  -- the file differs from the commit
    author      text,
    subject     text,
    -- how many were changed: {"added": {"jobs": 12, "first": ["cleanup", ...]}, ...}
    jobs        jsonb not null,
    -- keys outside of jobs that changed, as the file before had them; null: the first file
    before      jsonb,
    after       jsonb not null,
    -- all keys outside of jobs, for the comparison with the next file
    settings    jsonb not null,
    applied_at  timestamptz not null
);
create index edits_trail on yamlsched.edits (namespace, applied_at, id);

-- The jobs that an edit changed. Values that look like secrets are stored as '***', and long ones
-- are cut.
create table yamlsched.edited_jobs (
    edit_id       bigint not null references yamlsched.edits (id) on delete cascade,
    definition_id bigint not null references yamlsched.job_definitions (id) on delete cascade,
    change        text not null,  -- added, changed, retired, returned
    -- the keys that changed; of a retired job all that it set; null: there was no job
    before        jsonb,
    after         jsonb,               -- likewise; null: retired
    primary key (edit_id, definition_id)
);
create index edited_jobs_of_job on yamlsched.edited_jobs (definition_id, edit_id);

-- Actions of operators.
create table yamlsched.operator_actions (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default clock_timestamp(),
    namespace text not null,
    who       text not null,
    verb      text not null,
    target    text not null,           -- run:<id> or job:<name>
    job_type  text,                    -- the job, or that of the run, which may be pruned
    detail    jsonb not null default '{}',
    -- The form of the web page that asked for it, which sets this in its transaction: a form is
    -- carried out once.
    request   uuid default nullif(current_setting('yamlsched.request', true), '')::uuid
);
create index operator_actions_target on yamlsched.operator_actions (namespace, target, id);
-- The audit trail, newest first.
create index operator_actions_trail on yamlsched.operator_actions (namespace, id);
create index operator_actions_request on yamlsched.operator_actions (request, id)
    where request is not null;


-- Notifications

-- The targets of the file in use. Who sends takes a target for a minute, by next_at. A send that
-- fails changes no other row.
create table yamlsched.notify_targets (
    namespace     text not null,
    name          text not null,
    -- for messages of status: senders read the variable's name from the file
    url_env       text not null,
    events        text[] not null,
    -- a minute after the latest message, later after a failure
    next_at       timestamptz not null default '-infinity',
    failing_since timestamptz,         -- when the first send failed since one that did not
    error         text,                -- of the latest one
    primary key (namespace, name)
);

-- What a target was told last and what is so now, of a job or of a problem that is not one job's:
-- no list of events, so nothing piles up. What could not be sent for a day is deleted. Who holds
-- locks of runs and gates takes those of these rows last, in the order of the primary key, and
-- commits.
create table yamlsched.notifications (
    namespace     text not null,
    target        text not null,
    -- the job's name; of a problem its kind, a colon, and its job if it has one
    subject       text not null,
    -- null: a problem
    definition_id bigint references yamlsched.job_definitions (id) on delete cascade,
    -- the latest one in trouble: a success of it or of a later one is the recovery
    slot          timestamptz,
    run_id        bigint,              -- that died last
    dead_at       timestamptz,
    dead_runs     integer not null default 0,  -- that have died since the trouble started
    told_runs     integer not null default 0,  -- of these, those that a message has reported
    -- since when the job is late, or the problem is there; null: it is not
    found_since   timestamptz,
    what          text,                -- the problem
    -- when the trouble started, across recoveries that were not sent
    since         timestamptz not null,
    -- when it has recovered, or the problem was gone; null: it has not
    ended_at      timestamptz,
    recovered_at  timestamptz,         -- the same, and kept when the trouble is back
    -- events that were sent since the last recovery that was sent
    told          text[] not null default '{}',
    quiet_until   timestamptz,         -- a pause after the latest message about trouble
    pause         interval not null default '1 hour',  -- the next one, doubled with each message
    due_at        timestamptz,         -- null: there is nothing to send
    primary key (namespace, target, subject),
    foreign key (namespace, target) references yamlsched.notify_targets on delete cascade
);
create index notifications_due on yamlsched.notifications (namespace, target, due_at)
    where due_at is not null;


-- Enqueueing

-- The error of one run to enqueue, or null.
create function yamlsched.enqueue_fault(job_type text, payload jsonb, key text) returns text
    language sql stable parallel safe
as $$
    select case
        when payload is null or jsonb_typeof(payload) <> 'object' then
            format('payload of job "%s" is not a JSON object: its keys become keyword arguments',
                job_type)
        -- before its text, which may be thousands of times as long
        when exists (
            select from jsonb_array_elements(jsonb_path_query_array(payload,
                            'strict $.** ? (@.type() == "number")')) n,
                        abs(n::numeric) v
            where v >= 1e3000 or scale(v) > 3000) then
            format('payload of job "%s" has a number of over 3,000 digits: pass a string', job_type)
        when octet_length(concat(payload)) > 65536 then  -- a cast would be done by the planner
            format('payload of job "%s" has %s bytes, over the limit of 64 KiB:'
                   ' store the data and pass a reference',
                   job_type, octet_length(concat(payload)))
        when key = '' then
            'the key is empty: pass null for a run without a key'
        when length(key) > 500 then
            format('the key has %s characters, over the limit of 500', length(key))
        when key ~ '[\u0001-\u001f\u007f]' then
            format('the key has the control character U+%s: remove it',
                   lpad(upper(to_hex(ascii(substring(key from '[\u0001-\u001f\u007f]')))), 4, '0'))
        -- for every job name, also of a job that is scheduled later, so that no caller can take the
        -- place of a slot or of a hook's run
        when key ~ ('^\s*[a-z][a-z0-9_]{0,62}:([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?'
                    '|(dead|failed|succeeded):[0-9]+:[0-9]+)\s*$') then
            format('key "%s" has a reserved form: slots and hooks of job "%s" have such keys', key,
                split_part(btrim(key), ':', 1))
    end
$$;

-- The job for which somebody enqueues, or the error that there is none.
create function yamlsched.job_to_enqueue(of_namespace text, name text)
    returns yamlsched.job_definitions
    language plpgsql stable
as $$
declare
    job yamlsched.job_definitions;
begin
    select d.* into job from yamlsched.job_definitions d
    where d.namespace = of_namespace and d.job_type = name and d.retired_at is null;
    if not found then
        raise exception using errcode = 'YS001',
            message = format('no job "%s" in namespace "%s"', name, of_namespace),
            hint = 'A job is known after the first sync of its schedules.yaml, in its namespace.';
    elsif not job.enabled then
        raise exception using errcode = 'YS002',
            message = format('job "%s" is not enabled in schedules.yaml', name);
    end if;
    return job;
end
$$;

-- What one unfinished run of a job has at a time: while it counts, and a hash of the job and of the
-- values of its payload. Null: the job has no `unique`.
create function yamlsched.unique_key(job yamlsched.job_definitions, payload jsonb) returns text
    language sql stable
as $$
    select job.unique_rule ->> 'while' || ':' || encode(sha256(convert_to(jsonb_build_array(
               job.id, job.unique_rule -> 'by', jsonb_agg(payload -> k.key order by k.nth))::text,
               'UTF8')), 'hex')
    from jsonb_array_elements_text(job.unique_rule -> 'by') with ordinality as k (key, nth)
$$;

-- The one that a retry of a run gives it. One that was claimed does not count as waiting again.
create function yamlsched.retry_key(
    r yamlsched.job_runs, job yamlsched.job_definitions, payload jsonb) returns text
    language sql stable
as $$
    select yamlsched.unique_key(job, payload)
    where r.scheduled_for is null
      and not (r.locked_by is not null and job.unique_rule ->> 'while' = 'waiting')
$$;

-- Whether a run is too old to start: it was enqueued, and has not begun within `expires_after`.
create function yamlsched.is_expired(
    r yamlsched.job_runs, job yamlsched.job_definitions, now timestamptz) returns boolean
    language sql immutable
as $$
    select coalesce(r.run_at <= now - job.expires_after and r.begun_at is null
                    and r.scheduled_for is null and not r.by_hand and r.status = 'queued', false)
$$;

-- The unique keys of runs to enqueue, in order; null: the job has no `unique`. A run that has
-- expired loses its own first: it will never be executed. A claim ends it, with all that it holds
-- up.
create function yamlsched.unique_keys(job yamlsched.job_definitions, payloads jsonb[])
    returns text[]
    language plpgsql
as $$
declare
    now  timestamptz := clock_timestamp();
    keys text[];
begin
    if job.unique_rule is null then
        return null;
    end if;
    keys := array(
        select yamlsched.unique_key(job, job.payload || p.payload)
        from unnest(payloads) with ordinality as p (payload, nth) order by p.nth);
    if job.expires_after is not null then
        update yamlsched.job_runs u set unique_key = null, updated_at = now
        where u.id = any (array(
            select r.id from yamlsched.job_runs r
            where r.unique_key = any (keys) and r.finished_at is null
              and yamlsched.is_expired(r, job, now)
            order by r.id for no key update));
    end if;
    return keys;
end
$$;

-- The run that an enqueue finds: that of its key, or 0 if that was pruned; else that with its
-- unique key; null: there is none. `id` is that of a run without either. Stable: as of one instant
-- the key of a run that is being pruned is in one of two tables.
create function yamlsched.enqueued_run(
    of_namespace text, key text, of_unique_key text, id bigint) returns bigint
    language sql stable
as $$
    select case when key is null and of_unique_key is null then id else coalesce(
        (select r.id from yamlsched.job_runs r
         where r.namespace = of_namespace and r.idempotency_key = key),
        (select 0 from yamlsched.used_keys u
         where u.namespace = of_namespace and u.idempotency_key = key),
        (select r.id from yamlsched.job_runs r
         where r.unique_key = of_unique_key and r.finished_at is null)) end
$$;

-- Whether who enqueues may change runs. Inside of enqueue the current user is its owner.
create function yamlsched.is_worker() returns boolean
    language sql stable
as $$
    select has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                               'yamlsched.job_runs', 'update')
$$;

-- The error of the arguments of enqueue_many, or null.
create function yamlsched.arguments_fault(
    job_type text, payloads jsonb[], keys text[], run_at timestamptz, parent_id bigint,
    priority text, delay interval) returns text
    language sql stable
as $$
    select case
        when parent_id is not null and not yamlsched.is_worker() then
            'parent_id is not accepted from an enqueuer:'
            ' run.enqueue() of a worker''s handler sets it'
        when payloads is null then 'the list of payloads is null'
        when cardinality(keys) <> cardinality(payloads) then
            format('%s payloads, but %s keys', cardinality(payloads), cardinality(keys))
        when run_at not between '1970-01-01 00:00Z' and '9999-01-01 00:00Z' then
            format('run_at %s is not between the years 1970 and 9998', run_at)
        when run_at is not null and delay is not null then
            'run_at and delay were both passed: pass one of them'
        when delay not between interval '0' and interval '36525 days' then
            format('delay %s is not between 0 and 100 years', delay)
        when priority not in ('high', 'normal', 'low') then
            format('priority "%s" is not one of high, normal, low', priority)
        else (
            select f.fault
            from unnest(payloads, keys) with ordinality as i (payload, key, nth)
            cross join lateral (
                select yamlsched.enqueue_fault(job_type, i.payload, i.key) as fault offset 0) f
            where f.fault is not null
            order by i.nth limit 1)
    end
$$;

-- Refuse keys that runs of other jobs hold: a mistake in how keys are named, and never a duplicate.
create function yamlsched.refuse_keys(job yamlsched.job_definitions, keys text[]) returns void
    language plpgsql stable
as $$
declare
    held text;
begin
    select r.idempotency_key into held from yamlsched.job_runs r
    where r.namespace = job.namespace and r.idempotency_key = any (keys)
      and r.definition_id <> job.id
    limit 1;
    if found then
        raise exception using errcode = 'YS004',
            message = format('key "%s" is held by a run of another job', held),
            hint = 'Start keys with the name of their job.';
    end if;
end
$$;

-- Enqueue runs of one job, in order. Keys that a payload does not have come from the job's own
-- payload in schedules.yaml. Returns a row for each position (from 1): the run's id, and whether
-- the run was created. An existing run with the same key is returned unchanged, and so is, of a job
-- with `unique`, an unfinished one with the same values; a null id means that the key was used by a
-- run that has been pruned. Every run is checked before the first is written. The function waits
-- for another transaction that enqueues the same: if that commits, its run is returned, and if it
-- rolls back, a run is created.
create function yamlsched.enqueue_many(
    job_type         text,
    payloads         jsonb[],
    idempotency_keys text[] default null,
    -- one in the past counts as now: nothing overtakes what waits
    run_at           timestamptz default null,
    namespace        text default 'default',
    parent_id        bigint default null,
    priority         text default null,  -- high, normal or low; null: the job's
    delay            interval default null,  -- from now, instead of run_at
    trace_contexts   text[] default null     -- one for each payload, as in enqueue
) returns table ("position" integer, run_id bigint, created boolean)
    language plpgsql
    security definer                     -- an enqueuer may call this and touch no table
    set enable_seqscan = off             -- each key is a probe, however small the table was
as $$
#variable_conflict use_variable
declare
    job    yamlsched.job_definitions := yamlsched.job_to_enqueue(namespace, job_type);
    fault  text := yamlsched.arguments_fault(job_type, payloads, idempotency_keys, run_at,
        parent_id, priority, delay);
    due_at timestamptz := greatest(run_at, clock_timestamp() + delay, clock_timestamp());
    ids    bigint[];                     -- one for each position
    uniques text[];
    runs   bigint[];
begin
    if fault is not null then
        raise exception using errcode = 'YS003', message = fault;
    end if;
    ids := array(select nextval('yamlsched.job_runs_id_seq')
                 from generate_series(1, cardinality(payloads)));

    uniques := yamlsched.unique_keys(job, payloads);
    loop
        -- In the order of keys, so that two that enqueue the same keys wait for each other and
        -- never in a circle.
        insert into yamlsched.job_runs
            (id, namespace, definition_id, job_type, payload, idempotency_key, unique_key, run_at,
             late_at, priority, max_attempts, parent_id, trace_context, queue)
        overriding system value
        select i.id, job.namespace, job.id, job.job_type, job.payload || i.payload, i.key,
               i.unique_key, due_at, due_at + job.start_within,
               coalesce(array_position(array['high', 'normal', 'low'], priority), job.priority),
               job.max_attempts, parent_id, case
                   -- one that is not valid is ignored, as W3C's Trace Context asks for
                   when i.context ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}( [ -~]+)?$'
                       and length(i.context) <= 600 then i.context end, job.queue
        from unnest(payloads, idempotency_keys, uniques, ids, trace_contexts[:cardinality(ids)])
            as i (payload, key, unique_key, id, context)
        where yamlsched.enqueued_run(job.namespace, i.key, i.unique_key, null) is null
        order by i.unique_key collate "C", i.key collate "C", i.id
        on conflict do nothing;
        -- A later statement: it sees what the insert has waited for.
        runs := array(
            select yamlsched.enqueued_run(job.namespace, k.key, k.unique_key, k.id)
            from unnest(idempotency_keys, uniques, ids) with ordinality
                as k (key, unique_key, id, nth)
            order by k.nth);
        exit when array_position(runs, null) is null;
    end loop;
    perform yamlsched.refuse_keys(job, idempotency_keys);
    perform pg_notify('yamlsched', job.namespace);
    return query select k.nth::integer, nullif(k.run_id, 0), k.run_id = k.id
                 from unnest(runs, ids) with ordinality as k (run_id, id, nth);
end
$$;

-- Enqueue one run.
create function yamlsched.enqueue(
    job_type        text,
    payload         jsonb default '{}',
    run_at          timestamptz default null,
    idempotency_key text default null,
    namespace       text default 'default',
    priority        text default null,  -- high, normal or low; null: the job's
    delay           interval default null,  -- from now, instead of run_at
    -- W3C: a traceparent, and after a space the tracestate; an invalid one is ignored
    trace_context   text default null
) returns table (run_id bigint, created boolean)
    language sql
    security definer
as $$
    select e.run_id, e.created
    from yamlsched.enqueue_many(
        job_type, array[payload], array[idempotency_key], run_at, namespace, null, priority, delay,
        array[trace_context]) e
$$;


-- Hooks

-- Create the runs of the hooks of some runs, each once, by its key. In the order of their jobs, so
-- that two transactions wait for each other in one order. Not `is_unique`: without a unique key, so
-- that nothing is waited for, and only where none is visible. Returns how many.
create function yamlsched.insert_hooks(run_ids bigint[], is_unique boolean, now timestamptz)
    returns bigint
    language sql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
    with hook as materialized (
        select h, r.id, r.status, r.attempts, r.trace_context,
               case when is_unique then (yamlsched.unique_keys(h, array[h.payload]))[1]
                    else yamlsched.unique_key(h, h.payload) end as unique_key
        from yamlsched.job_runs r
        join yamlsched.job_definitions d on d.id = r.definition_id
        cross join lateral unnest(case r.status when 'dead' then d.on_dead
                                                when 'failed' then d.on_failure
                                                when 'succeeded' then d.on_success end) n (name)
        join yamlsched.job_definitions h on h.namespace = d.namespace and h.job_type = n.name
        where r.id = any (run_ids) and h.enabled and h.retired_at is null
    ), chosen as (
        select w.* from hook w where is_unique or w.unique_key is null
        union all
        (select distinct on (w.unique_key) w.* from hook w
         where not is_unique and not exists (
             select from yamlsched.job_runs u
             where u.unique_key = w.unique_key and u.finished_at is null)
         order by w.unique_key, w.id)
    ), created as (
        insert into yamlsched.job_runs
            (namespace, definition_id, job_type, payload, idempotency_key, unique_key, run_at,
             late_at, priority, max_attempts, parent_id, hook, trace_context, queue)
        select (w.h).namespace, (w.h).id, (w.h).job_type, (w.h).payload,
               concat_ws(':', (w.h).job_type, w.status, w.id, w.attempts),
               case when is_unique then w.unique_key end, now, now + (w.h).start_within,
               (w.h).priority, (w.h).max_attempts, w.id, w.status, w.trace_context, (w.h).queue
        from chosen w
        order by (w.h).id, w.id
        on conflict do nothing
        returning id
    )
    select count(*) from created
$$;

-- Create the runs of the hooks of runs that this transaction has ended, or that it retries after a
-- failed attempt. A hook delays nothing and fails nothing: where another open transaction has
-- enqueued the same, or this one cannot see what another has, there may be one beside it. Returns
-- how many.
create function yamlsched.enqueue_hooks(
    of_namespace text, run_ids bigint[], now timestamptz) returns bigint
    language plpgsql set lock_timeout = '100ms'
as $$
declare
    created bigint := 0;
begin
    if run_ids <> '{}' then
        begin
            created := yamlsched.insert_hooks(run_ids, true, now);
        exception when lock_not_available or serialization_failure then
            created := yamlsched.insert_hooks(run_ids, false, now);
        end;
    end if;
    if created > 0 then
        perform pg_notify('yamlsched', of_namespace);
    end if;
    return created;
end
$$;

-- The run whose end a hook reports, as its handler gets it: the attempt as it was, the rest as it
-- is. Payload and result are strings: Python may be unable to read what made the run die. Null: the
-- run has been pruned.
create function yamlsched.trigger_of(h yamlsched.job_runs) returns jsonb
    language sql stable
as $$
    select jsonb_build_object(
               'job_type', r.job_type, 'run_id', r.id, 'key', r.idempotency_key,
               'scheduled_for', r.scheduled_for, 'payload', r.payload::text, 'status', h.hook,
               'attempt', k.attempt, 'error', f.error, 'error_type', f.error_type,
               'result', r.result::text)
    from (select split_part(h.idempotency_key, ':', 4)::integer as attempt) k
    join yamlsched.job_runs r on r.id = h.parent_id
    left join yamlsched.job_failures f on f.run_id = r.id and f.attempt = k.attempt
$$;


-- Jobs that follow others

-- The last slot of a job at or before an instant that was owed: one that has a run or is in a gap;
-- null: none.
create function yamlsched.owed_slot(job bigint, at timestamptz) returns timestamptz
    language sql stable
as $$
    select greatest(
        (select max(s.last_slot) from yamlsched.skipped_slots s
         where s.definition_id = job and s.last_slot <= at),
        (select max(r.scheduled_for) from yamlsched.job_runs r
         where r.definition_id = job and r.scheduled_for <= at))
$$;

-- What became of a slot that others wait for: of a run its status, "waiting" if it may change,
-- "skipped" where there is nothing to wait for, none left of it included. Where another run took
-- the slot's place, that of this run. A run whose handler may be alive has not ended. Stable: all
-- is read as of one instant, that of the caller's statement.
create function yamlsched.upstream(job bigint, of_slot timestamptz, now timestamptz,
                                   out run_id bigint, out state text, out ended_at timestamptz)
    language plpgsql stable
as $$
declare
    slot timestamptz := of_slot;
    gap  record;
begin
    state := 'skipped';
    while slot is not null loop
        select r.id, r.finished_at,
               case when r.status in ('queued', 'failed') and d.retired_at is not null
                        then 'skipped'
                    when r.finished_at is null or r.locked_until > upstream.now then 'waiting'
                    else r.status end
        into run_id, ended_at, state
        from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
        where r.definition_id = job and r.scheduled_for = slot
        order by r.finished_at desc limit 1;
        exit when found;
        state := 'skipped';
        select s.first_slot, s.last_slot, s.reason into gap
        from yamlsched.skipped_slots s
        where s.definition_id = job and s.last_slot >= slot order by s.last_slot limit 1;
        if not found or gap.first_slot > slot then
            select 'waiting' into state from yamlsched.job_definitions d
            where d.id = job and slot > greatest(d.effective_from, d.last_slot_at) and d.enabled
              and d.retired_at is null
              and not coalesce(slot > d.paused_at and slot <= coalesce(d.paused_until, 'infinity'),
                  false);
            state := coalesce(state, 'skipped');
            exit;
        elsif gap.reason = 'superseded' then
            slot := least(
                (select min(r.scheduled_for) from yamlsched.job_runs r
                 where r.definition_id = job and r.scheduled_for > gap.last_slot),
                (select min(s.first_slot) from yamlsched.skipped_slots s
                 where s.definition_id = job and s.last_slot > gap.last_slot));
        elsif gap.reason in ('overlap', 'key_taken') then
            slot := (select max(r.scheduled_for) from yamlsched.job_runs r
                     where r.definition_id = job and r.scheduled_for < gap.first_slot);
        else
            exit;
        end if;
    end loop;
end
$$;

-- Whether a run that `parent` has enqueued is unfinished. One that waits although its job is
-- retired is none: it will be cancelled. The last first: runs are claimed in the order of their
-- ids, and the index keeps those that have ended until a vacuum.
create function yamlsched.has_open_child(parent bigint) returns boolean
    language sql stable
as $$
    select exists (select from yamlsched.job_runs c
                   join yamlsched.job_definitions d on d.id = c.definition_id
                   where c.parent_id = parent and c.hook is null and c.finished_at is null
                     and (d.retired_at is null or c.status = 'running')
                   order by c.id desc limit 1)
$$;

-- How many runs that `parent` has enqueued have each status.
create function yamlsched.enqueued(parent bigint) returns jsonb
    language sql stable
as $$
    select coalesce(jsonb_object_agg(e.status, e.runs), '{}')
    from (select c.status, count(*) as runs from yamlsched.job_runs c
          where c.parent_id = parent and c.hook is null group by c.status) e
$$;

-- Whether an unfinished run waits for a run, or has waited for it.
create function yamlsched.is_awaited(r yamlsched.job_runs) returns boolean
    language sql stable
as $$
    select exists (select from yamlsched.awaits a join yamlsched.job_runs w on w.id = a.run_id
                   where a.definition_id = r.definition_id and a.outcome is null
                     and a.slot <= r.scheduled_for and w.finished_at is null)
        or exists (select from yamlsched.awaits a join yamlsched.job_runs w on w.id = a.run_id
                   where a.upstream_run_id = r.id and w.finished_at is null)
$$;

-- Of these runs those for whose children others may wait, and the gates at which these do.
create function yamlsched.awaited_parents(ids bigint[])
    returns table (id bigint, gate text)
    language sql stable
as $$
    select r.id, 'after/' || d.id
    from yamlsched.job_runs r
    join yamlsched.job_definitions d on d.id = r.definition_id
    where r.id = any (ids) and exists (
        select from yamlsched.job_definitions f
        where f.namespace = d.namespace and f.after_enqueued is not null
          and d.job_type = any (f.after))
$$;

-- What became of what a run waits for: of the slot of the job, and by the after_enqueued of the
-- run's own job then of what the slot's run has enqueued. `run_id` is the run that decides,
-- `upstream_run_id` that of the slot, and `outcome` what became of that alone.
create function yamlsched.awaited(a yamlsched.awaits, now timestamptz,
                                  out run_id bigint, out state text, out ended_at timestamptz,
                                  out upstream_run_id bigint, out outcome text)
    language plpgsql stable
as $$
declare
    follower yamlsched.job_definitions;
    children record;
begin
    select u.run_id, u.state, u.ended_at into run_id, state, ended_at
    from yamlsched.upstream(a.definition_id, a.slot, awaited.now) u;
    upstream_run_id := run_id;
    outcome := state;
    select d.* into follower from yamlsched.job_runs r
    join yamlsched.job_definitions d on d.id = r.definition_id where r.id = a.run_id;
    if follower.after_enqueued is null or run_id is null or state = 'waiting'
            or state <> 'succeeded' and follower.on_upstream_failure <> 'run' then
        return;
    end if;
    if yamlsched.has_open_child(run_id) then
        state := 'waiting';
        return;
    end if;
    select max(c.finished_at) as ended_at, bool_or(c.locked_until > awaited.now) as is_executed,
           min(c.id) filter (where c.status <> 'succeeded') as failed
    into children from yamlsched.job_runs c
    where c.parent_id = awaited.run_id and c.hook is null;
    if children.is_executed then
        state := 'waiting';
        return;
    end if;
    ended_at := greatest(ended_at, children.ended_at);
    if follower.after_enqueued = 'succeeded' and state = 'succeeded'
            and children.failed is not null then
        -- what waits for a job that is retired will be cancelled
        select c.id, case when c.finished_at is null then 'cancelled' else c.status end,
               c.finished_at
        into run_id, state, ended_at
        from yamlsched.job_runs c where c.id = children.failed;
    end if;
end
$$;

-- What became of what a run waited for, by the names of the jobs under `after`: what its handler
-- gets. "none" of a run that was not created for a slot, and of a job that the run did not wait
-- for.
create function yamlsched.upstream_results(of_run bigint) returns jsonb
    language sql stable
as $$
    select jsonb_object_agg(n.name, jsonb_build_object(
               'run_id', r.id, 'scheduled_for', coalesce(r.scheduled_for, a.slot),
               'status', coalesce(a.outcome, 'none'), 'enqueued', a.enqueued,
               'result', case when a.outcome = 'succeeded' then r.result end))
    from yamlsched.job_runs o
    join yamlsched.job_definitions d on d.id = o.definition_id
    cross join unnest(d.after) as n (name)
    left join yamlsched.job_definitions f on f.namespace = o.namespace and f.job_type = n.name
    left join yamlsched.awaits a on a.run_id = o.id and a.definition_id = f.id
    left join yamlsched.job_runs r on r.id = a.upstream_run_id
    where o.id = of_run
$$;


-- Gates and permits

-- The queues and levels of what is unfinished and not blocked: each queue by one index probe.
create function yamlsched.queue_levels(of_namespace text)
    returns table (queue text, priority smallint)
    language sql stable
as $$
    with recursive found (name) as (
        select (select r.queue from yamlsched.job_runs r
                where r.namespace = of_namespace and r.blocked_on is null and r.finished_at is null
                order by r.namespace, r.queue limit 1)
        union all
        select (select r.queue from yamlsched.job_runs r
                where r.namespace = of_namespace and r.blocked_on is null
                  and r.finished_at is null and r.queue > f.name
                order by r.namespace, r.queue limit 1)
        from found f where f.name is not null
    )
    select f.name, p.level from found f
    cross join (values (1::smallint), (2::smallint), (3::smallint)) p (level)
    where f.name is not null
$$;

-- The values of a payload that a limit with `by` counts separately, as part of a gate's name. Long
-- values are cut, and secret ones hidden, and told apart by a hash.
create function yamlsched.limit_value(payload jsonb, keys text[]) returns text
    language sql stable
as $$
    select case when v.is_secret or length(v.value) > 64
                then case when v.is_secret then '' else left(v.value, 64) end
                     || '#' || left(encode(sha256(convert_to(v.value, 'UTF8')), 'hex'), 16)
                else v.value end
    from (select jsonb_agg(payload -> k.key order by k.nth)::text as value,
                 bool_or(k.key ~* 'pass|pwd|secret|token|cred|bearer|key|auth|cookie|salt')
                     as is_secret
          from unnest(keys) with ordinality as k (key, nth)) v
$$;

-- The gates at which a run stands, in the order in which a claim asks.
create function yamlsched.gates_of(r yamlsched.job_runs, now timestamptz) returns text[]
    language sql stable
as $$
    select array_remove(array[
        case when yamlsched.is_closed(d, now) then 'closed/' || d.id end,
        case when r.exclusive then 'job/' || d.id end,
        'limit/' || d.limit_name || case when d.limit_by = '{}' then ''
            else '/' || yamlsched.limit_value(r.payload, d.limit_by) end], null)
    from yamlsched.job_definitions d where d.id = r.definition_id
$$;

-- How many runs may stand in each of these gates, and how many more than now. What a claim reads
-- after it has locked the gates is true until it commits. A limit whose row was lost has no room.
create function yamlsched.rooms(of_namespace text, names text[], now timestamptz)
    returns table (name text, capacity integer, free bigint)
    language sql stable
as $$
    select m.name, m.capacity, case when m.capacity is null then 2147483647 else greatest(
               0, m.capacity - (select count(*) from yamlsched.permits p
                                where p.namespace = of_namespace and p.name = m.name)) end
    from (select n.name, case split_part(n.name, '/', 1)
                     when 'limit' then coalesce((
                         select g.capacity from yamlsched.gates g
                         where g.namespace = of_namespace
                           and g.name = 'limit/' || split_part(n.name, '/', 2)), (
                         select 0 from yamlsched.job_definitions d
                         where d.namespace = of_namespace
                           and d.limit_name = split_part(n.name, '/', 2)
                           and d.retired_at is null limit 1))
                     when 'after' then null
                     else (select case when yamlsched.is_closed(d, rooms.now) then 0
                                       when d.overlap <> 'allow' and n.name like 'job/%' then 1 end
                           from yamlsched.job_definitions d
                           where d.id = split_part(n.name, '/', 2)::bigint) end as capacity
          from unnest(names) as n (name) offset 0) m
$$;

-- Make those gates that are missing. Not for the end of a run, because a claim would wait for it.
create function yamlsched.make_gates(of_namespace text, names text[]) returns void
    language sql
as $$
    insert into yamlsched.gates (namespace, name)
    select of_namespace, n.name from unnest(names) as n (name)
    where (select g.name from yamlsched.gates g
           where g.namespace = of_namespace and g.name = n.name) is null
    order by n.name on conflict do nothing
$$;

-- Lock gates, in one order, and wait for them. What is read after that, by a later statement, holds
-- until the end of the transaction.
create function yamlsched.lock_gates(of_namespace text, names text[]) returns void
    language plpgsql
as $$
begin
    perform yamlsched.make_gates(of_namespace, names);
    perform from yamlsched.gates g where g.namespace = of_namespace and g.name = any (names)
    order by g.name for no key update;
end
$$;

-- Have claims look again at the first runs in line, of all queues, as many as find room and `more`.
-- One time in eight it begins with each of the lower levels, so that none waits for ever. Who calls
-- it holds the gates, by an earlier statement. Returns how many runs.
create function yamlsched.offer(
    of_namespace text, names text[], more integer, now timestamptz) returns bigint
    language plpgsql
as $$
declare
    chance  float8 := random();
    levels  smallint[] := case when chance < 0.125 then '{3,1,2}' when chance < 0.25 then '{2,1,3}'
                               else '{1,2,3}' end;
    offered bigint;
begin
    update yamlsched.job_runs r
    set blocked_on = null,
        late_at = case when r.unreleased or r.blocked_on like 'limit/%' then r.late_at
                       else greatest(r.run_at, now) + (
                           select d.start_within from yamlsched.job_definitions d
                           where d.id = r.definition_id) end
    where r.id = any (array(
        select w.id
        from yamlsched.rooms(of_namespace, names, now) m
        cross join lateral (
            select n.id from unnest(levels) as l (level)
            cross join lateral (
                select n.id from yamlsched.job_runs n
                where n.namespace = of_namespace and n.blocked_on = m.name
                  and n.priority = l.level and n.finished_at is null
                order by n.run_at, n.id limit least(m.free, 5000) + more
                for no key update skip locked) n
            limit least(m.free, 5000) + more) w
        where m.free > 0));
    get diagnostics offered = row_count;
    if offered > 0 then
        perform pg_notify('yamlsched', of_namespace);
    end if;
    return offered;
end
$$;

-- Wait for gates, and offer their room. `parents` have enqueued runs that have ended: what waits
-- for all that such a run has enqueued is offered if none of it is unfinished. Of two that end at
-- once the one that gets the gate last sees the other.
create function yamlsched.promote(
    of_namespace text, names text[], more integer, now timestamptz, parents bigint[] default '{}')
    returns bigint
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    ids   bigint[];
    gates text[];
begin
    select array_agg(p.id), array_agg(p.gate) into ids, gates
    from yamlsched.awaited_parents(parents) p;
    perform from (select distinct u.name from unnest(names || gates) as u (name)
                  order by u.name) n
    cross join lateral (
        select from yamlsched.gates k
        where k.namespace = of_namespace and k.name = n.name for no key update) g;
    names := names || array(        -- a later statement than the locks
        select u.gate from unnest(ids, gates) as u (id, gate)
        where not yamlsched.has_open_child(u.id));
    return case when names = '{}' then 0
                else yamlsched.offer(of_namespace, names, more, now) end;
end
$$;

-- Return the permits of runs that have ended, in the transaction that has locked and ended them, by
-- a later statement than that: an edit may have granted one in between. What waits for these jobs,
-- or for the last of what their parents have enqueued, and the room that a cancelled run was
-- offered, is offered again.
create function yamlsched.release(of_namespace text, run_ids bigint[], now timestamptz)
    returns bigint
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    names   text[];
    parents bigint[];
begin
    with returned as (
        delete from yamlsched.permits p where p.run_id = any (run_ids) returning p.name
    ), ended as (
        select r, d from yamlsched.job_runs r
        join yamlsched.job_definitions d on d.id = r.definition_id
        where r.id = any (run_ids) and r.finished_at is not null
    )
    select coalesce(array_agg(n.name), '{}'),
           array(select distinct (e.r).parent_id from ended e
                 where (e.r).parent_id is not null and (e.r).hook is null)
    into names, parents
    from (select t.name from returned t
          union
          select 'after/' || (e.d).id from ended e where (e.d).is_followed or (e.d).after <> '{}'
          union
          select g.name from ended e
          cross join unnest(yamlsched.gates_of(e.r, now)) as g (name)
          where (e.r).status = 'cancelled') n;
    return case when names = '{}' and parents = '{}' then 0
                else yamlsched.promote(of_namespace, names, 0, now, parents) end;
end
$$;

-- Write the success of a run, and the last progress of its attempt unless `done` is null, in the
-- transaction of its handler. If there is something to release, locked_until stays, for this
-- transaction may be older than what waits: its worker releases it, or `reclaim`, which finds it by
-- the permit. Returns whether the run was still that of the attempt.
create function yamlsched.succeed_in(
    of_run bigint, of_attempt integer, token text, value jsonb, done float8, total float8,
    note text) returns boolean
    language plpgsql
as $$
declare
    r   yamlsched.job_runs;
    job yamlsched.job_definitions;
begin
    update yamlsched.job_runs u
    set status = 'succeeded', result = value, finished_at = clock_timestamp(),
        updated_at = clock_timestamp()
    where u.id = of_run and u.status = 'running' and u.locked_by = token
      and u.attempts = of_attempt
    returning u.* into r;
    if not found then
        return false;
    end if;
    select d.* into job from yamlsched.job_definitions d where d.id = r.definition_id;
    if r.exclusive or job.is_followed
            or exists (select from yamlsched.permits p where p.run_id = r.id)
            or r.hook is null and exists (
                select from yamlsched.awaited_parents(array[r.parent_id])) then
        insert into yamlsched.permits (namespace, name, n, run_id)
        values (r.namespace, 'after/' || job.id, -r.id, r.id) on conflict do nothing;
    else
        update yamlsched.job_runs u set locked_until = null where u.id = r.id;
    end if;
    if done is not null then
        insert into yamlsched.attempt_progress as p
            (run_id, attempt, reported_at, done, total, worker, note)
        values (r.id, of_attempt, r.finished_at, done, total, token, note)
        on conflict (run_id, attempt) do update
        set (reported_at, done, total, worker, note) = (excluded.reported_at, excluded.done,
            excluded.total, excluded.worker, excluded.note);
    end if;
    if job.on_success <> '{}' then
        perform yamlsched.enqueue_hooks(r.namespace, array[r.id], clock_timestamp());
    end if;
    return true;
end
$$;

-- End those of some runs that have expired, without hooks, and offer the room that they were
-- offered. What another session has locked is skipped.
create function yamlsched.expire(of_namespace text, run_ids bigint[], now timestamptz)
    returns void
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    ended bigint[];
begin
    with expired as (
        update yamlsched.job_runs r
        set status = 'cancelled', finished_at = now, updated_at = now, blocked_on = null,
            error_type = 'Expired',
            last_error = 'it did not start within expires_after'
        from yamlsched.job_definitions d
        where d.id = r.definition_id and yamlsched.is_expired(r, d, now) and r.id = any (array(
            select l.id from yamlsched.job_runs l
            where l.id = any (run_ids) order by l.id for no key update skip locked))
        returning r.id
    )
    select array_agg(e.id) into ended from expired e;
    perform yamlsched.release(of_namespace, ended, now);
end
$$;

-- Grant permits to those of some runs that find room at each of their gates, by level and time. One
-- that finds none at one of them keeps its place at the others until the next claim. Returns those
-- that got all of theirs.
create function yamlsched.grant_permits(
    of_namespace text, run_ids bigint[], levels smallint[], gates text[], now timestamptz)
    returns bigint[]
    language plpgsql
as $$
declare
    granted bigint[];
begin
    with standing as materialized (
        select r.id, g.name,
               row_number() over (partition by g.name order by array_position(
                   levels, r.priority), r.run_at, r.id) as place
        from yamlsched.job_runs r
        cross join lateral unnest(yamlsched.gates_of(r, now)) as g (name)
        where r.id = any (run_ids)
    ), room as materialized (
        select * from yamlsched.rooms(of_namespace, gates, now)
    ), refused as materialized (
        select s.id from standing s left join room m on m.name = s.name
        where m.name is null or s.place > m.free
    ), wanted as materialized (
        select s.name, count(*) as runs from standing s group by s.name
    ), number as materialized (
        select m.name, i.n, row_number() over (partition by m.name order by i.n) as place
        from room m join wanted w on w.name = m.name
        -- of as many numbers as are held and wanted together, enough are free
        cross join lateral generate_series(
            1, least(m.capacity, m.capacity - m.free + w.runs)) as i (n)
        where (select p.run_id from yamlsched.permits p        -- a probe: no plan reads them all
               where (p.namespace, p.name, p.n) = (of_namespace, m.name, i.n)) is null
    ), permitted as (
        insert into yamlsched.permits (namespace, name, n, run_id)
        select of_namespace, s.name, coalesce(i.n, -s.id), s.id
        from standing s left join number i on i.name = s.name and i.place = s.place
        where s.id not in (select f.id from refused f) and s.name not like 'closed/%'
    )
    select array_agg(i.id) into granted from unnest(run_ids) as i (id)
    where i.id not in (select f.id from refused f);
    return coalesce(granted, '{}');
end
$$;

-- Store of some runs, and of those like them among the next thousand, at which gate they wait.
create function yamlsched.block(
    of_namespace text, run_ids bigint[], gates text[], now timestamptz) returns void
    language plpgsql
as $$
begin
    with rest as materialized (
        select r.queue, r.priority, array_agg(distinct r.definition_id) as jobs
        from yamlsched.job_runs r where r.id = any (run_ids) group by r.queue, r.priority
    ), next as materialized (
        select unnest(run_ids) as id
        union
        select n.id
        from rest l
        cross join lateral (
            select e.id, e.definition_id from yamlsched.job_runs e
            where e.namespace = of_namespace and e.queue = l.queue and e.priority = l.priority
              and e.blocked_on is null and e.finished_at is null and e.run_at <= now
              and e.locked_until is null and not e.unreleased
            order by e.run_at, e.id limit 1000) n
        where n.definition_id = any (l.jobs)
    ), waiting as materialized (
        select r from yamlsched.job_runs r
        where r.id = any (array(select n.id from next n)) and r.blocked_on is null
          and r.finished_at is null and r.locked_until is null and not r.unreleased
        order by r.id for no key update skip locked
    ), full_gates as materialized (
        select m.name from yamlsched.rooms(of_namespace, gates, now) m where m.free = 0
    ), blocked as materialized (    -- not computed again for each row that a plan joins it with
        select (w.r).id, (select g.name
                          from unnest(yamlsched.gates_of(w.r, now)) with ordinality as g (name, nth)
                          where g.name in (select f.name from full_gates f)
                          order by g.nth limit 1) as name
        from waiting w
    )
    update yamlsched.job_runs r
    set blocked_on = b.name,
        late_at = case when b.name like 'limit/%' then r.late_at end
    from blocked b
    where r.id = b.id and b.name is not null
      and r.id = any (array(select s.id from blocked s));
end
$$;

-- Claim those of some runs that may execute, and store of the others at which gate they wait.
-- Waits for no lock of a run or a gate, but where another claim makes the gate of a new value.
-- Returns all of the runs that it could lock. One that still may be claimed has not got its gates,
-- or its turn comes with the next claim.
create function yamlsched.claim_gated(
    of_namespace text, run_ids bigint[], levels smallint[], token text, now timestamptz,
    revision text default null)
    returns setof yamlsched.job_runs
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    held    bigint[];
    gates   text[];
    granted bigint[];
begin
    held := array(
        select r.id from yamlsched.job_runs r
        where r.id = any (run_ids) and r.blocked_on is null and r.finished_at is null
          and r.locked_until is null and r.run_at <= now and not r.unreleased
        order by r.id for no key update skip locked);
    gates := array(
        select distinct g.name
        from yamlsched.job_runs r
        cross join lateral unnest(yamlsched.gates_of(r, now)) as g (name)
        where r.id = any (held));
    perform yamlsched.make_gates(of_namespace, gates);     -- of values; sync makes the others
    gates := array(
        select g.name from (select n.name from unnest(gates) as n (name) order by n.name) n
        cross join lateral (        -- by index, whatever the statistics are
            select k.name from yamlsched.gates k
            where k.namespace = of_namespace and k.name = n.name
            for no key update skip locked) g);
    -- Later statements than the locks: they see what the sessions before have committed.
    granted := yamlsched.grant_permits(of_namespace, held, levels, gates, now);
    update yamlsched.job_runs r
    set status = 'running', attempts = r.attempts + 1, locked_by = token, started_at = now,
        begun_at = coalesce(r.begun_at, now),
        unique_key = case when r.unique_key not like 'waiting:%' then r.unique_key end,
        locked_until = now + (select d.lease from yamlsched.job_definitions d
                              where d.id = r.definition_id), updated_at = now,
        cpu_seconds = null, peak_memory_bytes = null, revision = claim_gated.revision
    where r.id = any (granted);
    if cardinality(granted) < cardinality(held) then
        perform yamlsched.block(of_namespace, array(
            select h.id from unnest(held) as h (id) where h.id <> all (granted)), gates, now);
        -- What those have not used of limits. The runs of a job all stand at the same one.
        perform yamlsched.offer(of_namespace, array(
            select g.name from unnest(gates) as g (name) where g.name like 'limit/%'), 0, now);
    end if;
    return query select r.* from yamlsched.job_runs r where r.id = any (held);
end
$$;

-- Block a batch of the due runs of a closed job, in the order of ids, from after `past` on, so that
-- they hold up no claim. Whether it is closed is asked under its gate: since the batch before, it
-- may have been resumed. Returns the last id; null: none was left.
create function yamlsched.block_closed(
    of_namespace text, job bigint, past bigint, most integer, now timestamptz) returns bigint
    language plpgsql
as $$
declare
    last  bigint;
    gates text[];
begin
    perform yamlsched.lock_gates(of_namespace, array['closed/' || job]);
    with picked as materialized (
        select r.id, case when d.limit_name is not null then yamlsched.gates_of(r, now) end as gates
        from yamlsched.job_runs r
        join yamlsched.job_definitions d on d.id = r.definition_id
        where r.definition_id = job and r.finished_at is null and r.id > past
          and r.blocked_on is null and r.locked_until is null and r.run_at <= now
          and not r.unreleased and yamlsched.is_closed(d, now)
        -- the order of job_runs_history: what is blocked is not read again
        order by r.finished_at, r.id
        limit most for no key update of r skip locked
    ), blocked as (
        update yamlsched.job_runs r set blocked_on = 'closed/' || job, late_at = null
        where r.id = any (array(select p.id from picked p))
    )
    select max(p.id), array(select distinct g.name from picked q cross join unnest(q.gates) g (name)
                            where g.name like 'limit/%')
    into last, gates from picked p;
    if gates <> '{}' then
        perform yamlsched.promote(of_namespace, gates, 0, now);    -- each may have been offered
    end if;
    return last;
end
$$;

-- Whether a run waits at a gate at which it does not stand since an edit.
create function yamlsched.waits_elsewhere(r yamlsched.job_runs, now timestamptz) returns boolean
    language sql stable
as $$
    select r.blocked_on like 'limit/%' and r.blocked_on <> all (yamlsched.gates_of(r, now))
$$;

-- Runs no longer wait at edited gates at which they do not stand any more. A run that another
-- session has locked is skipped, because that session may wait for the gate. The gate stays marked,
-- and the sweep continues with it.
create function yamlsched.continue_edits(of_namespace text, now timestamptz) returns bigint
    language plpgsql
as $$
declare
    names text[];
    freed bigint;
begin
    names := array(select g.name from yamlsched.gates g
                   where g.namespace = of_namespace and g.is_edited
                   order by g.name for no key update skip locked);
    if names = '{}' then
        return 0;
    end if;
    update yamlsched.job_runs r
    set blocked_on = null
    where r.id = any (array(
        select w.id from yamlsched.job_runs w
        where w.namespace = of_namespace and w.blocked_on = any (names) and w.finished_at is null
          and yamlsched.waits_elsewhere(w, now)
        order by w.id for no key update skip locked));
    get diagnostics freed = row_count;
    update yamlsched.gates g set is_edited = false
    where g.namespace = of_namespace and g.name = any (names) and not exists (
        select from yamlsched.job_runs w
        where w.namespace = of_namespace and w.blocked_on = g.name and w.finished_at is null
          and yamlsched.waits_elsewhere(w, now));
    return freed;
end
$$;

-- An edit of jobs, whose gates are locked: their runs leave gates at which they do not stand.
create function yamlsched.leave_gates(of_namespace text, jobs bigint[], now timestamptz)
    returns bigint
    language sql
as $$
    update yamlsched.gates g set is_edited = true
    where g.namespace = of_namespace and g.name in (
        select w.blocked_on from yamlsched.job_runs w
        where w.definition_id = any (jobs) and w.finished_at is null
          and yamlsched.waits_elsewhere(w, now));
    select yamlsched.continue_edits(of_namespace, now)
$$;

-- The gates at which runs wait, each by one index probe; without those of followers.
create function yamlsched.waited_for(of_namespace text) returns table (name text)
    language sql stable
as $$
    with recursive found (name) as (
        select (select r.blocked_on from yamlsched.job_runs r
                where r.namespace = of_namespace and r.blocked_on > 'b' and r.finished_at is null
                order by r.blocked_on limit 1)
        union all
        select (select r.blocked_on from yamlsched.job_runs r
                where r.namespace = of_namespace and r.blocked_on > f.name
                  and r.finished_at is null order by r.blocked_on limit 1)
        from found f where f.name is not null
    )
    select f.name from found f where f.name is not null
$$;

-- How many due runs that stand at gates are not blocked, of the first thousand of each queue and
-- level: they have been offered room, or no claim has met them.
create function yamlsched.unclaimed(of_namespace text, now timestamptz) returns bigint
    language sql stable
as $$
    select count(*)
    from yamlsched.queue_levels(of_namespace) l
    cross join lateral (
        select e.definition_id, e.exclusive from yamlsched.job_runs e
        where e.namespace = of_namespace and e.queue = l.queue and e.priority = l.priority
          and e.blocked_on is null and e.finished_at is null and e.run_at <= unclaimed.now
          and e.locked_until is null
        order by e.run_at, e.id limit 1000) e
    join yamlsched.job_definitions d on d.id = e.definition_id
    where e.exclusive or d.limit_name is not null
$$;

-- Once a second, whoever asks first: offer all room again. So a pause ends by itself, an edit or a
-- resume that was cut off goes on, and a run that nobody can start does not hold up those behind
-- it: they are offered the room that it has not used. `at_once`: also within the second.
create function yamlsched.sweep(of_namespace text, at_once boolean, now timestamptz)
    returns bigint
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    names text[];
    freed bigint;
begin
    perform from yamlsched.namespaces n
    where n.namespace = of_namespace and (at_once or n.swept_at < now - interval '1 second')
    for no key update skip locked;
    if not found then
        return 0;
    end if;
    update yamlsched.namespaces n set swept_at = now where n.namespace = of_namespace;
    freed := yamlsched.continue_edits(of_namespace, now);
    names := array(select w.name from yamlsched.waited_for(of_namespace) w);
    names := array(select m.name from yamlsched.rooms(of_namespace, names, now) m
                   where m.free > 0);
    if names <> '{}' then
        freed := freed + yamlsched.promote(
            of_namespace, names, greatest(10, yamlsched.unclaimed(of_namespace, now))::integer,
            now);
    end if;
    return freed;
end
$$;

-- Move waiting runs to the queue that their job has now. One that another session has locked is
-- skipped: a claim or the next repair moves it.
create function yamlsched.move_runs(run_ids bigint[]) returns void
    language sql
as $$
    update yamlsched.job_runs r
    set queue = d.queue
    from yamlsched.job_definitions d
    where d.id = r.definition_id and r.id = any (array(
        select m.id from yamlsched.job_runs m
        where m.id = any (run_ids) and m.finished_at is null and m.locked_until is null
        order by m.id for no key update skip locked))
$$;

-- Once a minute: return permits whose runs have ended, which only a session that died leaves; make
-- gates that a partial restore has lost, and remove those of values that nobody uses; move
-- runs to the queues of their jobs: where they are, there may be no worker. Returns how many runs
-- had left permits: see namespaces.repairs.
create function yamlsched.repair(of_namespace text, now timestamptz) returns bigint
    language plpgsql
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    ids   bigint[];
    names text[];
begin
    ids := array(
        select r.id from yamlsched.job_runs r
        where r.id = any (array(select p.run_id from yamlsched.permits p
                                where p.namespace = of_namespace))
          and r.locked_until is null
        order by r.id for no key update skip locked) || array(
        select distinct p.run_id from yamlsched.permits p
        where p.namespace = of_namespace
          and not exists (select from yamlsched.job_runs r where r.id = p.run_id));
    if ids <> '{}' then
        update yamlsched.namespaces n set repairs = n.repairs + cardinality(ids)
        where n.namespace = of_namespace;
        perform yamlsched.release(of_namespace, ids, now);
    end if;
    perform yamlsched.move_runs(array(
        select e.id from yamlsched.queue_levels(of_namespace) l
        cross join lateral (
            select e.id, e.definition_id from yamlsched.job_runs e
            where e.namespace = of_namespace and e.queue = l.queue and e.priority = l.priority
              and e.blocked_on is null and e.finished_at is null
            order by e.run_at, e.id limit 1000) e
        join yamlsched.job_definitions j on j.id = e.definition_id and j.queue <> l.queue));
    perform yamlsched.make_gates(of_namespace, array(
        select k.kind || d.id
        from yamlsched.job_definitions d
        cross join unnest(array['after/', 'closed/', 'job/']) k (kind)
        where d.namespace = of_namespace));
    names := array(         -- the values of limits
        select g.name from yamlsched.gates g
        where g.namespace = of_namespace and g.name like 'limit/%/%' for update skip locked);
    delete from yamlsched.gates g       -- that nobody uses: a later statement than the locks
    where g.namespace = of_namespace and g.name = any (names) and not g.is_edited
      and (select p.n from yamlsched.permits p
           where p.namespace = of_namespace and p.name = g.name limit 1) is null
      and (select r.id from yamlsched.job_runs r
           where r.namespace = of_namespace and r.blocked_on = g.name
             and r.finished_at is null limit 1) is null;
    return cardinality(ids);
end
$$;


-- What runs wait for, and what is late

-- Who holds a limit, and since when the first in line waits, in words.
create function yamlsched.limit_line(of_namespace text, gate text) returns text
    language sql stable
as $$
    select format('waits for limit %s%s%s; the first in line since %s',
                  split_part(gate, '/', 2),
                  ' for ' || nullif(substr(gate, length('limit/' || split_part(gate, '/', 2)) + 2),
                                    ''),
                  (select ', held by run ' || string_agg(h.run_id::text, ', ' order by h.n)
                   from (select p.run_id, p.n from yamlsched.permits p
                         where p.namespace = of_namespace and p.name = gate
                         order by p.n limit 20) h),
                  to_char(min(f.run_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
    from unnest('{1,2,3}'::smallint[]) as l (level)
    cross join lateral (
        select w.run_at from yamlsched.job_runs w
        where w.namespace = of_namespace and w.blocked_on = gate and w.priority = l.level
          and w.finished_at is null
        order by w.run_at, w.id limit 1) f
$$;

-- What a run waits for, in words: who has the turn, or holds the limit, and since when the first in
-- line waits; or what the jobs do that it follows.
create function yamlsched.waits_for(r yamlsched.job_runs) returns text
    language sql stable
as $$
    select coalesce(
        case when r.unreleased then (
            select 'waits for ' || string_agg(
                       case when u.state = 'waiting' and u.outcome <> 'waiting' then (
                                select format('%s of %s runs that %s enqueued (run %s)',
                                              count(*) filter (where c.finished_at is null
                                                               or c.locked_until is not null),
                                              count(*), o.job_type, o.id)
                                from yamlsched.job_runs c
                                where c.parent_id = o.id and c.hook is null)
                            when o.id <> u.upstream_run_id
                            then d.job_type || ', which enqueued run ' || o.id || ' of '
                                 || o.job_type || ': it is ' || o.status
                            else d.job_type || coalesce(': run ' || o.id || ' is ' || o.status,
                                                        ', which has no run of that slot yet') end
                       || case when o.status = 'failed' then ', retried at ' || to_char(
                              o.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                          else '' end,
                       '; ' order by d.job_type)
            from yamlsched.awaits a
            join yamlsched.job_definitions d on d.id = a.definition_id
            cross join lateral yamlsched.awaited(a, clock_timestamp()) u
            left join yamlsched.job_runs o on o.id = u.run_id
            where a.run_id = r.id and u.state in ('waiting', 'dead', 'cancelled')) end,
        case when yamlsched.is_closed(j, clock_timestamp()) and r.status <> 'running'
                  and (r.unreleased or r.run_at <= clock_timestamp())
                 then 'waits until its job is resumed or enabled'
             when r.unreleased and r.run_at > clock_timestamp()
                 then 'waits until spread starts it'
             when r.unreleased and r.blocked_on = 'after/' || j.id
                 then 'waits for an earlier run of its own job'
             when r.unreleased then 'waits for the next sync or worker'
             when r.blocked_on like 'job/%' then 'waits for run ' || (
                 select string_agg(p.run_id::text, ', ' order by p.run_id)
                 from yamlsched.permits p
                 where p.namespace = r.namespace and p.name = r.blocked_on)
             when r.blocked_on like 'limit/%'
                 then yamlsched.limit_line(r.namespace, r.blocked_on) end)
    from yamlsched.job_definitions j
    where j.id = r.definition_id and r.finished_at is null
$$;

-- Since when and why a job is late, and the slot that is; null: it is not. The one definition.
-- `run_late_at` is the first late_at of its runs that have not begun; `waits`: a slot run of it is
-- unfinished, after which the next slot gets its own; `slot` is its first unfinished slot. Late is
-- 1. a run or a slot that has not begun for longer than start_within, without the time in which it
--    waited for a pause, a run of its own job or the jobs that it follows;
-- 2. a slot of which no run has succeeded within finish_within, unless it was skipped, cancelled or
--    backfilled;
-- 3. for an hour, a slot that was not run because it was too old, or because a run died that it
--    waited for.
create function yamlsched.late(
    d yamlsched.job_definitions, run_late_at timestamptz, waits boolean, inout slot timestamptz,
    out since timestamptz, out why text)
    language plpgsql stable
    set plan_cache_mode = force_generic_plan set enable_sort = off set enable_bitmapscan = off
as $$
declare
    now          timestamptz := clock_timestamp();
    slot_late_at timestamptz;
begin
    if d.id is null then
        slot := null;
        return;
    end if;
    -- a slot that waited for a run that has ended a moment ago is taken by the next sync
    if d.next_slot_at < now - d.start_within and not waits and not (
        d.overlap = 'wait' and exists (
            select from (select r.exclusive from yamlsched.job_runs r
                         where r.definition_id = d.id and r.finished_at > now - interval '2 minutes'
                         order by r.finished_at desc limit 1000) e
            where e.exclusive)) then
        slot_late_at := d.next_slot_at + d.start_within;
    end if;
    since := least(run_late_at, slot_late_at) - d.start_within;
    since := case when since is not null then greatest(since, d.resumed_at, d.paused_until) end;
    if since < now - d.start_within then
        why := case when slot_late_at <= coalesce(run_late_at, 'infinity')
                        then 'no sync has created the run of its slot'
                    else 'its run has not started' end;
        slot := coalesce(slot, d.next_slot_at);
        return;
    end if;
    -- the latest slot that should have succeeded by now, if neither it nor a later one has
    since := case
        when d.finish_within is null then null
        when d.next_slot_at < now - d.finish_within then d.next_slot_at
        else (
            select case when r.status <> 'succeeded' then r.scheduled_for end
            from yamlsched.job_runs r
            where r.definition_id = d.id and r.scheduled_for is not null
              and (r.status = 'succeeded' or r.finish_by <= now and r.status <> 'cancelled')
            order by r.scheduled_for desc limit 1) end;
    if since is not null then
        why := 'not finished: the run of its slot has not succeeded';
        slot := since;
        return;
    end if;
    select min(s.first_slot), max(s.last_slot),
           case bool_or(s.reason = 'late') when true then 'its slot was not run'
                                           when false then 'a run died that it waited for' end
    into since, slot, why
    from yamlsched.skipped_slots s
    where s.definition_id = d.id and s.recorded_at > now - interval '1 hour'
      and (s.reason = 'late' or s.reason = 'upstream' and (
          select r.dead_at from yamlsched.job_runs r
          where r.id = substring(s.detail, ':([0-9]{1,18})$')::bigint) is not null);
end
$$;

-- Whether an unfinished run fails again and again: 3 failed attempts, or, of a budget below 4, all
-- but the last one. Counted since an operator's retry, and without the attempt that is running.
create function yamlsched.is_failing(r yamlsched.job_runs) returns boolean
    language sql immutable
as $$
    select r.finished_at is null and r.failed_at is not null
       and r.attempts - r.prior_attempts - (r.status = 'running')::integer
           >= greatest(1, least(3, r.max_attempts - r.prior_attempts - 1))
$$;

-- The unfinished run of a job that fails again and again, looked for among its last 1,000 failures;
-- null: there is none.
create function yamlsched.failing_run(job bigint) returns bigint
    language sql stable
as $$
    select f.id
    from (select r.id, yamlsched.is_failing(r) as is_failing from yamlsched.job_runs r
          where r.definition_id = job and r.failed_at is not null order by r.failed_at desc
          limit 1000) f
    where f.is_failing limit 1
$$;

-- Since which revision of the code the runs of a job fail, in words; null if they do not, or if
-- that is the revision of the last run that succeeded. Runs are counted up to a thousand.
create function yamlsched.what_changed(job bigint) returns text
    language sql stable set enable_sort = off    -- of the history, the latest success
as $$
    select format('fails since revision %s, %s run%s ago; last good %s', bad.revision, bad.runs,
                  case when bad.runs > 1 then 's' end, good.revision)
    from (select r.finished_at, r.revision from yamlsched.job_runs r
          where r.definition_id = job and r.finished_at is not null and r.status = 'succeeded'
          order by r.finished_at desc limit 1) good
    cross join lateral (
        select count(*) as runs, (array_agg(coalesce(
                   (select a.revision from yamlsched.job_failures a
                    where a.run_id = f.id and a.failed_at > good.finished_at
                    order by a.failed_at limit 1), f.revision) order by f.failed_at))[1]
                   as revision
        from (select r.id, r.failed_at, r.revision from yamlsched.job_runs r
              where r.definition_id = job and r.failed_at > good.finished_at
                and r.status <> 'cancelled'
              order by r.failed_at limit 1000) f
    ) bad
    where bad.revision <> good.revision
$$;


-- Views for psql and for monitoring

-- How many runs of a queue are due, and how many execute, among the first `most` of each level.
-- Due: claimable for 10 s, because a worker that is live takes it sooner, and no more than its
-- gates have room for. Not counted is what leaving workers hold.
create function yamlsched.queue_load_of(of_namespace text, of_queue text, most integer,
    now timestamptz, out due bigint, out executing bigint, out oldest_due_at timestamptz)
    language sql stable
    set enable_seqscan = off set enable_sort = on
as $$
    with unfinished as materialized (
        select n.r, greatest((n.r).run_at, (n.r).created_at) as due_at,
               coalesce((n.r).locked_until >= queue_load_of.now, false) as is_executing
        from (values (1::smallint), (2::smallint), (3::smallint)) l (level)
        cross join lateral (
            select r from yamlsched.job_runs r
            where r.namespace = of_namespace and r.queue = of_queue and r.priority = l.level
              and r.blocked_on is null and r.finished_at is null and not r.unreleased
              and r.run_at <= queue_load_of.now
            order by r.run_at, r.id limit most) n
    ), gated as materialized (
        select d.id, d.limit_name is not null or yamlsched.is_closed(d, queue_load_of.now)
               as all_runs
        from yamlsched.job_definitions d
        where d.id = any (array(select distinct (u.r).definition_id from unfinished u))
    ), waiting as materialized (
        select (u.r).id, u.due_at, g.name, row_number() over (
                   partition by g.name order by (u.r).priority, (u.r).run_at, (u.r).id) as place
        from unfinished u
        join gated j on j.id = (u.r).definition_id
        -- one whose lease is over is taken back by a worker, whatever its gates are
        left join lateral unnest(case
            when (u.r).locked_until is null and ((u.r).exclusive or j.all_runs)
            then yamlsched.gates_of(u.r, queue_load_of.now) end) as g (name) on true
        where not u.is_executing and u.due_at <= queue_load_of.now - interval '10 seconds'
    ), room as materialized (
        select m.name, m.free
        from yamlsched.rooms(of_namespace, array(
            select distinct w.name from waiting w where w.name is not null),
            queue_load_of.now) m
    ), claimable as (
        select w.id, min(w.due_at) as due_at
        from waiting w left join room m on m.name = w.name
        group by w.id
        having bool_and(w.name is null or w.place <= m.free)
    ), leaving as materialized (
        select w.id || ':' as prefix
        from yamlsched.workers w
        where w.namespace = of_namespace and w.queue = of_queue and w.ended_at is null
          and w.leaving_at is not null
    )
    select (select count(*) from claimable),
           (select count(*) from unfinished u where u.is_executing and not exists (
                select from leaving l where starts_with((u.r).locked_by, l.prefix))),
           (select min(c.due_at) from claimable c)
$$;

-- The queues: how much there is to do in each, counted to 10,000 of each level, who does it, and
-- how its workers start. For a scaler: due + executing is what workers are needed for. `error` is
-- that of the latest start that has failed.
create view yamlsched.queue_load as
select n.namespace, n.queue, l.due, l.executing, l.oldest_due_at, w.live, w.starting, w.leaving,
       coalesce(q.failed_starts, 0) as failed_starts, q.next_start_at, f.error
from (select clock_timestamp() as now) c
cross join lateral (
    select s.namespace, e.queue from yamlsched.namespaces s
    cross join lateral yamlsched.queue_levels(s.namespace) e
    union
    select q.namespace, q.queue from yamlsched.queue_states q
    union
    select w.namespace, w.queue from yamlsched.workers w
    where w.ended_at is null
      and greatest(w.seen_at + interval '60 seconds', w.start_by) > c.now) n
cross join lateral yamlsched.queue_load_of(n.namespace, n.queue, 10000, c.now) l
cross join lateral (
    select count(*) filter (where s.is_live and w.leaving_at is null) as live,
           count(*) filter (where w.reported_at is null and w.start_by > c.now) as starting,
           count(*) filter (where s.is_live and w.leaving_at is not null) as leaving
    from yamlsched.workers w
    cross join lateral (select w.seen_at > c.now - interval '60 seconds' as is_live) s
    where w.namespace = n.namespace and w.queue = n.queue and w.ended_at is null) w
left join yamlsched.queue_states q on q.namespace = n.namespace and q.queue = n.queue
left join lateral (
    select w.error from yamlsched.workers w
    where w.namespace = n.namespace and w.queue = n.queue and w.error is not null
      and q.failed_starts > 0
    order by w.ended_at desc limit 1) f on true;

-- Unfinished runs. Two branches, because each has its own index.
create view yamlsched.open_runs as
select * from yamlsched.job_runs a where a.finished_at is null and a.blocked_on is null
union all
select * from yamlsched.job_runs b where b.finished_at is null and b.blocked_on is not null;

-- Figures

-- Runs whose retries are exhausted. They need `yamlsched retry`, or are pruned after
-- retention.dead.
create view yamlsched.dead_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.scheduled_for, r.attempts,
       r.dead_at, r.error_type, r.last_error, r.locked_by as worker, r.definition_id
from yamlsched.job_runs r
where r.dead_at is not null;

-- Runs that are past their lease (no worker claimed them again) or past their timeout (their worker
-- did not stop them). A healthy worker does each within a minute, so a run is stuck after one more
-- minute.
create view yamlsched.stuck_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.attempts, r.max_attempts,
       r.locked_by as worker, r.started_at, r.locked_until,
       case when r.locked_until < clock_timestamp() - interval '1 minute' then 'past its lease'
            else 'past its timeout' end as why,
       r.definition_id
from yamlsched.open_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.status = 'running'
  and (r.locked_until < clock_timestamp() - interval '1 minute'
       or r.started_at + d.timeout + interval '1 minute' < clock_timestamp());

-- Whether an attempt is inside an effect that it claimed, as long as it has the lease. After a
-- cancel it may be inside until then, for its handler runs until its worker's next heartbeat.
create function yamlsched.is_inside(e yamlsched.effects) returns boolean
    language sql stable
as $$
    select exists (
        select from yamlsched.job_runs r
        where r.id = e.run_id and r.locked_by = e.locked_by and r.attempts = e.attempt
          and (r.status = 'running' or r.locked_until > clock_timestamp()))
$$;

-- Effects for which it is unknown whether they happened: an exception left the block without a
-- proof that nothing happened, or the process died inside it. waits_for: 'retry' if the run's next
-- attempt applies in_doubt, else 'person': find out whether it happened, then run `yamlsched settle
-- KEY`. provider_key is the key that the provider received.
create view yamlsched.effects_in_doubt as
select e.namespace, e.key, e.provider_key, e.run_id, r.job_type, r.status as run_status, e.attempt,
       e.claimed_at, e.doubted_at,
       case when r.status in ('queued', 'failed', 'running') then 'retry'
           else 'person' end as waits_for
from yamlsched.effects e
left join yamlsched.job_runs r on r.id = e.run_id
where e.state <> 'done' and (e.state = 'in_doubt' or not yamlsched.is_inside(e));

-- One row per job: its unfinished runs, and whether it is late.
-- failing: runs that fail again and again, by the rule of is_failing, which would take too long
-- here.
create view yamlsched.job_queues as
select d.namespace, d.job_type, d.id as definition_id, d.tags, d.enabled, d.retired_at,
       d.effective_from, state.paused,
       coalesce(open.queued, 0) as queued, coalesce(open.running, 0) as running,
       coalesce(open.failed, 0) as failed, coalesce(open.failing, 0) as failing,
       open.oldest_due_at, open.slot_run_id,
       l.since as late_since, l.why as late_why, l.slot as late_slot
from yamlsched.job_definitions d
left join (
    select r.definition_id,
           count(*) filter (where r.status = 'queued') as queued,
           count(*) filter (where r.status = 'running') as running,
           count(*) filter (where r.status = 'failed') as failed,
           count(*) filter (where r.is_failing) as failing,
           least(min(r.due_at) filter (where not r.exclusive),
                 case when not bool_or(r.has_turn)
                      then min(r.due_at) filter (where r.exclusive) end) as oldest_due_at,
           least(min(r.late_at) filter (where not r.exclusive),
                 case when not bool_or(r.has_turn)
                      then min(r.late_at) filter (where r.exclusive) end) as late_at,
           min(r.id) filter (where r.exclusive) as slot_run_id, min(r.scheduled_for) as slot
    from (select o.definition_id, o.id, o.status, o.scheduled_for,
                 o.exclusive and not o.unreleased as exclusive,
                 o.exclusive and o.status = 'running' as has_turn,
                 case when o.begun_at is null then o.late_at end as late_at,
                 case when o.status <> 'running' and o.run_at <= clock_timestamp()
                           and not o.unreleased
                      then greatest(o.run_at, o.created_at) end as due_at,
                 o.failed_at is not null
                 and o.attempts - o.prior_attempts - (o.status = 'running')::integer
                     >= greatest(1, least(3, o.max_attempts - o.prior_attempts - 1)) as is_failing
          from yamlsched.open_runs o) r
    group by r.definition_id
) open on open.definition_id = d.id
cross join lateral (
    select d.paused_at is not null and coalesce(d.paused_until > clock_timestamp(), true) as paused
) state
cross join lateral yamlsched.late(
    case when d.enabled and d.retired_at is null and not state.paused then d end,
    open.late_at, d.after = '{}' and d.overlap = 'wait' and open.slot_run_id is not null,
    open.slot) l;

-- One row per job: its state in one word (if several apply, the most severe), its last results, its
-- unfinished runs, and whether it is late.
-- failure_streak: the runs whose latest failed attempt is later than the job's last success: dead,
-- waiting for a retry or running again, but not cancelled. attempt_streak: their attempts that
-- failed after it, since an operator's retry.
create view yamlsched.job_health as
select q.namespace, q.job_type, q.definition_id, d.description, d.owner, d.tags, d.schedule,
       d.timezone, d.enabled, d.retired_at, d.effective_from, d.next_slot_at, d.last_slot_at,
       d.paused_at, d.paused_until, d.paused_by, d.paused_reason, d.paused_after, q.paused,
       case when q.retired_at is not null then 'retired'
            when stuck.definition_id is not null then 'stuck'
            when q.late_since is not null then 'late'
            when streak.has_died then 'dead'
            when q.failing > 0 then 'failing'
            when streak.runs > 0 then 'retrying'
            when q.paused then 'paused'
            when not q.enabled then 'disabled'
            when q.running > 0 then 'running'
            when d.schedule like '% until %' and d.next_slot_at is null then 'ended'
            when success.finished_at is not null then 'ok'
            else 'new' end as state,
       success.finished_at as last_success_at, success.run_id as last_success_run_id,
       failed.failed_at as last_failure_at, failed.run_id as last_failure_run_id,
       failed.last_error, failed.error_type,
       streak.runs as failure_streak, streak.attempts as attempt_streak,
       q.failing, q.queued, q.running, q.failed, q.oldest_due_at,
       q.slot_run_id as open_slot_run_id, q.late_since, q.late_why, q.late_slot,
       d.overlap
from yamlsched.job_queues q
join yamlsched.job_definitions d on d.id = q.definition_id
left join (select distinct s.definition_id
    from yamlsched.stuck_runs s) stuck on stuck.definition_id = q.definition_id
left join lateral (
    (select r.id as run_id, r.finished_at from yamlsched.job_runs r
     where r.definition_id = q.definition_id and r.finished_at is not null
       and r.status = 'succeeded'
     order by r.finished_at desc limit 1)
    union all
    (select null, p.succeeded_at from yamlsched.job_days p
     where p.definition_id = q.definition_id and p.succeeded > 0
     order by p.day desc limit 1)
    order by 2 desc limit 1
) success on true
left join lateral (
    select r.id as run_id, r.failed_at, r.last_error, r.error_type
    from yamlsched.job_runs r
    where r.definition_id = q.definition_id and r.failed_at is not null
    order by r.failed_at desc limit 1
) failed on true
left join lateral (
    -- a streak is counted up to a thousand
    select count(*) as runs, coalesce(sum(x.attempts), 0) as attempts,
           bool_or(x.is_dead) as has_died
    from (select case when r.created_at <= success.finished_at
                      then (select count(*)::integer from yamlsched.job_failures f
                            where f.run_id = r.id and f.failed_at > success.finished_at
                              and f.attempt > r.prior_attempts)
                      else greatest(r.attempts - r.prior_attempts - (r.status = 'running')::integer,
                                    (r.status = 'dead')::integer) end as attempts,
                 r.dead_at is not null as is_dead
          from yamlsched.job_runs r
          where r.definition_id = q.definition_id
            and r.failed_at > coalesce(success.finished_at, '-infinity')
            and r.status <> 'cancelled'
          order by r.failed_at desc limit 1000) x
) streak on true;

-- Jobs with a slot or a run that is late.
create view yamlsched.late_jobs as
select q.namespace, q.job_type, q.late_since as due_since,
       clock_timestamp() - q.late_since as late_by,
       q.late_why as why
from yamlsched.job_queues q
where q.late_since is not null;

-- Every change of a job by a file: what changed, field by field, and in which commit. Values that
-- look like secrets are '***'. An edit that changes no job has a row in yamlsched.edits only.
create view yamlsched.definition_changes as
select e.namespace, e.environment, d.job_type, c.change, c.before, c.after, e.hash, e.commit,
       e.is_dirty, e.author, e.subject,
       e.host, e.path, e.applied_at, e.id as edit_id
from yamlsched.edited_jobs c
join yamlsched.edits e on e.id = c.edit_id
join yamlsched.job_definitions d on d.id = c.definition_id;

-- Who serves which queue, until when that counts, and which jobs it cannot start: the ticks and
-- loops of a place, or a worker. has_file: it has the file in use, as each worker should.
create view yamlsched.queue_servers as
select h.namespace, q.name as queue, h.host, h.path, null as worker, t.seen_at, t.until,
       h.cannot_start, h.refused_at is null and h.hash = n.hash as has_file
from yamlsched.hosts h
join yamlsched.namespaces n on n.namespace = h.namespace
cross join jsonb_each_text(n.queues) as q (name, served_by)
cross join jsonb_each(h.queues) as s (name, entry)
cross join jsonb_to_record(s.entry) as t (seen_at timestamptz, until timestamptz)
where s.name = q.name or (s.name = '*' and q.served_by = 'open')
union all
select w.namespace, w.queue, w.host, w.path, w.id, w.seen_at,
       coalesce(w.ended_at, w.seen_at + interval '60 seconds'),
       (select coalesce(jsonb_object_agg(j.name, jsonb_build_object(
            'reason', j.reason, 'since', w.reported_at)), '{}')
        from jsonb_each_text(w.cannot_start) as j (name, reason)), true
from yamlsched.workers w
where w.seen_at is not null;


-- What is sent to targets of notifications

-- Whether a run of a slot or of a later one has succeeded since a time, and none of a still later
-- one has died. It is looked for among the job's last 10,000 runs.
create function yamlsched.has_succeeded(job bigint, of_slot timestamptz,
    since timestamptz) returns boolean
    language sql stable
as $$
    select coalesce(max(e.scheduled_for) filter (where e.status = 'succeeded')
                    >= greatest(of_slot, max(e.scheduled_for) filter (where e.status = 'dead')),
                    false)
    from (select r.status, r.scheduled_for from yamlsched.job_runs r
          where r.definition_id = job and r.finished_at > since order by r.finished_at desc
          limit 10000) e
$$;

-- Whether nothing is to be said of a job: it is disabled, retired, or paused by an operator.
create function yamlsched.is_silent(d yamlsched.job_definitions, now timestamptz) returns boolean
    language sql immutable
as $$
    select yamlsched.is_closed(d, now)
       and (d.paused_after is null or not d.enabled or d.retired_at is not null)
$$;

-- Note trouble of jobs, or problems, for their targets: with what is new about them, or that they
-- are still late or there. When it is sent is for `settle_notes` to say. After a recovery that was
-- sent, or trouble that was never sent, everything starts over.
create function yamlsched.note(of_namespace text, subjects jsonb, now timestamptz) returns void
    language sql
as $$
    -- `is true`: the subjects are hashed, and not compared with each row
    select from yamlsched.notifications n
    where n.namespace = of_namespace
      and (n.subject in (select s ->> 'subject' from jsonb_array_elements(subjects) s)) is true
    order by n.target, n.subject for update;

    update yamlsched.notifications n
    set slot = null, run_id = null, dead_at = null, dead_runs = 0, told_runs = 0,
        found_since = null, since = now, pause = '1 hour'
    where n.namespace = of_namespace and n.ended_at is not null and n.told = '{}'
      and (n.subject in (select s ->> 'subject' from jsonb_array_elements(subjects) s)) is true;

    insert into yamlsched.notifications as n
        (namespace, target, subject, definition_id, slot, run_id, dead_at, dead_runs, found_since,
         what, since, due_at)
    select of_namespace, t.name, s.subject, d.id, s.slot, s.run_id, s.dead_at,
           coalesce(s.dead_runs, 0), s.found_since, s.what, now, now
    from jsonb_populate_recordset(null::yamlsched.notifications, subjects) s
    left join yamlsched.job_definitions d on d.id = s.definition_id
    join yamlsched.notify_targets t
      on t.namespace = of_namespace
         and case when d.id is null then 'problem' = any (t.events)
                  else t.name = any (d.notify) and d.retired_at is null end
    order by 2, 3
    on conflict (namespace, target, subject) do update
    set slot = greatest(n.slot, excluded.slot), run_id = coalesce(excluded.run_id, n.run_id),
        dead_at = coalesce(excluded.dead_at, n.dead_at),
        dead_runs = n.dead_runs + excluded.dead_runs,
        found_since = coalesce(n.found_since, excluded.found_since), what = excluded.what,
        ended_at = null,
        due_at = least(case when n.due_at > now - interval '1 day' then n.due_at end, now)
$$;

-- What is so now of a job or a problem, of the events that a target has. A run that died is still
-- what there is to say if no run of a later slot exists, or, of a run that was enqueued, for a day.
create function yamlsched.events_now(n yamlsched.notifications, events text[],
    now timestamptz) returns text[]
    language sql stable
as $$
    select array(
        select e.event
        from unnest(events) as e (event)
        cross join (select exists (
            select from yamlsched.job_definitions d
            where d.id = n.definition_id and d.paused_after is not null) as is_paused) j
        where case e.event
              when 'paused' then j.is_paused
              when 'dead' then n.dead_runs > n.told_runs
                  or not j.is_paused and coalesce((
                      select case when r.scheduled_for is null
                                  then r.dead_at > now - interval '1 day'
                                  else not exists (
                                      select from yamlsched.job_runs l
                                      where l.definition_id = r.definition_id
                                        and l.scheduled_for > r.scheduled_for
                                        and (l.finished_at is null
                                             or l.finished_at > r.dead_at)) end
                      from yamlsched.job_runs r
                      where r.id = n.run_id and r.dead_at = n.dead_at), false)
              when 'failing' then not j.is_paused
                  and yamlsched.failing_run(n.definition_id) is not null
              when 'late' then n.found_since is not null and n.definition_id is not null
              when 'problem' then n.found_since is not null and n.definition_id is null end)
$$;

-- Note that runs, which this transaction has ended or which it retries, are dead or fail again and
-- again.
create function yamlsched.note_runs(of_namespace text, runs bigint[], now timestamptz) returns void
    language sql
as $$
    select yamlsched.note(of_namespace, jsonb_agg(to_jsonb(j)), now)
    from (select r.job_type as subject, r.definition_id, max(r.scheduled_for) as slot,
                 max(r.dead_at) as dead_at, count(r.dead_at) as dead_runs,
                 (array_agg(r.id order by r.dead_at desc, r.id desc)
                      filter (where r.dead_at is not null))[1] as run_id
          from yamlsched.job_runs r
          join yamlsched.job_definitions d on d.id = r.definition_id and d.notify <> '{}'
          where r.id = any (runs) and (r.dead_at is not null or yamlsched.is_failing(r))
          group by r.job_type, r.definition_id) j
    having count(*) > 0
$$;

-- Say what is to be sent when. A job has recovered when its slot or a later one has succeeded and
-- it is neither late nor failing, whichever events a target has. What recovers for the second time
-- within an hour first has to be well for an hour. What has ended stays so until `note` finds new
-- trouble: its success may be pruned. `problems`: those that there are; null: unknown.
create function yamlsched.settle_notes(of_namespace text, problems jsonb, now timestamptz)
    returns void
    language plpgsql
as $$
declare
    found jsonb;
begin
    -- A slot that was skipped is not late if a later one, or a backfill of it, has succeeded.
    select coalesce(jsonb_agg(jsonb_build_object(
               'subject', q.job_type, 'definition_id', q.definition_id,
               'found_since', q.late_since, 'slot', q.late_slot)), '[]') || coalesce(problems, '[]')
    into found
    from yamlsched.job_queues q
    join yamlsched.job_definitions d on d.id = q.definition_id and d.notify <> '{}'
    where q.namespace = of_namespace and q.late_since is not null
      and not (q.late_why in ('its slot was not run', 'a run died that it waited for')
               and yamlsched.has_succeeded(d.id, q.late_slot, q.late_slot));
    perform from yamlsched.notifications n where n.namespace = of_namespace
    order by n.target, n.subject for update;
    perform yamlsched.note(of_namespace, found, now);
    update yamlsched.notifications n set found_since = null
    where n.namespace = of_namespace and n.found_since is not null
      and (n.definition_id is not null or problems is not null)
      and (n.subject in (select f ->> 'subject' from jsonb_array_elements(found) f)) is not true;
    update yamlsched.notifications n
    set (ended_at, recovered_at, due_at) = (
        select case when s.is_well then coalesce(n.ended_at, now) end,
               case when s.is_well and n.ended_at is null then now else n.recovered_at end,
               case when s.is_well and n.told = '{}' or s.is_silent then null
                    when n.ended_at is not null then coalesce(n.due_at, now)
                    when s.is_well and n.recovered_at > now - interval '1 hour'
                        then now + interval '1 hour'
                    when s.is_well then now
                    when s.events = '{}' then null
                    when s.events <@ n.told and n.definition_id is null then null
                    when s.events <@ n.told and n.quiet_until > now then n.quiet_until
                    else least(n.due_at, now) end
        from (select yamlsched.events_now(n, t.events, now) as events,
                     d.id is not null and yamlsched.is_silent(d, now) as is_silent,
                     n.ended_at is not null or n.found_since is null and (d.id is null or (
                         d.paused_after is null and n.slot is not null
                         and yamlsched.failing_run(d.id) is null
                         and yamlsched.has_succeeded(d.id, n.slot, coalesce(n.dead_at, n.slot))))
                         as is_well
              from (select) one
              left join yamlsched.job_definitions d on d.id = n.definition_id offset 0) s)
    from yamlsched.notify_targets t
    where n.namespace = of_namespace and (t.namespace, t.name) = (n.namespace, n.target);
    -- For a target without the event the trouble ends when it would be sent.
    update yamlsched.notifications n set told = '{}', due_at = null
    from yamlsched.notify_targets t
    where n.namespace = of_namespace and n.ended_at is not null and n.due_at <= now
      and n.definition_id is not null
      and (t.namespace, t.name) = (n.namespace, n.target) and 'recovered' <> all (t.events);
    perform yamlsched.forget_notes(of_namespace, now);
end
$$;

-- Delete what could not be sent for a day, what ended an hour ago, and trouble that is over without
-- a message: of a job that is silent or has left, or of enqueued runs.
create function yamlsched.forget_notes(of_namespace text, now timestamptz) returns void
    language sql
as $$
    delete from yamlsched.notifications n
    using yamlsched.notify_targets t
    where n.namespace = of_namespace and (t.namespace, t.name) = (n.namespace, n.target) and (
        n.due_at < now - interval '1 day'
        or n.ended_at is not null and n.told = '{}' and n.recovered_at < now - interval '1 hour'
        or n.definition_id is null and 'problem' <> all (t.events)
        or exists (select from yamlsched.job_definitions d
                   where d.id = n.definition_id
                     and (d.retired_at is not null or n.target <> all (d.notify)
                          or case when yamlsched.is_silent(d, now) then n.told <> '{}'
                                  else n.slot is null and n.due_at is null end)))
$$;

-- The names of the targets to which a message is due; null: there are no targets.
create function yamlsched.messages_due(of_namespace text, now timestamptz) returns text[]
    language sql stable
as $$
    select array_agg(distinct case when t.next_at <= now and exists (
               select from yamlsched.notifications n
               where n.namespace = t.namespace and n.target = t.name and n.due_at <= now)
                   then t.name end)
    from yamlsched.notify_targets t where t.namespace = of_namespace
$$;


-- Jobs that pause by themselves

-- Whether as many of a job's runs in a row as its pause_after says have ended dead, the last of
-- them since its latest edit: an edit alone pauses nothing. They are counted from a resume on,
-- without those that were cancelled, or made by hand.
create function yamlsched.is_dying(d yamlsched.job_definitions, now timestamptz) returns boolean
    language sql stable
as $$
    select not yamlsched.is_closed(d, now) and (
        select count(e.dead_at) = d.pause_after and max(e.dead_at) >= d.applied_at
        from (select r.dead_at from yamlsched.job_runs r
              where r.definition_id = d.id and r.status <> 'cancelled'
                and r.finished_at > coalesce(greatest(d.resumed_at, d.paused_until), '-infinity')
                and not r.by_hand
              order by r.finished_at desc, r.id desc limit d.pause_after) e)
$$;

-- Pause those jobs that are dying: of some runs, or null: all. Who pauses, resumes or edits a job
-- locks its row, too, so that one session pauses it, once. A slot that is due already becomes a gap
-- by the next sync. Called in a transaction of its own, after the one in which a run has died, and
-- once a minute, if the session died in between.
create function yamlsched.pause_dying(of_namespace text, run_ids bigint[], now timestamptz)
    returns table (id bigint, job_type text, reason text)
    language plpgsql
as $$
#variable_conflict use_column
declare
    ids  bigint[];
    jobs yamlsched.job_definitions[];
begin
    ids := array(
        select d.id from yamlsched.job_definitions d
        where d.namespace = of_namespace and d.pause_after is not null
          and (run_ids is null or d.id in (select r.definition_id from yamlsched.job_runs r
                                           where r.id = any (run_ids)))
          and yamlsched.is_dying(d, now)
        order by d.id for no key update);
    with paused as (
        update yamlsched.job_definitions d
        set paused_at = now, paused_until = null, paused_by = 'yamlsched',
            paused_after = d.pause_after, updated_at = now,
            next_slot_at = case when d.next_slot_at <= now then d.next_slot_at end,
            paused_reason = format(
                '%s, the last is run %s: %s',
                case d.pause_after when 1 then '1 dead run'
                                   else d.pause_after || ' dead runs in a row' end,
                l.id, concat_ws(': ', l.error_type, nullif(l.last_error, '')))
        from (select distinct on (r.definition_id) r.definition_id, r.id, r.error_type, r.last_error
              from yamlsched.job_runs r
              where r.definition_id = any (ids) and r.dead_at is not null
              order by r.definition_id, r.dead_at desc) l
        where l.definition_id = d.id
          and yamlsched.is_dying(d, now)     -- a later statement than the lock
        returning d.*
    )
    select array_agg(p::yamlsched.job_definitions) into jobs from paused p;
    insert into yamlsched.operator_actions (at, namespace, who, verb, target, job_type, detail)
    select now, of_namespace, j.paused_by, 'pause', 'job:' || j.job_type, j.job_type,
           jsonb_build_object('reason', j.paused_reason)
    from unnest(jobs) j;
    update yamlsched.notifications n set told = array_remove(n.told, 'paused')
    from (select o.target, o.subject from yamlsched.notifications o
          join unnest(jobs) j on j.id = o.definition_id
          where o.namespace = of_namespace order by o.target, o.subject for update of o) o
    where n.namespace = of_namespace and (n.target, n.subject) = (o.target, o.subject);
    perform yamlsched.note(of_namespace, jsonb_agg(jsonb_build_object(
        'subject', j.job_type, 'definition_id', j.id)), now)
    from unnest(jobs) j having count(*) > 0;
    return query select j.id, j.job_type, j.paused_reason from unnest(jobs) j;
end
$$;


-- What each tick asks

-- Until when a place, or a queue of it, counts after a tick: 5 minutes, or twice the time since the
-- tick before, at most 2 hours. A tick within 50 s of another one is of a second line of the same
-- crontab: it does not end what the first one has promised.
create function yamlsched.expected_until(seen_at timestamptz, until timestamptz, now timestamptz)
    returns timestamptz
    language sql immutable
as $$
    select case
        when now < seen_at + interval '50 seconds' then greatest(until, now + interval '5 minutes')
        else now + least(interval '2 hours', greatest(interval '5 minutes', 2 * (now - seen_at)))
    end
$$;

-- Write the row of a place, which was `place` before and ticked then. What was refused is noted
-- until the file is valid.
create function yamlsched.put_place(
    tick yamlsched.hosts, place yamlsched.hosts, is_valid boolean, by_hand boolean,
    ticked_at timestamptz, now timestamptz) returns void
    language plpgsql
as $$
begin
    if is_valid then
        tick.errors := null;
    elsif tick.errors is null then
        tick.errors := place.errors;
        tick.refused_hash := place.refused_hash;
    end if;
    tick.refused_hash := case when tick.errors is not null then tick.refused_hash end;
    tick.refused_at := case when tick.errors is not null then coalesce(place.refused_at, now) end;
    tick.expected_until := yamlsched.expected_until(
        case when by_hand then now else ticked_at end, place.expected_until, now);
    select coalesce(jsonb_object_agg(n.name, jsonb_build_object('seen_at', now, 'until',
        yamlsched.expected_until(coalesce(f.seen_at, ticked_at), f.until, now))), '{}')
    into tick.queues
    from jsonb_array_elements_text(tick.queues) as n (name)
    left join jsonb_each(place.queues) as e (name, entry) on e.name = n.name
    left join lateral jsonb_to_record(e.entry) as f (seen_at timestamptz, until timestamptz)
        on true;
    tick.seen_at := now;
    tick.first_seen_at := now;
    tick.cannot_start := '{}';
    insert into yamlsched.hosts as h select (tick).*
    on conflict (host, path, namespace) do update
    set (include, is_named, hash, environment, yamlsched_version, tzdata_version, since,
         refused_hash, refused_at, errors, queues, seen_at, expected_until)
        = (excluded.include, excluded.is_named, excluded.hash, excluded.environment,
           excluded.yamlsched_version, excluded.tzdata_version, excluded.since,
           excluded.refused_hash, excluded.refused_at, excluded.errors, h.queues || excluded.queues,
           excluded.seen_at, excluded.expected_until);
end
$$;

-- Write which file a place has, and return what decides about it (sync/in_use.py). `tick` is what a
-- tick knows of its row, `place` the row before, and `fellow` the other places.
--
-- A file is valid if it was read (is_valid), was in use, or another place has it. With any other a
-- place keeps the one that it had; a new name has the one in use of its path. The tick before is,
-- of a new name, that of its path. other_namespace: an option named that one for this place, which
-- counts there while it ticks.
create function yamlsched.report_file(
    tick yamlsched.hosts, is_valid boolean, by_hand boolean, writes boolean, now timestamptz,
    out was_in_use boolean, out had_file boolean, out has_file_since timestamptz,
    out others text[], out other_tzdata text[], out other_namespace text)
    language plpgsql
as $$
declare
    place  yamlsched.hosts;
    fellow record;
    in_use yamlsched.namespaces;
begin
    select n.* into in_use from yamlsched.namespaces n where n.namespace = tick.namespace;
    select h.* into place from yamlsched.hosts h
    where h.host = tick.host and h.path = tick.path and h.namespace = tick.namespace;
    select coalesce(bool_or(h.hash = tick.hash), false) as has_file,
           bool_or(h.hash = in_use.hash and h.path = tick.path) as has_file_in_use,
           min(h.since) filter (where h.hash = tick.hash and h.expected_until > now) as since,
           max(h.seen_at) filter (where h.path = tick.path) as seen_at,
           array_agg(distinct h.hash) filter (where h.expected_until > now) as hashes,
           array_agg(distinct h.tzdata_version) filter (where h.expected_until > now) as tzdata
    into fellow from yamlsched.hosts h
    where h.namespace = tick.namespace and (h.host, h.path) <> (tick.host, tick.path);
    others := coalesce(array_remove(fellow.hashes, null), '{}');
    other_tzdata := coalesce(fellow.tzdata, '{}');
    select h.namespace into other_namespace from yamlsched.hosts h
    where h.host = tick.host and h.path = tick.path and h.namespace <> tick.namespace
      and h.is_named and h.expected_until > now and place.host is null
    order by h.seen_at desc limit 1;
    was_in_use := exists (
        select from yamlsched.files f
        where (f.namespace, f.hash, f.environment) = (tick.namespace, tick.hash, tick.environment));
    had_file := coalesce(place.hash = tick.hash, false);
    is_valid := (is_valid or was_in_use or had_file or fellow.has_file)
        and (in_use.hash is null or in_use.environment = tick.environment);
    has_file_since := coalesce(
        case when had_file or not is_valid then place.since else fellow.since end, now);
    if not writes then
        return;
    end if;
    if other_namespace is not null and not (by_hand and tick.is_named and is_valid) then
        update yamlsched.hosts h
        set expected_until = greatest(h.expected_until, now + interval '5 minutes')
        where h.host = tick.host and h.path = tick.path and h.namespace = other_namespace;
        return;
    end if;
    tick.refused_hash := tick.hash;
    tick.hash := case
        when is_valid then tick.hash
        when place.host is not null then place.hash
        when fellow.has_file_in_use or in_use.path = tick.path then in_use.hash end;
    tick.since := has_file_since;
    perform yamlsched.put_place(
        tick, place, is_valid, by_hand, coalesce(place.seen_at, fellow.seen_at), now);
end
$$;

-- Return what there is to do, if anything. Each is found by index: the scalar subqueries are probes
-- that no plan can turn into a table scan.
create function yamlsched.due_work(of_namespace text, now timestamptz,
    out has_due_jobs boolean, out has_claimable_runs boolean, out has_lost_limits boolean,
    out messages_due text[])
    language plpgsql stable
as $$
begin
    has_due_jobs := coalesce((
        select true
        from yamlsched.job_definitions d
        where d.namespace = of_namespace
          and d.next_slot_at <= now
          and (d.overlap <> 'wait' or d.after <> '{}' or (
              select r.id from yamlsched.job_runs r
              where r.namespace = d.namespace and r.definition_id = d.id
                and r.finished_at is null and r.exclusive
              order by r.priority, r.run_at, r.id limit 1) is null)
        order by d.next_slot_at limit 1), false);
    has_claimable_runs := coalesce((
        select true
        from yamlsched.queue_levels(of_namespace) e       -- so that the index bounds run_at
        cross join lateral (
            select r.id
            from yamlsched.job_runs r
            where r.namespace = of_namespace and r.queue = e.queue and r.priority = e.priority
              and r.blocked_on is null
              and r.finished_at is null and r.run_at <= now and coalesce(r.locked_until < now, true)
            order by r.run_at, r.id limit 1) r
        limit 1
    ), (
        select true
        from yamlsched.job_runs r
        where r.namespace = of_namespace and r.blocked_on is not null
          and r.finished_at is null and r.run_at <= now
        order by r.namespace, r.blocked_on, r.priority, r.run_at, r.id limit 1
    ), (
        select true
        from yamlsched.permits p
        where p.namespace = of_namespace
        order by p.namespace, p.name, p.n limit 1), false);
    has_lost_limits := coalesce((
        select true      -- a deletion, or a partial restore: the number is in the file
        from yamlsched.job_definitions d
        where d.namespace = of_namespace and d.limit_name is not null and d.retired_at is null
          and (select g.capacity from yamlsched.gates g
               where g.namespace = d.namespace and g.name = 'limit/' || d.limit_name) is null
        order by d.namespace, d.limit_name limit 1), false);
    messages_due := yamlsched.messages_due(of_namespace, now);
end
$$;

-- The search_path of all functions: no caller's own function or operator takes the place of a
-- built-in one. Nobody may call those that act with the privileges of their owner.
do $$
declare
    one record;
begin
    for one in select p.oid::regprocedure as name, p.prosecdef from pg_proc p
               where p.pronamespace = 'yamlsched'::regnamespace loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', one.name);
        if one.prosecdef then
            execute format('revoke execute on function %s from public', one.name);
        end if;
    end loop;
end
$$;
