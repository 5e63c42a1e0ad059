-- The tool call that a gate parks, by which it is shown in its place in the thread; NULL for gates of earlier versions.
ALTER TABLE gates ADD COLUMN call_id TEXT;
