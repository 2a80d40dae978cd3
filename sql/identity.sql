-- name: identity
-- Which database this is; see yamlsched.database_identity.
select i.identity::text, i.created_at from yamlsched.database_identity i;

-- name: renew
-- For a copy that is used beside its original, and for an empty table.
with old as materialized (
    select i.identity from yamlsched.database_identity i
), renewed as (
    insert into yamlsched.database_identity as i default values
    on conflict (only_row) do update set identity = gen_random_uuid(),
    created_at = clock_timestamp()
    returning i.identity, i.created_at
), recorded as (
    insert into yamlsched.operator_actions (namespace, who, verb, target, detail)
    select %(namespace)s, %(who)s, 'identity', 'database',
           jsonb_build_object('was', (select o.identity from old o), 'is', r.identity)
    from renewed r
)
select r.identity::text, r.created_at from renewed r;
