-- Whether a run may be claimed is stored. Locks job_definitions, which it rewrites, and job_runs, while it adds columns with
-- constant defaults, which writes no row, and builds indexes of unfinished runs: some seconds for millions of runs. Claims
-- wait meanwhile. A worker of an older release works beside it, only slower, and ends no reason: the sweep lets go what waits.
-- oldest_supported: 3

-- Where the job's runs execute: a value of job_runs.lane.
alter table yamlsched.job_definitions add column lane text not null generated always as
    (case when executor <> 'local' then executor when isolation = 'shared' then 'shared' else 'local' end) stored;
alter table yamlsched.job_definitions add column limit_name text;  -- a key of `limits` in the file
create index job_definitions_limit on yamlsched.job_definitions (namespace, limit_name) where limit_name is not null;

-- withheld: why a waiting run may not be claimed: 1 its job, 2 its turn, 3 its limit, 4 it is not released; 0: it may.
-- Whatever creates a run or brings it back writes 0. Only a claim stores a reason, under the gate of the reason. Who ends a
-- reason writes 0, under the same gate: the next claim looks again.
-- lane: where the run executes: local, shared, or an executor.
-- limit_name, limit_no: the limit that it has met, and its number while it executes under it. Of a limit of n, at most n
-- numbers are in use: nothing is counted up and down.
alter table yamlsched.job_runs
    add column withheld smallint not null default 0,
    add column lane text not null default 'local',
    add column limit_name text,
    add column limit_no integer,
    add column unreleased boolean not null default false,  -- it waits for runs of other jobs; see awaits
    add column released_at timestamptz,                    -- when that ended
    add column by_hand boolean not null default false,     -- created by a backfill, or retried before its first attempt
    add column ready_at timestamptz;                       -- when its wait for its job or its turn ended; no claim writes it
update yamlsched.job_runs r set lane = d.lane
from yamlsched.job_definitions d
where d.lane <> 'local' and r.definition_id = d.id and r.finished_at is null;
update yamlsched.job_runs r set held_until = null where r.held_until < clock_timestamp();

-- What may be claimed, and what is executed: a claim changes no index.
create index job_runs_ready on yamlsched.job_runs (namespace, lane, priority, run_at, id)
    where withheld = 0 and finished_at is null;
create index job_runs_withheld on yamlsched.job_runs (namespace, definition_id, withheld, run_at, id)
    where withheld <> 0 and finished_at is null;
-- Runs that hold a number, of a limit; and those that wait for one, in the order in which they get it.
create unique index job_runs_number on yamlsched.job_runs (namespace, limit_name, limit_no) where limit_no is not null;
create index job_runs_line on yamlsched.job_runs (namespace, limit_name, lane, withheld, priority, run_at, id)
    where limit_name is not null and finished_at is null;
-- Runs whose handler may be alive although they have ended.
create index job_runs_held_until on yamlsched.job_runs (namespace, held_until) where held_until is not null;
drop index yamlsched.job_runs_open, yamlsched.job_runs_due_exclusive, yamlsched.job_runs_open_of_job,
    yamlsched.job_definitions_withheld, yamlsched.job_definitions_claimable;

-- Jobs that follow others. A slot of such a job gets its run at once, which is not released before what it waits for has
-- ended. Releasing decides about all such runs of a job together; see runs/follow.py.
alter table yamlsched.job_definitions
    add column after text[] not null default '{}',  -- names of jobs
    add column skip_on jsonb not null default '[]',  -- calendars: [{"name": "holidays", "dates": [...], "until": ...}]
    add column only_on jsonb not null default '[]',
    add column on_upstream_failure text not null default 'wait' check (on_upstream_failure in ('wait', 'skip', 'run')),
    add column is_followed boolean not null default false;  -- now or before: the ends of its runs are handed on
create index job_definitions_catchup_window on yamlsched.job_definitions (namespace)
    where catchup_window < interval '365 days';
create index job_definitions_followed on yamlsched.job_definitions (id) where is_followed;
create index job_runs_unreleased on yamlsched.job_runs (namespace, definition_id)
    where unreleased and finished_at is null;
create table yamlsched.awaits (
    run_id          bigint not null references yamlsched.job_runs (id) on delete cascade,
    definition_id   bigint not null references yamlsched.job_definitions (id),
    slot            timestamptz,       -- the latest one of that job at the run's own slot; null: it has had none
    upstream_run_id bigint,            -- whose end counted
    -- null: the run waits; "waiting": it was started by force while it did
    outcome         text check (outcome in ('succeeded', 'dead', 'cancelled', 'skipped', 'waiting')),
    primary key (run_id, definition_id)
);
create index awaits_open on yamlsched.awaits (definition_id, slot) where outcome is null;
create index awaits_ended on yamlsched.awaits (upstream_run_id) where upstream_run_id is not null;
alter table yamlsched.skipped_slots
    add column detail text,            -- of upstream: the job, and its run; of calendar: which
    drop constraint skipped_slots_reason_check,
    add constraint skipped_slots_reason_check check (reason in (
        'overlap', 'late', 'superseded', 'paused', 'disabled', 'retired', 'key_taken', 'upstream', 'calendar'));

-- The last slot of a job at or before an instant that was owed: one that has a run or is in a gap; null: none.
create function yamlsched.owed_slot(job bigint, at timestamptz) returns timestamptz
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select max(o.slot) from (
        select max(s.last_slot) as slot from yamlsched.skipped_slots s
        where s.definition_id = job and s.last_slot <= at
        union all
        select max(h.scheduled_for) from (
            select p.scheduled_for from yamlsched.job_runs p
            where p.definition_id = job and p.scheduled_for <= at
            order by p.finished_at desc limit 100) h) o
$$;

-- What became of a slot that others wait for: of a run its status, "waiting" if it may change, "skipped" where there is
-- nothing to wait for, none left of it included. Where another run took the slot's place, that of this run. A run whose
-- handler may be alive has not ended. Stable: all is read as of one instant, that of the caller's statement.
create function yamlsched.upstream(job bigint, of_slot timestamptz, now timestamptz,
                                   out run_id bigint, out state text, out ended_at timestamptz)
    language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    slot timestamptz := of_slot;
    gap  record;
begin
    state := 'skipped';
    while slot is not null loop
        -- those that have ended since the slot, and not the whole history of the job; an hour more, as the clock of the
        -- database may have been set back
        run_id := (array(
            select r.id from yamlsched.job_runs r
            where r.definition_id = job and r.finished_at is null and r.scheduled_for = slot
            union all
            select r.id from yamlsched.job_runs r
            where r.definition_id = job and r.finished_at >= slot - interval '1 hour' and r.scheduled_for = slot))[1];
        select r.finished_at,
               case when r.status in ('queued', 'failed') and d.retired_at is not null then 'skipped'
                    when r.finished_at is null or r.held_until > upstream.now then 'waiting' else r.status end
        into ended_at, state
        from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
        where r.id = run_id;
        exit when found;
        state := 'skipped';
        select s.first_slot, s.last_slot, s.reason into gap
        from yamlsched.skipped_slots s
        where s.definition_id = job and s.last_slot >= slot order by s.last_slot limit 1;
        if not found or gap.first_slot > slot then
            select 'waiting' into state from yamlsched.job_definitions d
            where d.id = job and slot > greatest(d.effective_from, d.last_slot_at) and d.enabled and d.retired_at is null
              and not coalesce(slot > d.paused_at and slot <= coalesce(d.paused_until, 'infinity'), false);
            state := coalesce(state, 'skipped');
            exit;
        elsif gap.reason = 'superseded' then
            slot := (select min(n.slot) from (
                select min(r.scheduled_for) as slot from yamlsched.job_runs r
                where r.definition_id = job and r.scheduled_for > gap.last_slot
                  and (r.finished_at > gap.last_slot or r.finished_at is null)
                union all
                select min(s.first_slot) from yamlsched.skipped_slots s
                where s.definition_id = job and s.last_slot > gap.last_slot) n);
        elsif gap.reason in ('overlap', 'key_taken') then
            slot := (select max(l.scheduled_for) from (
                select r.scheduled_for from yamlsched.job_runs r
                where r.definition_id = job and r.scheduled_for < gap.first_slot
                order by r.finished_at desc limit 100) l);
        else
            exit;
        end if;
    end loop;
end
$$;

-- What became of what a run waited for, by the names of the jobs under `after`: what its handler gets. "none" of a run
-- that was not created for a slot, and of a job that the run did not wait for.
create function yamlsched.upstream_results(of_run bigint) returns jsonb
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(n.name, jsonb_build_object(
               'run_id', r.id, 'scheduled_for', coalesce(r.scheduled_for, a.slot),
               'status', coalesce(a.outcome, 'none'),
               'result', case when a.outcome = 'succeeded' then r.result end))
    from yamlsched.job_runs o
    join yamlsched.job_definitions d on d.id = o.definition_id
    cross join unnest(d.after) as n (name)
    left join yamlsched.job_definitions f on f.namespace = o.namespace and f.job_type = n.name
    left join yamlsched.awaits a on a.run_id = o.id and a.definition_id = f.id
    left join yamlsched.job_runs r on r.id = a.upstream_run_id
    where o.id = of_run
$$;

create or replace view yamlsched.open_runs as
select r.id, r.namespace, r.definition_id, r.job_type, r.idempotency_key, r.scheduled_for, r.run_at, r.status,
       r.attempts, r.max_attempts, r.exclusive, r.locked_by, r.locked_until, r.started_at, r.failed_at, r.last_error,
       r.created_at, r.prior_attempts, r.withheld, r.lane, r.unreleased
from yamlsched.job_runs r
where r.finished_at is null and r.withheld = 0
union all
select r.id, r.namespace, r.definition_id, r.job_type, r.idempotency_key, r.scheduled_for, r.run_at, r.status,
       r.attempts, r.max_attempts, r.exclusive, r.locked_by, r.locked_until, r.started_at, r.failed_at, r.last_error,
       r.created_at, r.prior_attempts, r.withheld, r.lane, r.unreleased
from yamlsched.job_runs r
where r.finished_at is null and r.withheld <> 0;

-- Gates. A gate is a row to lock: that of a job, for its turn and for whether it is closed (paused, disabled, retired), and
-- that of a limit. The order of locks: own runs by id, gates by name, then other runs, which are skipped if they are
-- locked. So who holds a gate never waits for a run, and a claim waits for nothing. A sync makes the gates of its jobs.
create table yamlsched.gates (
    namespace text not null,
    name      text not null,           -- job/ID or limit/NAME
    n         integer,                 -- of a limit: how many runs may execute at once
    -- Of a limit: runs of lower levels whose share it is, which go before higher ones for 2 s.
    ahead     bigint[] not null default '{}',
    -- Of a job: an edit has skipped runs that another session had locked. The sweep continues it.
    is_edited boolean not null default false,
    primary key (namespace, name)
);
insert into yamlsched.gates (namespace, name) select d.namespace, 'job/' || d.id from yamlsched.job_definitions d;

-- Of several workers and ticks, one sweeps, each second. What it repaired was left by a session that died at the wrong
-- moment, or by an older release.
alter table yamlsched.namespaces
    add column swept_at timestamptz not null default '-infinity',
    add column repairs bigint not null default 0;

-- The lanes and levels of what is unfinished and may be claimed: each lane by one index probe.
create function yamlsched.lanes(of_namespace text) returns table (lane text, priority smallint)
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    with recursive found (name) as (
        select (select r.lane from yamlsched.job_runs r
                where r.namespace = of_namespace and r.withheld = 0 and r.finished_at is null
                order by r.namespace, r.lane limit 1)
        union all
        select (select r.lane from yamlsched.job_runs r
                where r.namespace = of_namespace and r.withheld = 0 and r.finished_at is null and r.lane > f.name
                order by r.namespace, r.lane limit 1)
        from found f where f.name is not null
    )
    select f.name, p.level from found f cross join (values (1::smallint), (2::smallint), (3::smallint)) p (level)
    where f.name is not null
$$;

-- Lock gates, in one order, and wait for them. What is read after that, by a later statement, holds until the end of the
-- transaction.
create function yamlsched.lock_gates(of_namespace text, names text[]) returns void
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    insert into yamlsched.gates (namespace, name)
    select of_namespace, n.name from unnest(names) as n (name)
    where not exists (select from yamlsched.gates g where g.namespace = of_namespace and g.name = n.name)
    order by n.name
    on conflict do nothing;
    perform from yamlsched.gates g where g.namespace = of_namespace and g.name = any (names)
    order by g.name for no key update;
end
$$;

-- Whether a slot run of a wait or skip job executes, or may: another one of the job has to wait.
create function yamlsched.is_taken(job bigint, now timestamptz) returns boolean
    language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from yamlsched.job_runs r where r.exclusive_of = job)
        or exists (select from yamlsched.job_runs r where r.definition_id = job and r.held_until >= now and r.exclusive);
end
$$;

-- How many numbers of a limit are free. After it was lowered, higher ones than n may be in use.
create function yamlsched.free_numbers(of_namespace text, of_limit text) returns integer
    language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select greatest(g.n, 0) from yamlsched.gates g where g.namespace = of_namespace and g.name = 'limit/' || of_limit)
         - (select count(*) from yamlsched.job_runs r
            where r.namespace = of_namespace and r.limit_name = of_limit and r.limit_no is not null);
end
$$;

-- Whether a run waits for a reason that an edit of its job has ended.
create function yamlsched.waits_wrongly(r yamlsched.job_runs, d yamlsched.job_definitions) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select r.withheld = 2 and not r.exclusive
        or r.withheld = 3 and (r.limit_name is distinct from d.limit_name or r.lane not in (d.lane, 'local'))
$$;

-- Claim those of some runs that may execute, and store of the others why not. For runs at gates: slot runs of a job with
-- overlap wait or skip, runs of a job with a limit, and of one that is closed. Returns all of these runs that it could lock,
-- as they are then. A run that still is what a claim takes has not got its gates: the next claim steps over its job.
create function yamlsched.claim_gated(of_namespace text, run_ids bigint[], token text, now timestamptz)
    returns setof yamlsched.job_runs
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    held    bigint[];
    gates   text[];
    waiting bigint[];
    limits  text[];
begin
    held := array(
        select r.id from yamlsched.job_runs r
        where r.id = any (run_ids) and r.withheld = 0 and r.finished_at is null and r.status <> 'running' and r.run_at <= now
          and not r.unreleased
        order by r.id for no key update skip locked);
    gates := array(
        select g.name from yamlsched.gates g
        where g.namespace = of_namespace and g.name = any (array(
            select n.name from yamlsched.job_runs r
            join yamlsched.job_definitions d on d.id = r.definition_id
            cross join lateral (values ('job/' || d.id), ('limit/' || d.limit_name), ('limit/' || r.limit_name)) n (name)
            where r.id = any (held)))
        order by g.name for no key update skip locked);
    -- A later statement than the locks: it sees what the sessions before have committed.
    with first as (
        select w.id, w.priority, w.run_at, w.exclusive, d.lease, l.limit_name, coalesce(g.ahead, '{}') as ahead,
               row_number() over (partition by w.definition_id, w.exclusive order by w.priority, w.run_at, w.id) as nth
        from yamlsched.job_runs w
        join yamlsched.job_definitions d on d.id = w.definition_id
        cross join lateral (  -- a call of on_dead needs no number
            select case when coalesce(w.idempotency_key, '') not like 'on\_dead:%' then d.limit_name end as limit_name) l
        left join yamlsched.gates g on g.namespace = of_namespace and g.name = 'limit/' || l.limit_name
        where w.id = any (held) and 'job/' || d.id = any (gates) and not yamlsched.is_withheld(d, now)
          and (l.limit_name is null or 'limit/' || l.limit_name = any (gates))
          and not (w.exclusive and yamlsched.is_taken(d.id, now))
    ), line as (
        select f.*, row_number() over (partition by f.limit_name
                                       order by f.id <> all (f.ahead), f.priority, f.run_at, f.id) as place
        from first f where f.nth = 1 or not f.exclusive
    ), free as (
        select substr(g.name, 7) as limit_name, i.number, row_number() over (partition by g.name order by i.number) as place
        from yamlsched.gates g
        cross join lateral generate_series(1, g.n) as i (number)
        where g.namespace = of_namespace and g.name = any (array(select distinct 'limit/' || l.limit_name from line l))
          and not exists (select from yamlsched.job_runs u
                          where u.namespace = of_namespace and u.limit_name = substr(g.name, 7) and u.limit_no = i.number)
    )
    update yamlsched.job_runs r
    set status = 'running', attempts = r.attempts + 1, locked_by = token, locked_until = now + l.lease,
        exclusive_of = case when r.exclusive then r.definition_id end, limit_name = l.limit_name, limit_no = f.number,
        held_until = null, started_at = now, updated_at = now
    from line l
    left join free f on f.limit_name = l.limit_name and f.place = l.place
    where r.id = l.id
      and (l.limit_name is null or f.place <= yamlsched.free_numbers(of_namespace, l.limit_name) - (
              -- What was let go before it, of other lanes, keeps its place for 2 s: else the lane that ends a run, and claims
              -- at once, would take the number each time. So does the share of a lower level.
              select count(*)
              from (select distinct d.lane from yamlsched.job_definitions d
                    where d.namespace = of_namespace and d.limit_name = l.limit_name) k
              join yamlsched.job_runs o on o.namespace = of_namespace and o.limit_name = l.limit_name and o.lane = k.lane
              where o.withheld = 0 and o.finished_at is null and o.status <> 'running' and o.run_at <= now
                and o.updated_at > now - interval '2 seconds'
                and case when r.id = any (l.ahead) then false
                         when o.id = any (l.ahead) then o.id <> all (held)
                         else o.lane <> r.lane and (o.priority, o.run_at, o.id) < (r.priority, r.run_at, r.id) end));
    -- Those that are left, and those like them among the next thousand, so that no claim picks them again.
    waiting := array(
        select f.id from yamlsched.job_runs f
        where f.id = any (held) and f.status <> 'running' and 'job/' || f.definition_id = any (gates)
        union
        select n.id
        from (select f.lane, f.priority, array_agg(distinct f.definition_id) as jobs
              from yamlsched.job_runs f
              where f.id = any (held) and f.status <> 'running' and 'job/' || f.definition_id = any (gates)
              group by f.lane, f.priority) l
        cross join lateral (
            select e.id, e.definition_id from yamlsched.job_runs e
            where e.namespace = of_namespace and e.lane = l.lane and e.priority = l.priority and e.withheld = 0
              and e.finished_at is null and e.run_at <= now and not e.unreleased
            order by e.run_at, e.id limit 1000) n
        where n.definition_id = any (l.jobs));
    with stored as (
        update yamlsched.job_runs r
        set withheld = w.reason, limit_name = case when w.reason = 3 then w.own_limit else r.limit_name end
        from (select o.id, l.own_limit,
                     case when yamlsched.is_withheld(d, now) then 1
                          when o.exclusive and yamlsched.is_taken(d.id, now) then 2
                          when 'limit/' || l.own_limit = any (gates)
                               and yamlsched.free_numbers(of_namespace, l.own_limit) <= 0 then 3 else 0 end as reason
              from (select n.id, n.definition_id, n.exclusive, n.idempotency_key from yamlsched.job_runs n
                    where n.id = any (waiting) and n.withheld = 0 and n.finished_at is null and n.status <> 'running'
                      and coalesce('limit/' || n.limit_name = any (gates), true)
                    order by n.id for no key update skip locked) o
              join yamlsched.job_definitions d on d.id = o.definition_id
              cross join lateral (
                  select case when coalesce(o.idempotency_key, '') not like 'on\_dead:%' then d.limit_name end as own_limit) l) w
        where r.id = w.id and w.reason > 0
        returning r.withheld, r.limit_name)
    select array_agg(distinct s.limit_name) into limits
    from stored s where s.withheld < 3 and s.limit_name is not null;
    if limits is not null then      -- they were the next in line
        perform yamlsched.hand_on(of_namespace, '{}', limits, now);
    end if;
    return query select r.* from yamlsched.job_runs r where r.id = any (held);
end
$$;

-- Let go as many runs as are free of each of these limits, whose gates are locked; see hand_on. They are chosen by
-- priority, but each lower level gets one in eight, as in a claim. Returns how many.
create function yamlsched.offer_numbers(of_namespace text, limits text[], now timestamptz) returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    chance  float8 := random();
    other   float8 := chance + case when chance < 0.5 then 0.5 else -0.5 end;
    numbers bigint;
begin
    with class as materialized (
        select distinct l.name, k.lane,
               case when exists (select from yamlsched.lacks x where x.definition_id = d.id) then d.id end as job
        from unnest(limits) as l (name)
        join yamlsched.job_definitions d on d.namespace = of_namespace and d.limit_name = l.name
        cross join lateral unnest(array[d.lane, case d.lane when 'shared' then 'local' else d.lane end]) as k (lane)
    ), free as materialized (
        select c.*, greatest(0, yamlsched.free_numbers(of_namespace, c.name) - (
            select count(*) from yamlsched.job_runs o
            where o.namespace = of_namespace and o.limit_name = c.name and o.lane = c.lane and o.withheld = 0
              and o.finished_at is null and o.status <> 'running' and o.run_at <= now
              and case when c.job is not null then o.definition_id = c.job
                       else o.definition_id not in (select x.definition_id from yamlsched.lacks x) end)) as n
        from class c
    ), picked as materialized (
        select w.id, w.is_share
        from (select f.*, floor(f.n / 8.0 + chance) as low, floor(f.n / 8.0 + other) as normal from free f) f
        cross join lateral (
            select n.id, p.nth < 3 as is_share
            from (select u.level, u.past, u.most, u.nth
                  from (values (3, 0, f.low, 1), (2, 0, f.normal, 2),
                               (1, 0, f.n, 3), (2, f.normal, f.n, 4), (3, f.low, f.n, 5)) as u (level, past, most, nth)
                  where u.most > 0 order by u.nth) p
            cross join lateral (
                select q.id from yamlsched.job_runs q
                where q.namespace = of_namespace and q.limit_name = f.name and q.lane = f.lane and q.withheld = 3
                  and q.priority = p.level and q.finished_at is null
                  and case when f.job is not null then q.definition_id = f.job
                           else q.definition_id not in (select x.definition_id from yamlsched.lacks x) end
                order by q.run_at, q.id limit p.most offset p.past for no key update skip locked) n
            limit f.n) w
    ), offered as (
        update yamlsched.job_runs r
        set withheld = 0, updated_at = now      -- it keeps its place for 2 s: see claim_gated
        where r.withheld = 3 and r.id = any (array(select p.id from picked p))
        returning r.id, r.limit_name
    ), shares as (
        update yamlsched.gates g
        set ahead = array(select o.id from offered o join picked p on p.id = o.id and p.is_share
                          where 'limit/' || o.limit_name = g.name
                          union all
                          select o.id from yamlsched.job_runs o
                          where o.id = any (g.ahead) and o.withheld = 0 and o.finished_at is null
                            and o.status <> 'running' and o.updated_at > now - interval '2 seconds')
        where g.namespace = of_namespace
          and g.name = any (array(select 'limit/' || o.limit_name from offered o join picked p on p.id = o.id
                                  where p.is_share or g.ahead <> '{}'))
    )
    select count(*) into numbers from offered;
    return numbers;
end
$$;

-- An edit of these jobs, whose gates are locked, ends the reasons of what waits, and moves it to the lane where the job
-- executes now: the next claim looks again. A run that another session has locked is skipped, because that session may
-- wait for the gate. The sweep continues with those: not is_new.
create function yamlsched.look_again(jobs bigint[], is_new boolean, now timestamptz) returns void
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    update yamlsched.job_runs r
    set withheld = 0, limit_name = null, lane = e.lane,
        ready_at = case when r.withheld in (1, 2) then now else r.ready_at end
    from (select w.id, case when w.idempotency_key like 'on\_dead:%' then d.executor else d.lane end as lane
          from yamlsched.job_runs w join yamlsched.job_definitions d on d.id = w.definition_id
          where d.id = any (jobs) and w.finished_at is null and w.status <> 'running'
            and case when is_new then w.withheld <> 0 or w.lane <> d.lane
                     else yamlsched.waits_wrongly(w, d) end
          order by w.id for no key update of w skip locked) e
    where r.id = e.id;
    update yamlsched.gates g
    set is_edited = e.is_edited
    from (select d.namespace, 'job/' || d.id as name,
                 exists (select from yamlsched.job_runs w
                         where w.namespace = d.namespace and w.definition_id = d.id and w.withheld in (2, 3)
                           and w.finished_at is null and yamlsched.waits_wrongly(w, d)) as is_edited
          from yamlsched.job_definitions d where d.id = any (jobs)) e
    where g.namespace = e.namespace and g.name = e.name and g.is_edited <> e.is_edited;
end
$$;

-- Let go what waited for runs that have ended: the next slot run of each of these jobs, what is not released because of
-- them, and as many runs as are free of each of these limits, in each class by itself: a lane, and each job that some host cannot start, so that neither an executor
-- without workers nor a missing program holds up the others. Called in the transaction that has ended the runs, after their
-- rows were written. Returns how many runs were let go.
create function yamlsched.hand_on(of_namespace text, jobs bigint[], limits text[], now timestamptz) returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    turns     bigint[];
    waiting   bigint[] := jobs;
    followers bigint;
    numbers   bigint := 0;
    freed     bigint := 0;
begin
    perform yamlsched.lock_gates(of_namespace, array(select 'job/' || j.id from unnest(jobs) as j (id))
                                               || array(select 'limit/' || l.name from unnest(limits) as l (name)));
    -- A claim that began before a reason was stored locks such a run for a moment, and then leaves it. So who skips it comes
    -- back, for 0.2 s: a session that holds a run may wait for the gate that is held here, and hands on itself afterwards.
    for attempt in 1 .. 20 loop
        with let_go as (
            update yamlsched.job_runs r
            set withheld = 0, ready_at = now
            where r.withheld = 2 and r.id = any (array(
                select w.id from unnest(waiting) as j (id)
                cross join lateral (
                    select n.id from yamlsched.job_runs n
                    where n.namespace = of_namespace and n.definition_id = j.id and n.withheld = 2 and n.finished_at is null
                    order by n.run_at, n.id limit 1 for no key update skip locked) w
                where not yamlsched.is_taken(j.id, now)))
            returning r.definition_id)
        select coalesce(array_agg(l.definition_id), '{}') into turns from let_go l;
        update yamlsched.job_runs r
        set withheld = 0
        where r.withheld = 4 and r.id = any (array(
            select w.id from yamlsched.job_runs w
            where w.withheld = 4 and w.id = any (array(
                select a.run_id from yamlsched.awaits a where a.definition_id = any (jobs) and a.outcome is null
                union all
                select u.id from yamlsched.job_runs u
                where u.namespace = of_namespace and u.definition_id = any (jobs) and u.unreleased
                  and u.finished_at is null))
            order by w.id for no key update skip locked));
        get diagnostics followers = row_count;
        freed := freed + cardinality(turns) + followers;
        waiting := array(
            select j.id from unnest(waiting) as j (id)
            where j.id <> all (turns) and not yamlsched.is_taken(j.id, now)
              and exists (select from yamlsched.job_runs n
                          where n.namespace = of_namespace and n.definition_id = j.id and n.withheld = 2
                            and n.finished_at is null));
        exit when waiting = '{}' and not exists (
            select from yamlsched.awaits a join yamlsched.job_runs w on w.id = a.run_id
            where a.definition_id = any (jobs) and a.outcome is null and w.withheld = 4);
        perform pg_sleep(0.01);
    end loop;
    if limits <> '{}' then
        numbers := yamlsched.offer_numbers(of_namespace, limits, now);
    end if;
    if freed + numbers > 0 then
        perform pg_notify('yamlsched', of_namespace);
    end if;
    return freed + numbers;
end
$$;

-- Store of a batch of a job's due runs that they wait because it is closed or, if it is open, let those go: in the order of
-- ids, from after `past` on. Which of the two is asked under its gate: since the batch before, it may have been resumed.
-- A run that had been let go for a limit hands it on. Returns the last id; null: none was left.
create function yamlsched.mark_runs(of_namespace text, job bigint, past bigint, most integer, now timestamptz) returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    closed boolean;
    last   bigint;
    limits text[];
begin
    perform yamlsched.lock_gates(of_namespace, array['job/' || job]);
    closed := (select yamlsched.is_withheld(d, now) from yamlsched.job_definitions d where d.id = job);
    with picked as materialized (
        select r.id from yamlsched.job_runs r
        where r.definition_id = job and r.finished_at is null and r.id > past and r.withheld = (not closed)::integer
          and r.status <> 'running' and (not closed or r.run_at <= now and not r.unreleased)
        order by r.finished_at, r.id        -- the order of job_runs_history: what is marked is not read again
        limit most for no key update skip locked
    ), marked as (
        update yamlsched.job_runs r
        set withheld = closed::integer, ready_at = case when closed then r.ready_at else now end
        where r.id = any (array(select p.id from picked p))
        returning r.limit_name
    )
    select (select max(p.id) from picked p), array_agg(distinct m.limit_name) into last, limits
    from marked m where m.limit_name is not null;
    if closed and limits is not null then
        perform yamlsched.hand_on(of_namespace, '{}', limits, now);
    elsif not closed and last is not null then
        perform pg_notify('yamlsched', of_namespace);
    end if;
    return last;
end
$$;

-- What a run waits for, in words: who has the turn, or holds the limit, and since when the first in line waits; or what the
-- jobs do that it follows.
create function yamlsched.waits_for(r yamlsched.job_runs) returns text
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select case when r.unreleased and r.finished_at is null then (
            select coalesce('waits for ' || string_agg(
                       d.job_type || case when o.id is null then ', which has no run of that slot yet'
                                          else ': run ' || o.id || ' is ' || o.status end
                                  || case when o.status = 'failed' then ', retried at ' || to_char(
                                          o.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') else '' end,
                       '; ' order by d.job_type),
                   case when (select yamlsched.is_withheld(j, clock_timestamp())
                              from yamlsched.job_definitions j where j.id = r.definition_id)
                        then 'waits until its job is resumed or enabled'
                        when r.run_at > clock_timestamp() then 'waits for the time that spread gives it'
                        when r.withheld = 4 then 'waits for an earlier run of its own job'
                        else 'waits for nothing: the next sync or worker releases it' end)
            from yamlsched.awaits a
            join yamlsched.job_definitions d on d.id = a.definition_id
            cross join lateral yamlsched.upstream(a.definition_id, a.slot, clock_timestamp()) u
            left join yamlsched.job_runs o on o.id = u.run_id
            where a.run_id = r.id and u.state in ('waiting', 'dead', 'cancelled'))
        else case r.withheld
        when 2 then 'waits for run ' || (select string_agg(h.id::text, ', ' order by h.id) from yamlsched.job_runs h
                                         where h.definition_id = r.definition_id and h.exclusive
                                           and (h.exclusive_of is not null or h.held_until > clock_timestamp()))
        when 3 then (select format('waits for limit %s, held by run %s; the first in line since %s', r.limit_name,
                                   string_agg(h.id::text, ', ' order by h.limit_no) filter (where h.limit_no is not null),
                                   to_char(min(h.run_at) filter (where h.withheld = 3) at time zone 'UTC',
                                           'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
                     from yamlsched.job_runs h where h.namespace = r.namespace and h.limit_name = r.limit_name
                       and (h.limit_no is not null or h.finished_at is null and h.withheld = 3)) end end
$$;

-- Repair and tidy up a namespace, once a second, whoever asks: runs whose handlers were left to themselves have ended, and
-- pauses are over. Returns how many runs waited for nothing: see namespaces.repairs.
create function yamlsched.sweep(of_namespace text, now timestamptz) returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    jobs   bigint[];
    limits text[];
    freed  bigint;
begin
    perform from yamlsched.namespaces n
    where n.namespace = of_namespace and n.swept_at < now - interval '1 second' for no key update skip locked;
    if not found then
        return 0;
    end if;
    insert into yamlsched.gates (namespace, name)      -- of jobs that an older release has added
    select d.namespace, 'job/' || d.id from yamlsched.job_definitions d
    where d.namespace = of_namespace
      and not exists (select from yamlsched.gates g where g.namespace = of_namespace and g.name = 'job/' || d.id)
    on conflict do nothing;
    with ended as (
        update yamlsched.job_runs r set held_until = null, limit_no = null
        where r.id = any (array(
            select h.id from yamlsched.job_runs h
            where h.namespace = of_namespace and h.held_until < now and h.status <> 'running'
            order by h.held_until limit 1000        -- else a plan for all instants reads every run
            for no key update skip locked))
        returning r.definition_id, r.limit_name)
    select array_agg(distinct e.definition_id), array_agg(distinct e.limit_name) filter (where e.limit_name is not null)
    into jobs, limits from ended e;
    perform yamlsched.hand_on(of_namespace, jobs, limits, now) where jobs is not null;
    jobs := array(select substr(g.name, 5)::bigint from yamlsched.gates g
                  where g.namespace = of_namespace and g.is_edited and g.name like 'job/%');
    if jobs <> '{}' then
        perform yamlsched.lock_gates(of_namespace, array(select 'job/' || j.id from unnest(jobs) as j (id)));
        perform yamlsched.look_again(jobs, false, now);
    end if;
    jobs := array(
        select d.id from yamlsched.job_definitions d
        where d.namespace = of_namespace and not yamlsched.is_withheld(d, now)
          and exists (select from yamlsched.job_runs r where r.namespace = of_namespace and r.definition_id = d.id
                      and r.withheld = 1 and r.finished_at is null));
    perform yamlsched.lock_gates(of_namespace, array(select 'job/' || j.id from unnest(jobs) as j (id)));
    perform yamlsched.mark_runs(of_namespace, j.id, 0, 20000, now) from unnest(jobs) as j (id);
    jobs := array(
        select d.id from yamlsched.job_definitions d
        where d.namespace = of_namespace and not yamlsched.is_withheld(d, now)
          and exists (select from yamlsched.job_runs r where r.namespace = of_namespace and r.definition_id = d.id
                      and r.withheld = 2 and not r.unreleased and r.finished_at is null)
          and not yamlsched.is_taken(d.id, now)     -- who ends that run hands on
          and not exists (select from yamlsched.job_runs r where r.namespace = of_namespace and r.definition_id = d.id
                          and r.withheld in (0, 3) and r.finished_at is null and r.exclusive and r.run_at <= now));
    limits := array(
        select substr(g.name, 7) from yamlsched.gates g
        where g.namespace = of_namespace and g.name like 'limit/%'
          and exists (select from yamlsched.job_runs r where r.namespace = of_namespace and r.limit_name = substr(g.name, 7)
                      and r.withheld = 3 and r.finished_at is null));
    freed := case when jobs = '{}' then 0 else yamlsched.hand_on(of_namespace, jobs, '{}', now) end;
    -- Of limits, only where every host can start every job: a job that a host lacks is a class of its own from then on.
    freed := freed + case when limits = '{}' then 0 else yamlsched.hand_on(of_namespace, '{}', limits, now) end
                     * case when exists (select from yamlsched.lacks x) then 0 else 1 end;
    update yamlsched.namespaces n set swept_at = now, repairs = n.repairs + freed where n.namespace = of_namespace;
    return freed;
end
$$;

-- Enqueues write the lane, and stay as they are otherwise.
do $$
declare
    change record;
    source text;
begin
    for change in
        select * from (values
            ('yamlsched.enqueue(text,jsonb,timestamptz,text,text,text,interval,text)', 'max_attempts, trace_context)',
             'max_attempts, trace_context, lane)', 'valid_trace_context(enqueue.trace_context)', 'd.lane'),
            ('yamlsched.enqueue_many(text,jsonb[],text[],timestamptz,text,bigint,text,interval,text[])',
             'parent_id, trace_context)', 'parent_id, trace_context, lane)', 'valid_trace_context(i.context)', 'definition.lane')
        ) as c (name, columns, with_lane, context, lane)
    loop
        source := pg_get_functiondef(change.name::regprocedure);
        if position(change.columns in source) = 0 or position(change.context in source) = 0 then
            raise exception '% is not that of migration 0002', change.name;
        end if;
        execute replace(replace(source, change.columns, change.with_lane), change.context, change.context || ', ' || change.lane);
    end loop;
end
$$;
