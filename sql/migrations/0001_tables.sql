-- The tables, constraints and indexes of yamlsched. Creates only; locks nothing that exists.
create schema if not exists yamlsched;

create table yamlsched.migrations (
    version    integer primary key,
    name       text not null,
    checksum   text not null,          -- sha256 of the file: a released migration is never edited
    oldest_supported integer not null, -- a yamlsched whose own latest migration is this one or later works with the tables
    applied_at timestamptz not null default clock_timestamp(),
    constraint supports_itself check (oldest_supported between 1 and version)
);

-- The identity of the database. Every key that is passed to a provider contains it, so that no two databases pass the
-- same key. A restored backup keeps it; a copy that is used beside its original needs `yamlsched db identity --new`.
create table yamlsched.database_identity (
    only_row   boolean primary key default true check (only_row),
    identity   uuid not null default gen_random_uuid(),
    created_at timestamptz not null default clock_timestamp()
);
insert into yamlsched.database_identity default values;

-- One row per namespace, locked while a file is applied.
create table yamlsched.namespaces (
    namespace text primary key
);

-- The jobs, as last applied from schedules.yaml. A job that leaves the file is retired, never deleted.
create table yamlsched.job_definitions (
    id             bigint generated always as identity primary key,
    namespace      text not null,
    job_type       text not null,
    handler        text,               -- this or command; both for display only: a worker uses its own file
    command        text[] not null default '{}',
    env            jsonb not null default '{}',
    cwd            text,
    stdin          text,
    exit_codes     jsonb not null default '{}',
    payload        jsonb not null default '{}',
    executor       text not null default 'local',  -- a name: what it stands for is in the worker's own file
    resources      jsonb not null default '{}',  -- what the executor reserves for each attempt
    isolation      text not null default 'process' check (isolation in ('process', 'shared')),
    schedule       text,               -- the cron expression; null: runs only when enqueued
    timezone       text not null,
    priority       smallint not null default 2 check (priority between 1 and 3),  -- high, normal, low: see job_runs
    max_attempts   integer not null check (max_attempts between 1 and 100),
    backoff        jsonb not null,
    timeout        interval not null,
    kill_after     interval not null default '10 seconds',
    lease          interval not null check (lease >= interval '2 seconds'),
    overlap        text not null check (overlap in ('wait', 'skip', 'allow')),
    catchup        text not null check (catchup in ('latest', 'all', 'none')),
    catchup_window interval not null,
    spread         interval not null,
    on_dead        text,
    output         jsonb not null default '{"keep": "failed"}',
    description    text not null default '',
    owner          text not null default '',
    tags           text[] not null default '{}',
    enabled        boolean not null,   -- by the file and the environment
    effective_from timestamptz not null,  -- slots after this instant count
    last_slot_at   timestamptz,        -- the cursor: every slot up to here is accounted for
    next_slot_at   timestamptz,        -- the next slot to account for; null: none is owed
    paused_at      timestamptz,        -- set by an operator; no sync changes these four
    paused_until   timestamptz,
    paused_by      text,
    paused_reason  text,
    retired_at     timestamptz,        -- when the job left the file
    created_at     timestamptz not null default clock_timestamp(),
    applied_at     timestamptz not null default clock_timestamp(),  -- when a file changed it last
    updated_at     timestamptz not null default clock_timestamp(),
    unique (namespace, job_type),
    constraint handler_or_command check ((handler is null) = (command <> '{}')),
    constraint pause_is_whole check (paused_at is not null or (paused_until is null and paused_by is null and paused_reason is null)),
    constraint cursor_needs_a_schedule check (schedule is not null or next_slot_at is null)
);

-- A tick finds jobs with due slots through this index.
create index job_definitions_due on yamlsched.job_definitions (namespace, next_slot_at) where next_slot_at is not null;
create index job_definitions_retired on yamlsched.job_definitions (namespace, retired_at) where retired_at is not null;
-- Jobs whose runs may not be claimed: a claim reads these few entries instead of the job of each run. They have what
-- `is_withheld` needs, so that the rows are not read.
create index job_definitions_withheld on yamlsched.job_definitions (namespace, id)
    include (enabled, retired_at, paused_at, paused_until)
    where not enabled or retired_at is not null or paused_at is not null;
-- Where many are withheld, a claim walks through the others: those, and the jobs whose pause is over.
create index job_definitions_claimable on yamlsched.job_definitions (namespace, id)
    where enabled and retired_at is null and paused_at is null;
create index job_definitions_paused_until on yamlsched.job_definitions (namespace, paused_until)
    where paused_until is not null;

-- Whether a job's runs may not be claimed now: it is disabled, paused or retired.
create function yamlsched.is_withheld(d yamlsched.job_definitions, now timestamptz) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp
as $$ select not d.enabled or d.retired_at is not null or (d.paused_at is not null and coalesce(d.paused_until > now, true)) $$;

-- Write jobs: insert those that are new, update the others in place. Each job is an object with the same keys, which are
-- columns. Columns that a release does not know keep their value, or get their default: the statement is made from the
-- keys, so that no list of columns has to be kept equal to the table's.
create function yamlsched.put_definitions(jobs jsonb) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    given text[] := array(select format('%I', k.key) from jsonb_object_keys(jobs -> 0) as k (key) order by k.key);
    kept  text[] := array['namespace', 'job_type', 'created_at'];
begin
    execute format(
        'insert into yamlsched.job_definitions (%s) select %s'
        ' from jsonb_populate_recordset(null::yamlsched.job_definitions, $1) j'
        ' on conflict (namespace, job_type) do update set %s',
        (select string_agg(g.name, ', ') from unnest(given) as g (name)),
        (select string_agg('j.' || g.name, ', ') from unnest(given) as g (name)),
        (select string_agg(g.name || ' = excluded.' || g.name, ', ') from unnest(given) as g (name)
         where g.name <> all (kept)))
    using jobs;
end
$$;

-- One row per slot or enqueue, executed once.
create table yamlsched.job_runs (
    -- First the columns that every row has, of fixed width and without gaps: an update compares all columns that indexes
    -- mention, and finds those after a string or a null by reading the row. Then in the order in which they change, by a
    -- claim and at the end of an attempt: what is logged of an update starts at the first change.
    id              bigint generated always as identity primary key,
    definition_id   bigint not null references yamlsched.job_definitions (id),
    run_at          timestamptz not null,
    -- A failover or a restore may lose a run and use its id again: this distinguishes the two. 48 random bits at least,
    -- which together with the id is enough; a uuid would make a bulk enqueue a sixth slower.
    nonce           bigint not null default (random() * 9007199254740992)::bigint,
    created_at      timestamptz not null default clock_timestamp(),
    max_attempts    integer not null check (max_attempts >= 1),
    prior_attempts  integer not null default 0,  -- attempts before the latest retry: the backoff starts over
    sessions_lost   integer not null default 0 check (sessions_lost >= 0),  -- consecutive attempts that were released at no cost
    priority        smallint not null default 2 check (priority between 1 and 3),  -- 1 high, 2 normal, 3 low
    exclusive       boolean not null default false,  -- a slot run of a wait or skip job
    namespace       text not null,
    job_type        text not null,
    payload         jsonb not null default '{}',
    idempotency_key text,
    scheduled_for   timestamptz,       -- the slot; null: enqueued
    parent_id       bigint,            -- the run whose handler enqueued this one
    trace_context   text,              -- W3C: the traceparent of the span that enqueued it, and after a space the tracestate
    attempts        integer not null default 0 check (attempts >= 0),
    locked_by       text,              -- new for every claim; kept when the lease ends: the last owner
    started_at      timestamptz,       -- of the latest claim
    status          text not null default 'queued'
                    check (status in ('queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')),
    updated_at      timestamptz not null default clock_timestamp(),
    locked_until    timestamptz,       -- the lease
    exclusive_of    bigint,            -- the definition's id while such a run is running
    held_until      timestamptz,       -- until then its handler may be alive although exclusive_of is null; see below
    finished_at     timestamptz,
    failed_at       timestamptz,       -- of the latest failed attempt
    dead_at         timestamptz,       -- finished_at of dead runs, for an index that does not mention status
    last_error      text,
    error_type      text,
    last_stack      text,
    result          jsonb,
    -- A lease exists exactly while a run is running: half-claimed rows cannot be stored.
    constraint lease_iff_running check ((status = 'running') = (locked_until is not null)),
    constraint finished_iff_final check ((status in ('succeeded', 'dead', 'cancelled')) = (finished_at is not null)),
    constraint dead_has_a_time check ((status = 'dead') = (dead_at is not null)),
    constraint attempts_within_budget check (attempts <= max_attempts),
    constraint running_has_an_owner check (status <> 'running' or (locked_by is not null and attempts >= 1)),
    constraint exclusive_only_while_running
        check (exclusive_of is null or (status = 'running' and exclusive and exclusive_of = definition_id))
) with (fillfactor = 40);              -- room for the claim's new row version on the same page, so that no index changes

-- Whether no worker owns an unfinished run: it waits, or its lease has ended.
create function yamlsched.has_no_worker(r yamlsched.job_runs, now timestamptz) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp
as $$ select r.status <> 'running' or r.locked_until < now $$;

-- One row per key, however many ticks race.
create unique index job_runs_key on yamlsched.job_runs (namespace, idempotency_key) where idempotency_key is not null;
-- At most one slot run of a wait or skip job executes at once, however it was created.
create unique index job_runs_exclusive on yamlsched.job_runs (exclusive_of) where exclusive_of is not null;
-- Runs that exclude others of their job and may be executing without exclusive_of, up to the end of their lease: claimed
-- while the job still had overlap: allow, or cancelled, when the handler lives until its worker's next heartbeat. No
-- other run of the job starts before.
create index job_runs_held on yamlsched.job_runs (definition_id, held_until) where held_until is not null and exclusive;
-- Unfinished runs, for claims, which read one priority at a time. No index mentions status, because every claim would
-- change the index.
create index job_runs_open on yamlsched.job_runs (namespace, priority, run_at, id)
    where finished_at is null and not exclusive;
create index job_runs_open_exclusive on yamlsched.job_runs (namespace, definition_id, priority, run_at, id)
    where finished_at is null and exclusive;
-- The same runs in order of time: a claim reads due runs by time, and continues job by job if it may not claim them,
-- however many they are.
create index job_runs_due_exclusive on yamlsched.job_runs (namespace, priority, run_at, definition_id)
    where finished_at is null and exclusive;
create index job_runs_open_of_job on yamlsched.job_runs (namespace, definition_id, priority, run_at, id)
    where finished_at is null and not exclusive;
-- Runs of one job by their end, unfinished ones included, for retention and monitoring. Each index slows every finish.
-- So there is no second index by id: a page of one job's history is found through the primary key if the job has many
-- runs, and by sorting if it has few. The next indexes order runs by their death and by their latest failure.
create index job_runs_history on yamlsched.job_runs (definition_id, finished_at, id);
create index job_runs_dead on yamlsched.job_runs (definition_id, dead_at) where dead_at is not null;
-- The runs of a namespace that died last, of all jobs.
create index job_runs_died on yamlsched.job_runs (namespace, dead_at, definition_id) where dead_at is not null;
create index job_runs_failed on yamlsched.job_runs (definition_id, failed_at) where failed_at is not null;
-- The runs that a run enqueued.
create index job_runs_children on yamlsched.job_runs (parent_id, id) where parent_id is not null;

-- One row per failed or lost attempt: the audit trail.
create table yamlsched.job_failures (
    run_id     bigint not null,
    attempt    integer not null,
    worker     text not null,
    started_at timestamptz,
    failed_at  timestamptz not null,
    error      text not null,
    error_type text,
    stack      text,
    primary key (run_id, attempt)
);

-- The end of what an attempt printed, if its job keeps it. A table of its own, so that nothing else reads past it. An
-- attempt that was released leaves its number to the next one: worker is the claim that the output belongs to.
create table yamlsched.attempt_outputs (
    run_id        bigint not null,
    attempt       integer not null,
    worker        text not null,
    ended_at      timestamptz not null,
    omitted_bytes bigint not null check (omitted_bytes >= 0),  -- before `output`
    output        text not null,
    primary key (run_id, attempt)
);

-- How far attempts have come, as their handlers report it. A table of its own: it is written each second, and the old
-- versions of its rows stay out of job_runs, which claims read. One row per attempt, `worker` as in attempt_outputs.
create table yamlsched.attempt_progress (
    run_id      bigint not null,
    attempt     integer not null,
    reported_at timestamptz not null,   -- when this value was written first
    done        double precision not null check (done between 0 and 9007199254740992),
    total       double precision check (total between 0 and 9007199254740992),
    worker      text not null,
    note        text not null,
    primary key (run_id, attempt)
) with (fillfactor = 50);

-- Begin tickets of attempts on executors other than "local". An engine may start one attempt twice: only the agent that
-- inserts the ticket may call the handler. It writes how the attempt ended into the ticket before it exits, so that an
-- engine that loses a result does not cause a second execution. The worker inserts one without an agent to withdraw an
-- attempt that has not begun. locked_by is the claim: an attempt that was released leaves its number to the next one.
create table yamlsched.attempt_begins (
    run_id         bigint not null,
    attempt        integer not null,
    locked_by      text not null,
    agent          text,                  -- host, process id and a random part; null: withdrawn by the worker
    begun_at       timestamptz not null,
    seen_at        timestamptz not null,  -- when the agent last checked the lease: each quarter of it
    stop_requested boolean not null default false,  -- by the worker; the agent reads it when it checks the lease
    ended_at       timestamptz,
    outcome        text,                  -- JSON, as the agent wrote it; for the worker only
    primary key (run_id, attempt, locked_by),
    constraint withdrawn_has_ended check (agent is not null or (ended_at is not null and outcome is null)),
    constraint outcome_iff_ended check (agent is null or (outcome is not null) = (ended_at is not null))
);

-- What belongs to runs goes with them, by one statement for each table: a foreign key checks every insert, and deletes
-- row by row, which takes half the time of a prune. With the owner's rights: a worker may delete runs, but no failures.
create function yamlsched.delete_of_runs() returns trigger
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off  -- a plan that was made for empty tables
as $$
declare
    ids bigint[] := array(select g.id from gone g);
begin
    if ids <> '{}' then
        delete from yamlsched.job_failures f where f.run_id = any (ids);
        delete from yamlsched.attempt_outputs o where o.run_id = any (ids);
        delete from yamlsched.attempt_progress p where p.run_id = any (ids);
        delete from yamlsched.attempt_begins b where b.run_id = any (ids);
    end if;
    return null;
end
$$;
revoke execute on function yamlsched.delete_of_runs() from public;
create trigger delete_of_runs after delete on yamlsched.job_runs
    referencing old table as gone
    for each statement execute function yamlsched.delete_of_runs();

-- Slots that were not run, one row per gap, and why.
create table yamlsched.skipped_slots (
    id            bigint generated always as identity primary key,
    definition_id bigint not null references yamlsched.job_definitions (id),
    first_slot    timestamptz not null,
    last_slot     timestamptz not null,
    slots         integer not null check (slots >= 1),
    reason        text not null
                  check (reason in ('overlap', 'late', 'superseded', 'paused', 'disabled', 'retired', 'key_taken')),
    recorded_at   timestamptz not null default clock_timestamp(),
    constraint gap_is_a_span check (last_slot >= first_slot),
    unique (definition_id, last_slot)
);

-- Effects that happen once however often a run is attempted.
create table yamlsched.effects (
    id         bigint generated always as identity primary key,
    namespace  text not null,
    key        text not null,          -- run:<run id>:<name>, or a business key
    run_id     bigint not null,
    attempt    integer not null,
    locked_by  text not null,          -- the claim under which it was entered
    entry      uuid not null,          -- new each time a handler enters the effect: the owner of this row
    provider_key uuid not null,        -- effect.key: the same however often the effect is repeated
    state      text not null check (state in ('claimed', 'done', 'in_doubt')),
    result     jsonb,
    claimed_at timestamptz not null default clock_timestamp(),
    doubted_at timestamptz,            -- in doubt since; on a done effect: in_doubt="skip" counted it as done
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

-- Which files hosts present, and which were applied. The file in force is the one applied last in its namespace.
create table yamlsched.schedule_files (
    id                bigint generated always as identity primary key,
    namespace         text not null,
    hash              text not null,   -- sha256 of the bytes
    environment       text not null,   -- '' if none is set
    host              text not null,
    path              text not null,
    overrides_namespace boolean not null default false,  -- --namespace or YAMLSCHED_NAMESPACE set the namespace
    yamlsched_version text not null,   -- of the tick that applied it last; before that, of the first to present it
    tzdata_version    text not null,   -- likewise
    host_tzdata_version text not null default '',  -- of this host, when it presented the file last
    retention         jsonb not null default '{}',
    first_presented_at timestamptz not null default clock_timestamp(),
    presented_since_at timestamptz not null default clock_timestamp(),
    last_presented_at  timestamptz not null default clock_timestamp(),
    presented_for      interval not null default '5 minutes',  -- how long that counts: longer if ticks are rare
    applied_at        timestamptz,     -- the latest time this host applied it
    refused_at        timestamptz,     -- since when this host has presented an invalid file after it
    mistakes          integer,         -- the number of its errors
    errors            text[],          -- the first ones of them
    housekept_at      timestamptz,     -- when retention last ran, on the file in force
    prune_failing_since timestamptz,   -- since when it could not, until somebody acts
    prune_error       text,
    unique (namespace, hash, environment, host, path),
    constraint refused_for_mistakes
        check ((refused_at is null) = (mistakes is null) and (refused_at is not null or errors is null))
);
create index schedule_files_in_force on yamlsched.schedule_files (namespace, applied_at desc) where applied_at is not null;
create index schedule_files_hash on yamlsched.schedule_files (hash);
create index schedule_files_place on yamlsched.schedule_files (host, path);

-- Each file that was applied, and the jobs that it changed: who changed what, and when. Retention keeps them.
create table yamlsched.edits (
    id          bigint generated always as identity primary key,
    namespace   text not null,
    environment text not null,         -- '' if none is set
    hash        text not null,         -- sha256 of the bytes
    host        text not null,         -- that applied it
    path        text not null,
    yamlsched_version text not null,
    commit      text,                  -- that changed the file last, or YAMLSCHED_REVISION; null: not known
    is_dirty    boolean not null default false,  -- the file differs from the commit
    author      text,
    subject     text,
    jobs        jsonb not null,        -- how many were changed: {"added": {"jobs": 12, "first": ["cleanup", ...]}, ...}
    before      jsonb,                 -- keys outside of jobs that changed, as the file before had them; null: the first file
    after       jsonb not null,
    settings    jsonb not null,        -- all keys outside of jobs, for the comparison with the next file
    applied_at  timestamptz not null,
    constraint dirty_needs_a_commit check (commit is not null or not is_dirty)
);
create index edits_trail on yamlsched.edits (namespace, applied_at, id);

-- The jobs that an edit changed. Values that look like secrets are stored as '***', and long ones are cut.
create table yamlsched.edited_jobs (
    edit_id       bigint not null references yamlsched.edits (id) on delete cascade,
    definition_id bigint not null references yamlsched.job_definitions (id) on delete cascade,
    change        text not null check (change in ('added', 'changed', 'retired', 'returned')),
    before        jsonb,               -- the keys that changed; of a retired job all that it set; null: there was no job
    after         jsonb,               -- likewise; null: retired
    primary key (edit_id, definition_id),
    constraint before_unless_added check ((before is null) = (change = 'added')),
    constraint after_unless_retired check ((after is null) = (change = 'retired'))
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
    -- The form of the web page that asked for it, which sets this in its transaction: a form is carried out once.
    request   uuid default nullif(current_setting('yamlsched.request', true), '')::uuid
);
create index operator_actions_target on yamlsched.operator_actions (namespace, target, id);
-- The audit trail, newest first, and by its filters.
create index operator_actions_trail on yamlsched.operator_actions (namespace, id);
create index operator_actions_verb on yamlsched.operator_actions (namespace, verb, id);
create index operator_actions_who on yamlsched.operator_actions (namespace, who, id);
create index operator_actions_job on yamlsched.operator_actions (namespace, job_type, id);
create index operator_actions_request on yamlsched.operator_actions (request, id) where request is not null;
