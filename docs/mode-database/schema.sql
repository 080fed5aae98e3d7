-- A database of modes, one mode per row. Load it with seed.sql in any SQLite shell:
-- sqlite3 modes.db < docs/mode-database/schema.sql && sqlite3 modes.db < docs/mode-database/seed.sql
CREATE TABLE IF NOT EXISTS agent_modes (
    -- The mode's name, in any case.
    name TEXT PRIMARY KEY COLLATE NOCASE,
    -- The instructions for the model while the mode is on.
    prompt TEXT,
    -- Names of tools, separated by commas. NULL allows all tools, an empty text allows none.
    allowed_tools TEXT
);
