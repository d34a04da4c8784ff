-- no-transaction
-- Sessions that wait for a worker are found tenant by tenant.
create index concurrently run_state_ready_by_tenant on session.run_state (tenant_id, session_id) where status = 'ready';
