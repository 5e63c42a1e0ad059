-- The number of jobs that exist, by user, state and reason ('' if there is none). Counted by triggers, so that no
-- statement forgets to and no summary counts jobs.
CREATE TABLE job_counts (
    user_id TEXT    NOT NULL,
    state   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    jobs    INTEGER NOT NULL,
    PRIMARY KEY (user_id, state, reason)
) WITHOUT ROWID;
INSERT INTO job_counts (user_id, state, reason, jobs)
SELECT user_id, state, IFNULL(reason, ''), COUNT(*) FROM jobs GROUP BY 1, 2, 3;

CREATE TRIGGER jobs_counted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts (user_id, state, reason, jobs) VALUES (NEW.user_id, NEW.state, IFNULL(NEW.reason, ''), 1)
    ON CONFLICT (user_id, state, reason) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER jobs_recounted AFTER UPDATE OF state, reason ON jobs
WHEN NEW.state <> OLD.state OR NEW.reason IS NOT OLD.reason BEGIN
    UPDATE job_counts SET jobs = jobs - 1
    WHERE user_id = OLD.user_id AND state = OLD.state AND reason = IFNULL(OLD.reason, '');
    INSERT INTO job_counts (user_id, state, reason, jobs) VALUES (NEW.user_id, NEW.state, IFNULL(NEW.reason, ''), 1)
    ON CONFLICT (user_id, state, reason) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER jobs_uncounted AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET jobs = jobs - 1
    WHERE user_id = OLD.user_id AND state = OLD.state AND reason = IFNULL(OLD.reason, '');
END;
