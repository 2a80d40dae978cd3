-- Notifications: the targets of the file in force, and what each was told and is to be told. Adds a column with a constant
-- default to job_definitions, which writes no row, and creates two small tables.
-- oldest_supported: 3
--
-- All follows from one row per target, and one row per target and subject: a job, or a problem that is not one job's. A row
-- is written in the transaction in which a run dies or begins to fail again and again (`note`), and once a minute by
-- `settle_notes`: late, recovered, ended. It holds what is so now and what was sent last, and no list of events, so nothing
-- piles up. due_at says when there is something to send: at once for what was not sent since the last recovery, else after
-- a pause, which starts with an hour and doubles up to a day. Whoever sends (extras/notify) takes a target for a minute by
-- next_at, sends what is due then, and writes that it was sent. A send that fails changes no row but the target's; what
-- could not be sent for a day is deleted. Who holds locks of runs and gates takes those of rows last, in the order of the
-- primary key, and then commits.

alter table yamlsched.job_definitions add column notify text[] not null default '{}';  -- names of targets

create table yamlsched.notify_targets (
    namespace     text not null,
    name          text not null,
    url_env       text not null,       -- for messages of status: senders read the variable's name from the file
    events        text[] not null,
    restored_at   timestamptz,         -- when a sync found that this row differs from the file in use
    next_at       timestamptz not null default '-infinity',  -- a minute after the latest message, later after a failure
    failing_since timestamptz,         -- when the first send failed since one that did not
    error         text,                -- of the latest one
    primary key (namespace, name),
    constraint failing_has_an_error check ((failing_since is null) = (error is null))
);

create table yamlsched.notifications (
    namespace     text not null,
    target        text not null,
    subject       text not null,       -- the job's name; of a problem its kind, a colon, and its job if it has one
    definition_id bigint references yamlsched.job_definitions (id) on delete cascade,  -- null: a problem
    slot          timestamptz,         -- the latest one in trouble: a success of it or of a later one is the recovery
    run_id        bigint,              -- that died last
    dead_at       timestamptz,
    dead_runs     integer not null default 0,  -- that have died since the trouble started
    told_runs     integer not null default 0,  -- of these, those that a message has reported
    late_since    timestamptz,         -- null: the job is not late
    what          text,                -- the problem
    since         timestamptz not null,  -- when the trouble started, across recoveries that were not sent
    active_at     timestamptz not null,  -- when there was trouble last
    ended_at      timestamptz,         -- when it has recovered, or the problem was gone; null: it has not
    recovered_at  timestamptz,         -- the same, and kept when the trouble is back
    told          text[] not null default '{}',  -- events that were sent since the last recovery that was sent
    quiet_until   timestamptz,         -- a pause after the latest message about trouble
    pause         interval not null default '1 hour',  -- the next one, doubled with each message
    due_at        timestamptz,         -- null: there is nothing to send
    primary key (namespace, target, subject),
    foreign key (namespace, target) references yamlsched.notify_targets on delete cascade
);
create index notifications_due on yamlsched.notifications (namespace, target, due_at) where due_at is not null;

-- Note what has happened to jobs (dead, failing, late), or problems, for the targets that have the event. What is late or
-- a problem is noted each minute, and is news only once. What happens to a job while it is paused or disabled is due when
-- it is not any more. After a recovery that was sent, or trouble that was never sent, everything starts over.
create function yamlsched.note(of_namespace text, event text, subjects jsonb, now timestamptz) returns void
    language sql set search_path = pg_catalog, pg_temp
as $$
    update yamlsched.notifications n
    set slot = null, run_id = null, dead_at = null, dead_runs = 0, told_runs = 0, late_since = null,
        since = now, quiet_until = null, pause = '1 hour'
    from (select o.target, o.subject
          from jsonb_populate_recordset(null::yamlsched.notifications, subjects) s
          join yamlsched.notifications o on o.definition_id = s.definition_id or o.subject = s.subject
          where o.namespace = of_namespace and o.ended_at is not null and o.told = '{}'
          order by o.target, o.subject for update of o) o
    where n.namespace = of_namespace and (n.target, n.subject) = (o.target, o.subject);

    insert into yamlsched.notifications as n
        (namespace, target, subject, definition_id, slot, run_id, dead_at, dead_runs, late_since, what,
         since, active_at, due_at)
    select of_namespace, t.name, coalesce(d.job_type, s.subject), d.id, s.slot, s.run_id, s.dead_at,
           coalesce(s.dead_runs, 0), s.late_since, s.what,
           now, now, case when d.id is null or not yamlsched.is_withheld(d, now) then now end
    from jsonb_populate_recordset(null::yamlsched.notifications, subjects) s
    left join yamlsched.job_definitions d on d.id = s.definition_id
    join yamlsched.notify_targets t
      on t.namespace = of_namespace and event = any (t.events)
         and (d.id is null or t.name = any (d.notify) and d.retired_at is null)
    order by 2, 3
    on conflict (namespace, target, subject) do update
    set slot = greatest(n.slot, excluded.slot), run_id = coalesce(excluded.run_id, n.run_id),
        what = excluded.what, dead_at = coalesce(excluded.dead_at, n.dead_at),
        dead_runs = n.dead_runs + excluded.dead_runs,
        late_since = coalesce(n.late_since, excluded.late_since), active_at = now, ended_at = null,
        due_at = least(case when n.ended_at is null and n.due_at > now - interval '1 day' then n.due_at end,
                       case when event = any (n.told) then greatest(now, n.quiet_until)
                            else excluded.due_at end)
    where case event when 'problem' then n.ended_at is not null
                     when 'late' then n.ended_at is not null or n.late_since is null
                     else true end
$$;

-- Whether a job's run that died is still what there is to say of the job: no run of a later slot exists, or, of a run that
-- was enqueued, for a day.
create function yamlsched.is_still_dead(died bigint, at timestamptz, now timestamptz) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce((
        select case when r.scheduled_for is null then r.dead_at > now - interval '1 day'
                    else not exists (select from yamlsched.job_runs l
                                     where l.definition_id = r.definition_id and l.scheduled_for > r.scheduled_for
                                       and (l.finished_at is null or l.finished_at > r.dead_at)) end
        from yamlsched.job_runs r where r.id = died and r.dead_at = at), false)
$$;

-- Whether a run of a slot or of a later one has succeeded since a time, and none of a still later one has died. It is
-- looked for among the job's last 10,000 runs.
create function yamlsched.has_succeeded(job bigint, of_slot timestamptz, since timestamptz) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(e.scheduled_for) filter (where e.status = 'succeeded')
                    >= greatest(of_slot, max(e.scheduled_for) filter (where e.status = 'dead')), false)
    from (select r.status, r.scheduled_for from yamlsched.job_runs r
          where r.definition_id = job and r.finished_at > since order by r.finished_at desc limit 10000) e
$$;

-- When the end of trouble is sent: at once, but what recovers for the second time within an hour first has to be well for
-- an hour. Null: never, because the trouble was not sent.
create function yamlsched.end_due_at(told text[], recovered_at timestamptz, now timestamptz) returns timestamptz
    language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select case when told = '{}' then null when recovered_at > now - interval '1 hour' then now + interval '1 hour' else now end
$$;

-- Bring the rows of a namespace up to date: what is late, what has recovered, what need not be sent any more. A job has
-- recovered when its slot or a later one has succeeded and it is neither late nor failing, whichever events a target has.
create function yamlsched.settle_notes(of_namespace text, now timestamptz) returns void
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    late jsonb := (
        select jsonb_agg(to_jsonb(l)) from yamlsched.late_jobs l
        where l.namespace = of_namespace
          and not (l.was_skipped and yamlsched.has_succeeded(l.definition_id, l.slot, l.slot)));
    late_ids bigint[] := array(select (l ->> 'definition_id')::bigint from jsonb_array_elements(late) l);
begin
    perform from yamlsched.notifications n where n.namespace = of_namespace order by n.target, n.subject for update;
    perform yamlsched.note(of_namespace, 'late', late, now);
    update yamlsched.notifications n set late_since = null
    where n.namespace = of_namespace and n.late_since is not null and n.definition_id <> all (late_ids);
    delete from yamlsched.notifications n
    using yamlsched.notify_targets t
    where n.namespace = of_namespace and (t.namespace, t.name) = (n.namespace, n.target) and (
        n.due_at < now - interval '1 day'
        or n.active_at < now - interval '1 day' and (n.ended_at is not null or n.told = '{}' or n.slot is null)
        or n.definition_id is null and 'problem' <> all (t.events)
        or exists (select from yamlsched.job_definitions d
                   where d.id = n.definition_id
                     and (d.retired_at is not null or n.target <> all (d.notify)
                          or n.told <> '{}' and yamlsched.is_withheld(d, now))));
    with state as (
        select n.target, n.subject, yamlsched.events_now(n, t.events, now) as events,
               yamlsched.is_withheld(d, now) as is_withheld,
               yamlsched.has_succeeded(d.id, n.slot, coalesce(n.dead_at, n.slot)) and n.slot is not null
               and d.id <> all (late_ids) and yamlsched.failing_run(d.id) is null as is_well
        from yamlsched.notifications n
        join yamlsched.notify_targets t on (t.namespace, t.name) = (n.namespace, n.target)
        join yamlsched.job_definitions d on d.id = n.definition_id
        where n.namespace = of_namespace and (n.ended_at is null or n.told <> '{}')
    )
    update yamlsched.notifications n
    set active_at = case when s.events <> '{}' and not s.is_well then now else n.active_at end,
        ended_at = case when s.is_well then coalesce(n.ended_at, now) end,
        recovered_at = case when s.is_well and n.ended_at is null then now else n.recovered_at end,
        due_at = case when s.is_well and n.ended_at is null then yamlsched.end_due_at(n.told, n.recovered_at, now)
                      when s.is_well then n.due_at
                      when s.is_withheld or s.events = '{}' then null
                      else least(case when n.ended_at is null then n.due_at end,
                                 case when s.events <@ n.told then greatest(now, n.quiet_until) else now end) end
    from state s
    where n.namespace = of_namespace and (n.target, n.subject) = (s.target, s.subject);
    -- For a target without the event the trouble ends when it would be sent.
    update yamlsched.notifications n set told = '{}', due_at = null
    from yamlsched.notify_targets t
    where n.namespace = of_namespace and n.ended_at is not null and n.due_at <= now and n.definition_id is not null
      and (t.namespace, t.name) = (n.namespace, n.target) and 'recovered' <> all (t.events);
end
$$;

-- The names of the targets to which a message is due; null: there are no targets.
create function yamlsched.messages_due(of_namespace text, now timestamptz) returns text[]
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct case when t.next_at <= now and exists (
               select from yamlsched.notifications n
               where n.namespace = t.namespace and n.target = t.name and n.due_at <= now) then t.name end)
    from yamlsched.notify_targets t where t.namespace = of_namespace
$$;
