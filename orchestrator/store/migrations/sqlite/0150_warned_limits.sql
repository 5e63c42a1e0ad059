-- Which limits the agent has been warned of, as bits.
ALTER TABLE jobs RENAME COLUMN told_low TO warned_limits;
