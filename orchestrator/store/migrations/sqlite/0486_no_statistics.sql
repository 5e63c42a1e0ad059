-- The planner chooses indexes by the schema alone, as the tests of plans do. Statistics would have to be refreshed, for which
-- SQLite counts the entries of each index, seconds for a large one, in a transaction that writes.
DROP TABLE IF EXISTS sqlite_stat1;
