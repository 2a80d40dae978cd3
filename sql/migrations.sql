-- name: lock
-- One process at a time, until its transaction ends. Only the owner of the tables may take this
-- lock.
lock table yamlsched.migrations in share row exclusive mode;

-- name: exists
select to_regclass('yamlsched.migrations') is not null as found;

-- name: schema
-- Who owns the schema, and what is in it. The owner can replace each table and function, and so
-- decides what a migration and each later statement do: it must be the current user, a role with
-- this member, or a superuser. A superuser counts as a member of every role, and may migrate
-- only what superusers and yamlsched_owner own, to which the script of the roles gives the schema.
select o.rolname as owner, current_user as who,
       o.rolsuper or case when u.rolsuper then o.rolname = 'yamlsched_owner'
                          else pg_has_role(u.oid, o.oid, 'member') end as is_trusted,
       exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid)
       or exists (select from pg_catalog.pg_proc p where p.pronamespace = n.oid)
       or exists (select from pg_catalog.pg_type t where t.typnamespace = n.oid) as has_objects
from pg_catalog.pg_namespace n
join pg_catalog.pg_roles o on o.oid = n.nspowner
join pg_catalog.pg_roles u on u.rolname = current_user
where n.nspname = 'yamlsched';

-- name: applied
select m.version, m.checksum from yamlsched.migrations m order by m.version;

-- name: record
insert into yamlsched.migrations (version, name, checksum)
values (%(version)s, %(name)s, %(checksum)s);

-- name: connections
-- How many connections the server, the role and the database may have; -1: any number, as for a
-- superuser.
select current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer as of_server,
       r.rolname as role, case when r.rolsuper then -1 else r.rolconnlimit end as of_role,
       d.datname as database, case when r.rolsuper then -1 else d.datconnlimit end as of_database
from pg_catalog.pg_roles r
cross join pg_catalog.pg_database d
where r.rolname = session_user and d.datname = current_database();

-- name: support
select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding;
