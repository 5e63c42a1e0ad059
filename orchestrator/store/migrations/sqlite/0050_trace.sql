-- The trace that a job belongs to, as a W3C traceparent; none when it was made while no traces were kept.
ALTER TABLE jobs ADD COLUMN traceparent TEXT;
