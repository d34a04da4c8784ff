-- no-transaction
-- What a try that failed left of the next one.
drop index concurrently if exists session.run_state_ready_by_tenant;
