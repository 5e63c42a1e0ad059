-- Review, repair, children, budgets.
ALTER TABLE jobs ADD COLUMN review BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE jobs ADD COLUMN parent_id BLOB REFERENCES jobs (id);
-- 0 for a job that nobody's tool made.
ALTER TABLE jobs ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
-- The cancel came from the parent's end, not from a person.
ALTER TABLE jobs ADD COLUMN cancelled_by_parent BOOLEAN NOT NULL DEFAULT FALSE;
-- Model calls made before the current attempt: whether this one has had effects.
ALTER TABLE jobs ADD COLUMN calls_before_attempt INTEGER NOT NULL DEFAULT 0;
-- What model calls under way may cost at worst, the children's included.
ALTER TABLE jobs ADD COLUMN reserved_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN reserved_micro_usd INTEGER NOT NULL DEFAULT 0;
-- What the children have spent of this job's budget; their own rows have it too.
ALTER TABLE jobs ADD COLUMN children_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN children_micro_usd INTEGER NOT NULL DEFAULT 0;
-- Which limits the agent has been told of, as bits.
ALTER TABLE jobs ADD COLUMN told_low INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_by_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL;

-- A user's day in UTC: what was spent, and what calls under way may yet cost.
CREATE TABLE user_days (
    user_id            TEXT    NOT NULL,
    day                TEXT    NOT NULL,
    tokens             INTEGER NOT NULL DEFAULT 0,
    micro_usd          INTEGER NOT NULL DEFAULT 0,
    reserved_tokens    INTEGER NOT NULL DEFAULT 0,
    reserved_micro_usd INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, day)
);
