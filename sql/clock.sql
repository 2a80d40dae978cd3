-- name: now
-- The database clock is the only clock.
select clock_timestamp() as now;
