-- A catalogue of modes, see docs/catalogue.md: one row a mode.
-- Try it: sqlite3 modes.db < docs/catalogue/schema.sql && sqlite3 modes.db < docs/catalogue/seed.sql
CREATE TABLE IF NOT EXISTS agent_modes (
    -- What the mode is called; case does not matter.
    name TEXT PRIMARY KEY COLLATE NOCASE,
    -- What the model is told while the mode is on.
    prompt TEXT,
    -- Names of tools with commas between them. NULL: no list, which means all. Empty: none at all.
    allowed_tools TEXT,
    -- The whole mode in Modegate's YAML, as `modegate modes show` prints it. NULL: the three columns above are all there is.
    definition TEXT
);
