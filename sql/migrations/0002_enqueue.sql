-- Enqueue from any language, inside the application's own transaction. Creates functions only.

-- The form of a scheduled job's slot keys: reserved, so that no caller can swallow a slot.
create function yamlsched.is_slot_key(job_type text, key text) returns boolean
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select key ~ ('^' || job_type || ':[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?$')
$$;

-- Enqueue runs of one job, in order, by one statement. What a payload does not say, the job's own payload in
-- schedules.yaml says. Answers with a row for each position (from 1): the run's id,
-- and whether it was made now. An existing run with the same key is returned as it is; a null id means that the key
-- was used by a run that has been pruned. Every run is checked before the first is written.
create function yamlsched.enqueue_many(
    job_type         text,
    payloads         jsonb[],
    idempotency_keys text[] default null,
    run_at           timestamptz default null,
    namespace        text default 'default',
    parent_id        bigint default null
) returns table ("position" integer, run_id bigint, created boolean)
    language plpgsql
    security definer                     -- an enqueuer may call this and touch no table
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    definition yamlsched.job_definitions;
    bad        record;
begin
    select d.* into definition
    from yamlsched.job_definitions d
    where d.namespace = enqueue_many.namespace and d.job_type = enqueue_many.job_type;
    if definition.id is null or definition.retired_at is not null then
        raise exception using errcode = 'YS001', message = format('no job "%s" in namespace "%s"', job_type, namespace),
            hint = 'Jobs are known from the first sync of the schedules.yaml that names them.';
    end if;
    if not definition.enabled then
        raise exception using errcode = 'YS002', message = format('job "%s" is disabled in schedules.yaml', job_type);
    end if;
    if idempotency_keys is not null and cardinality(idempotency_keys) <> cardinality(payloads) then
        raise exception using errcode = 'YS003', message = format(
            '%s payloads, but %s keys', cardinality(payloads), cardinality(idempotency_keys));
    end if;

    select i.nth, i.payload, i.key into bad
    from unnest(payloads, idempotency_keys) with ordinality as i (payload, key, nth)
    where i.payload is null
       or jsonb_typeof(i.payload) <> 'object'
       or octet_length(i.payload::text) > 65536
       or i.key = '' or length(i.key) > 500
       or i.key like 'on\_dead:%'
       or (definition.schedule is not null and yamlsched.is_slot_key(definition.job_type, i.key))
    order by i.nth
    limit 1;
    if bad.nth is not null then
        raise exception using errcode = 'YS003', message = case
            when bad.payload is null or jsonb_typeof(bad.payload) <> 'object' then
                format('payload of job "%s" is not a JSON object: its keys become keyword arguments', job_type)
            when octet_length(bad.payload::text) > 65536 then
                format('payload of job "%s" has %s bytes, over the limit of 64 KiB: store the data and pass a reference',
                       job_type, octet_length(bad.payload::text))
            when bad.key = '' then 'an idempotency key cannot be empty: leave it out (null) for a run without a key'
            when length(bad.key) > 500 then format('idempotency key has %s characters, over the limit of 500', length(bad.key))
            else format('key "%s" is of a form that is reserved: slots of a scheduled job are named so', bad.key)
            end;
    end if;

    -- A key held by another job is a mistake in how keys are named, and never a duplicate of this run.
    select r.idempotency_key, r.job_type into bad
    from yamlsched.job_runs r
    where r.namespace = enqueue_many.namespace
      and r.idempotency_key = any (idempotency_keys)
      and r.job_type <> definition.job_type
    limit 1;
    if found then
        raise exception using errcode = 'YS004',
            message = format('key "%s" is held by a run of job "%s"', bad.idempotency_key, bad.job_type),
            hint = 'Begin keys with the name of their job.';
    end if;

    return query
    with items as materialized (
        select i.nth::integer as nth, i.payload, i.key,
               row_number() over (partition by i.key order by i.nth) = 1 or i.key is null as first
        from unnest(payloads, idempotency_keys) with ordinality as i (payload, key, nth)
    ), made as (
        insert into yamlsched.job_runs
            (namespace, definition_id, job_type, payload, idempotency_key, run_at, max_attempts, parent_id)
        select enqueue_many.namespace, definition.id, definition.job_type, definition.payload || i.payload, i.key,
               coalesce(enqueue_many.run_at, clock_timestamp()), definition.max_attempts, enqueue_many.parent_id
        from items i
        where i.first
          and (i.key is null or not exists (
              select from yamlsched.used_keys u
              where u.namespace = enqueue_many.namespace and u.idempotency_key = i.key))
        order by i.nth
        on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing
        returning id, idempotency_key
    ), keyless as (
        -- ids are given in the order of insertion, so the nth new run without a key is the nth item without one
        select id, row_number() over (order by id) as n from made where idempotency_key is null
    )
    select i.nth, coalesce(m.id, k.id, r.id), m.id is not null and i.first or k.id is not null
    from (select *, count(*) filter (where key is null) over (order by nth) as n from items) i
    left join made m on m.idempotency_key = i.key
    left join keyless k on i.key is null and k.n = i.n
    left join yamlsched.job_runs r
           on r.namespace = enqueue_many.namespace and r.idempotency_key = i.key and i.key is not null
    order by i.nth;

    perform pg_notify('yamlsched', namespace);
end
$$;

create function yamlsched.enqueue(
    job_type        text,
    payload         jsonb default '{}',
    run_at          timestamptz default null,
    idempotency_key text default null,
    namespace       text default 'default'
) returns table (run_id bigint, created boolean)
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    answer record;
    held   text;
begin
    for i in 1..10 loop
        select e.run_id, e.created into answer
        from yamlsched.enqueue_many(job_type, array[payload], array[idempotency_key], run_at, namespace) e;

        if answer.created and idempotency_key is not null and exists (
            -- a prune that committed while the insert waited for it: the key is used, the new run must not stay
            select from yamlsched.used_keys u where u.namespace = enqueue.namespace and u.idempotency_key = enqueue.idempotency_key
        ) then
            delete from yamlsched.job_runs r where r.id = answer.run_id;
            return query select null::bigint, false;
            return;
        end if;
        exit when answer.run_id is not null or exists (
            select from yamlsched.used_keys u where u.namespace = enqueue.namespace and u.idempotency_key = enqueue.idempotency_key);
        -- neither made nor seen: another transaction committed the same key meanwhile; a new snapshot sees it
    end loop;

    select r.job_type into held from yamlsched.job_runs r where r.id = answer.run_id;
    if held <> job_type then
        raise exception using errcode = 'YS004',
            message = format('key "%s" is held by a run of job "%s"', idempotency_key, held),
            hint = 'Begin keys with the name of their job.';
    end if;
    return query select answer.run_id, answer.created;
end
$$;
