-- Enqueue from any language, inside the application's own transaction. Creates functions only.

-- The error of one run to enqueue, or null.
create function yamlsched.enqueue_fault(job_type text, payload jsonb, key text) returns text
    language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$
    select case
        when payload is null or jsonb_typeof(payload) <> 'object' then
            format('payload of job "%s" is not a JSON object: its keys become keyword arguments', job_type)
        -- before the payload is written out: 9 bytes such as 1e131071, have 131,072 digits. A short one has few of them.
        when pg_column_size(payload) > 1024
             and payload @? 'strict $.** ? (@.type() == "number" && (@ >= 1e3000 || @ <= -1e3000
                                                                     || (@ > -1e-3000 && @ < 1e-3000 && @ != 0)))' then
            format('payload of job "%s" has a number of over 3,000 digits: pass a string', job_type)
        when octet_length(payload::text) > 65536 then
            format('payload of job "%s" has %s bytes, over the limit of 64 KiB: store the data and pass a reference',
                   job_type, octet_length(payload::text))
        when key = '' then 'an idempotency key cannot be empty: leave it out (null) for a run without a key'
        when length(key) > 500 then format('an idempotency key has %s characters, over the limit of 500', length(key))
        when key ~ '[\u0001-\u001f\u007f]' then
            format('an idempotency key has the control character U+%s: remove it',
                   lpad(upper(to_hex(ascii(substring(key from '[\u0001-\u001f\u007f]')))), 4, '0'))
        -- for every job name, also of a job that is scheduled later, so that no caller can take the place of a slot
        when key ~ '^\s*[a-z][a-z0-9_]{0,62}:[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?\s*$' then
            format('key "%s" has a reserved form: the slots of job "%s" have such keys', key, split_part(btrim(key), ':', 1))
        when key like 'on\_dead:%' then format('key "%s" is reserved for runs that call on_dead', key)
    end
$$;

-- A trace context that cannot be one is ignored, as W3C's Trace Context asks for.
create function yamlsched.valid_trace_context(context text) returns text
    language sql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
    select case when length(context) <= 600 and context ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}( [ -~]+)?$'
                then context end
$$;

-- The key of the run that calls on_dead: one for each death, because a retried run may die again. The key of a later death
-- ends with the run's number of attempts.
create function yamlsched.on_dead_key(namespace text, run_id bigint, attempts integer) returns text
    language sql stable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select case when exists (select from yamlsched.job_runs r
                             where r.namespace = on_dead_key.namespace and r.idempotency_key = 'on_dead:' || on_dead_key.run_id)
                  or exists (select from yamlsched.used_keys u
                             where u.namespace = on_dead_key.namespace and u.idempotency_key = 'on_dead:' || on_dead_key.run_id)
                then 'on_dead:' || on_dead_key.run_id || ':' || on_dead_key.attempts
                else 'on_dead:' || on_dead_key.run_id end
$$;

-- Enqueue runs of one job, in order, by one statement. Keys that a payload does not have come from the job's own payload
-- in schedules.yaml. Returns a row for each position (from 1): the run's id, and whether the run was created. An existing
-- run with the same key is returned unchanged; a null id means that the key was used by a run that has been pruned. Every
-- run is checked before the first is written. The function waits for another transaction that enqueues the same key: if
-- that commits, its run is returned, and if it rolls back, a run is created.
create function yamlsched.enqueue_many(
    job_type         text,
    payloads         jsonb[],
    idempotency_keys text[] default null,
    run_at           timestamptz default null,  -- one in the past counts as now: nothing overtakes what waits
    namespace        text default 'default',
    parent_id        bigint default null,
    priority         text default null,  -- high, normal or low; null: the job's
    delay            interval default null,  -- from now, instead of run_at
    trace_contexts   text[] default null     -- one for each payload, as in enqueue
) returns table ("position" integer, run_id bigint, created boolean)
    language plpgsql
    security definer                     -- an enqueuer may call this and touch no table
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    definition yamlsched.job_definitions;
    bad        record;
    ids        bigint[];                 -- one for each position: shows which runs were created now
    rows_made  integer;
    tries      integer := 0;
    level      smallint := array_position(array['high', 'normal', 'low'], enqueue_many.priority);
    -- who calls: inside of this function the current user is its owner
    caller     text := case current_setting('role') when 'none' then session_user else current_setting('role') end;
begin
    select d.* into definition
    from yamlsched.job_definitions d
    where d.namespace = enqueue_many.namespace and d.job_type = enqueue_many.job_type;
    if definition.id is null or definition.retired_at is not null then
        raise exception using errcode = 'YS001',
            message = format('no job "%s" in namespace "%s"', enqueue_many.job_type, enqueue_many.namespace),
            hint = coalesce(
                (select format('It is known in namespace "%s": pass that namespace.',
                               string_agg(o.namespace, '", "' order by o.namespace))
                 from (select d.namespace from yamlsched.job_definitions d
                       where d.job_type = enqueue_many.job_type and d.retired_at is null
                       order by d.namespace limit 3) o
                 having count(*) > 0),
                'A job is known after the first sync of its schedules.yaml.');
    end if;
    if not definition.enabled then
        raise exception using errcode = 'YS002',
            message = format('job "%s" is not enabled in schedules.yaml', definition.job_type);
    end if;
    if parent_id is not null and not has_table_privilege(caller, 'yamlsched.job_runs', 'update') then
        raise exception using errcode = 'YS003',
            message = 'parent_id is not accepted from an enqueuer: run.enqueue() of a worker''s handler sets it';
    end if;
    if payloads is null then
        raise exception using errcode = 'YS003', message = 'the list of payloads is null';
    end if;
    if cardinality(idempotency_keys) <> cardinality(payloads) then
        raise exception using errcode = 'YS003', message = format(
            '%s payloads, but %s keys', cardinality(payloads), cardinality(idempotency_keys));
    end if;
    if cardinality(trace_contexts) <> cardinality(payloads) then
        raise exception using errcode = 'YS003', message = format(
            '%s payloads, but %s trace contexts', cardinality(payloads), cardinality(trace_contexts));
    end if;
    if enqueue_many.run_at not between '1970-01-01 00:00Z' and '9999-01-01 00:00Z' then
        raise exception using errcode = 'YS003', message = format(
            'run_at %s is not between the years 1970 and 9998', enqueue_many.run_at);
    end if;
    if enqueue_many.run_at is not null and enqueue_many.delay is not null then
        raise exception using errcode = 'YS003', message = 'run_at and delay were both passed: pass one of them';
    end if;
    if enqueue_many.delay not between interval '0' and interval '36525 days' then
        raise exception using errcode = 'YS003', message = format(
            'delay %s is not between 0 and 100 years', enqueue_many.delay);
    end if;

    if enqueue_many.priority is not null and level is null then
        raise exception using errcode = 'YS003', message = format(
            'priority "%s" is not one of high, normal, low', enqueue_many.priority);
    end if;

    select yamlsched.enqueue_fault(definition.job_type, i.payload, i.key) as fault into bad
    from unnest(payloads, idempotency_keys) with ordinality as i (payload, key, nth)
    where yamlsched.enqueue_fault(definition.job_type, i.payload, i.key) is not null
    order by i.nth
    limit 1;
    if found then
        raise exception using errcode = 'YS003', message = bad.fault;
    end if;

    ids := array(select nextval('yamlsched.job_runs_id_seq') from generate_series(1, cardinality(payloads)));
    loop
        -- in the order of keys, so that two that enqueue the same keys wait for each other and never in a circle
        insert into yamlsched.job_runs
            (id, namespace, definition_id, job_type, payload, idempotency_key, run_at, priority, max_attempts,
             parent_id, trace_context)
        overriding system value
        select i.id, definition.namespace, definition.id, definition.job_type, definition.payload || i.payload, i.key,
               greatest(enqueue_many.run_at, clock_timestamp() + enqueue_many.delay, clock_timestamp()),
               coalesce(level, definition.priority),
               definition.max_attempts, enqueue_many.parent_id, yamlsched.valid_trace_context(i.context)
        from unnest(payloads, idempotency_keys, ids, trace_contexts) as i (payload, key, id, context)
        where tries = 0 or i.key is not null
        order by i.key collate "C", i.id
        on conflict do nothing;
        get diagnostics rows_made = row_count;
        exit when idempotency_keys is null;

        -- This later statement sees what was committed while the insert waited, such as a prune. Runs whose key is used
        -- are deleted again. The check is here, and not before the insert, which would miss a prune in between.
        if exists (select from yamlsched.used_keys u
                   where u.namespace = definition.namespace and u.idempotency_key = any (idempotency_keys)) then
            delete from yamlsched.job_runs r
            where r.id = any (ids)
              and (select true from yamlsched.used_keys u
                   where u.namespace = r.namespace and u.idempotency_key = r.idempotency_key);
            rows_made := 0;
        end if;
        exit when rows_made = cardinality(payloads)
               or not exists (
                   select from unnest(idempotency_keys) as i (key)
                   where i.key is not null
                     and (select r.id from yamlsched.job_runs r
                          where r.namespace = definition.namespace and r.idempotency_key = i.key) is null
                     and (select u.run_id from yamlsched.used_keys u
                          where u.namespace = definition.namespace and u.idempotency_key = i.key) is null);
        -- a run that was in the way is gone, and its key is remembered nowhere: it is free
        tries := tries + 1;
        if tries = 10 then
            raise exception using errcode = 'serialization_failure',
                message = format('keys of job "%s" conflict with concurrent transactions: enqueue again', definition.job_type);
        end if;
    end loop;

    if rows_made < cardinality(payloads) then
        -- A key held by another job is a mistake in how keys are named, and never a duplicate of this run.
        select r.idempotency_key, r.job_type into bad
        from yamlsched.job_runs r
        where r.namespace = definition.namespace
          and r.idempotency_key = any (idempotency_keys)
          and r.job_type <> definition.job_type
        limit 1;
        if found then
            raise exception using errcode = 'YS004',
                message = format('key "%s" is held by a run of %s', bad.idempotency_key,
                                 case when has_table_privilege(caller, 'yamlsched.job_runs', 'select')
                                      then format('job "%s"', bad.job_type) else 'another job' end),
                hint = 'Start keys with the name of their job.';
        end if;
    end if;

    perform pg_notify('yamlsched', definition.namespace);
    if rows_made = cardinality(payloads) then
        return query select i.nth::integer, i.id, true from unnest(ids) with ordinality as i (id, nth);
        return;
    end if;
    return query
    select a.nth, a.run_id, coalesce(a.run_id = a.id, false)
    from (
        select i.nth::integer as nth, i.id,
               case when i.key is null then i.id
                    else (select r.id from yamlsched.job_runs r
                          where r.namespace = definition.namespace and r.idempotency_key = i.key) end as run_id
        from unnest(idempotency_keys, ids) with ordinality as i (key, id, nth)
    ) a
    order by a.nth;
end
$$;

-- Enqueue one run. The common case, a run that can be created, takes few steps. enqueue_many handles all others.
create function yamlsched.enqueue(
    job_type        text,
    payload         jsonb default '{}',
    run_at          timestamptz default null,
    idempotency_key text default null,
    namespace       text default 'default',
    priority        text default null,  -- high, normal or low; null: the job's
    delay           interval default null,  -- from now, instead of run_at
    trace_context   text default null  -- W3C: a traceparent, and after a space the tracestate; an invalid one is ignored
) returns table (run_id bigint, created boolean)
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    made  bigint;
    level smallint := array_position(array['high', 'normal', 'low'], priority);
begin
    if (priority is null or level is not null) and yamlsched.enqueue_fault(job_type, payload, idempotency_key) is null
       and (idempotency_key is null or idempotency_key !~ ':[0-9]{4}-[0-9]{2}-[0-9]{2}')
       and (run_at is null or run_at between '1970-01-01 00:00Z' and '9999-01-01 00:00Z')
       and (delay is null or (run_at is null and delay between interval '0' and interval '36525 days')) then
        insert into yamlsched.job_runs as r
            (namespace, definition_id, job_type, payload, idempotency_key, run_at, priority, max_attempts, trace_context)
        select d.namespace, d.id, d.job_type, d.payload || enqueue.payload, enqueue.idempotency_key,
               greatest(enqueue.run_at, clock_timestamp() + enqueue.delay, clock_timestamp()),
               coalesce(level, d.priority), d.max_attempts, yamlsched.valid_trace_context(enqueue.trace_context)
        from yamlsched.job_definitions d
        where d.namespace = enqueue.namespace and d.job_type = enqueue.job_type
          and d.enabled and d.retired_at is null
        on conflict do nothing
        returning r.id into made;
        if made is not null and (idempotency_key is null or not exists (
            -- asked after the insert, which may have waited for a prune
            select from yamlsched.used_keys u
            where u.namespace = enqueue.namespace and u.idempotency_key = enqueue.idempotency_key)) then
            perform pg_notify('yamlsched', namespace);
            run_id := made;
            created := true;
            return next;
            return;
        end if;
        delete from yamlsched.job_runs r where r.id = made;
    end if;
    return query
    select e.run_id, e.created
    from yamlsched.enqueue_many(job_type, array[payload], case when idempotency_key is not null
                                then array[idempotency_key] end, run_at, namespace, null, priority, delay,
                                case when trace_context is not null then array[trace_context] end) e;
end
$$;

-- Functions are everybody's by default; these write with their owner's rights.
revoke execute on function yamlsched.enqueue_many(text, jsonb[], text[], timestamptz, text, bigint, text, interval, text[]) from public;
revoke execute on function yamlsched.enqueue(text, jsonb, timestamptz, text, text, text, interval, text) from public;
