-- name: version
select coalesce(max(m.version), 0) as version, coalesce(max(m.oldest_supported), 0) as oldest_supported
from yamlsched.migrations m;

-- name: lock
-- One process at a time, until its transaction ends. The number is arbitrary.
select pg_advisory_xact_lock(7239054111);

-- name: exists
select to_regclass('yamlsched.migrations') is not null as found;

-- name: foreign_schema
-- A schema of this name that is not ours to use: before the first migration it must be empty, and belong to the current
-- user, to a role whose privileges it has, to the database's owner or to a superuser. Its owner could replace what is in it.
select o.rolname as owner,
       exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid)
       or exists (select from pg_catalog.pg_proc p where p.pronamespace = n.oid)
       or exists (select from pg_catalog.pg_type t where t.typnamespace = n.oid) as has_objects
from pg_catalog.pg_namespace n
join pg_catalog.pg_roles o on o.oid = n.nspowner
join pg_catalog.pg_roles u on u.rolname = current_user
where n.nspname = 'yamlsched' and to_regclass('yamlsched.migrations') is null
  and (not (o.oid = u.oid or o.rolsuper or o.rolname = 'yamlsched_owner'
            or o.oid = (select d.datdba from pg_catalog.pg_database d where d.datname = current_database())
            or (not u.rolsuper and pg_catalog.pg_has_role(u.oid, o.oid, 'usage')))
       or exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid)
       or exists (select from pg_catalog.pg_proc p where p.pronamespace = n.oid)
       or exists (select from pg_catalog.pg_type t where t.typnamespace = n.oid));

-- name: applied
select m.version, m.checksum, m.oldest_supported from yamlsched.migrations m order by m.version;

-- name: record
insert into yamlsched.migrations (version, name, checksum, oldest_supported)
values (%(version)s, %(name)s, %(checksum)s, %(oldest_supported)s);

-- name: support
select current_setting('server_version_num')::integer as version, current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding;
