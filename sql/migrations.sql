-- name: version
select coalesce(max(m.version), 0) as version, coalesce(max(m.oldest_supported), 0) as oldest_supported
from yamlsched.migrations m;

-- name: lock
-- One process at a time, until its transaction ends. The number is arbitrary.
select pg_advisory_xact_lock(7239054111);

-- name: exists
select to_regclass('yamlsched.migrations') is not null as found;

-- name: applied
select m.version, m.checksum, m.oldest_supported from yamlsched.migrations m order by m.version;

-- name: record
insert into yamlsched.migrations (version, name, checksum, oldest_supported)
values (%(version)s, %(name)s, %(checksum)s, %(oldest_supported)s);

-- name: support
select current_setting('server_version_num')::integer as version, current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding;
