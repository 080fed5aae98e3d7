-- The schema of a new store: what all migrations make of an empty file. Columns stand in the order in which
-- migrations added them.

-- `state` is null for a session in lists, else `empty` (no event yet), `copying` or `deleting`. Each list has an
-- index in its order, so that a page costs the same however many sessions there are. `system_prompt` is set in
-- sessions of earlier versions; `system_prompts` has later ones, because each change of a row writes all of it.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    cwd TEXT NOT NULL,
    mode TEXT,
    title TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    system_prompt TEXT,
    owner TEXT,
    directories TEXT,
    model TEXT,
    effort TEXT,
    forked_from TEXT,
    chained INTEGER NOT NULL DEFAULT 0,
    parent TEXT REFERENCES sessions(id) ON DELETE CASCADE,
    agent TEXT,
    harness_session TEXT,
    harness_mode TEXT,
    state TEXT
);
CREATE INDEX sessions_by_parent ON sessions (parent);
CREATE INDEX sessions_listed ON sessions (updated_at, id) WHERE parent IS NULL AND state IS NULL;
CREATE INDEX sessions_listed_by_cwd ON sessions (cwd, updated_at, id)
    WHERE parent IS NULL AND state IS NULL;
CREATE INDEX sessions_listed_by_agent ON sessions (agent, updated_at, id)
    WHERE parent IS NULL AND state IS NULL;
CREATE INDEX sessions_by_state ON sessions (state) WHERE state IS NOT NULL;

CREATE TABLE events (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (session_id, seq)
) WITHOUT ROWID;

CREATE TABLE mode_changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    from_mode TEXT,
    to_mode TEXT NOT NULL,
    source TEXT NOT NULL,
    at INTEGER NOT NULL,
    analysis TEXT,
    actor TEXT,
    tool_call_id TEXT,
    mode_hash TEXT,
    plan_hash TEXT
);
CREATE INDEX mode_changes_by_session ON mode_changes (session_id, id);

CREATE TABLE denials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    tool_call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    mode TEXT NOT NULL,
    rule TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX denials_by_session ON denials (session_id, id);

CREATE TABLE mode_texts (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE grants (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    mode TEXT NOT NULL,
    allows INTEGER NOT NULL,
    kind TEXT NOT NULL,
    tool TEXT NOT NULL,
    value TEXT NOT NULL,
    turn INTEGER NOT NULL,
    at INTEGER NOT NULL,
    UNIQUE (session_id, mode, allows, kind, tool, value)
);

CREATE TABLE chain (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

CREATE TABLE changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    path TEXT NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    content TEXT,
    undone_at INTEGER,
    compared INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX changes_by_session ON changes (session_id, turn);
CREATE INDEX changes_by_content ON changes (content);

CREATE TABLE uncovered (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (session_id, turn, text)
);

CREATE TABLE contents (
    hash TEXT PRIMARY KEY,
    content BLOB NOT NULL
);

CREATE TABLE memories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    folder TEXT NOT NULL,
    text TEXT NOT NULL,
    category TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX memories_by_folder ON memories (folder, number);

CREATE TABLE intents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);
CREATE INDEX intents_by_session ON intents (session_id, id);

CREATE TABLE signed_heads (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    length INTEGER NOT NULL,
    hash TEXT NOT NULL,
    at INTEGER NOT NULL,
    key TEXT NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (session_id, key)
) WITHOUT ROWID;

-- A day is a local date in ISO 8601.
CREATE TABLE spent_days (
    day TEXT PRIMARY KEY,
    tokens INTEGER NOT NULL,
    micro_dollars INTEGER NOT NULL,
    ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE spent_sessions (
    session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    tokens INTEGER NOT NULL,
    micro_dollars INTEGER NOT NULL,
    ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE outbox_sessions (
    session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    exported INTEGER NOT NULL
) WITHOUT ROWID;

-- `open_span` is the id of a turn that runs, and null for finished work.
CREATE TABLE outbox_spans (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    open_span TEXT,
    body TEXT NOT NULL
);
CREATE INDEX outbox_spans_by_session ON outbox_spans (session_id, id);
CREATE INDEX outbox_spans_open ON outbox_spans (open_span) WHERE open_span IS NOT NULL;

CREATE VIEW tool_calls AS
    SELECT session_id, seq, turn, json_extract(body, '$.id') AS id, json_extract(body, '$.name') AS name,
        json_extract(body, '$.title') AS title, json_extract(body, '$.arguments') AS arguments, at
    FROM events WHERE kind = 'tool_call';
CREATE VIEW plans AS
    SELECT session_id, seq, turn, json_extract(body, '$.entries') AS entries, at FROM events WHERE kind = 'plan';
CREATE VIEW usage AS
    SELECT session_id, seq, turn, json_extract(body, '$.used') AS used, json_extract(body, '$.size') AS size,
        json_extract(body, '$.cache_read') AS cache_read, json_extract(body, '$.cache_write') AS cache_write,
        json_extract(body, '$.output') AS output, at
    FROM events WHERE kind = 'usage';

CREATE TABLE system_prompts (
    session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    text TEXT NOT NULL
) WITHOUT ROWID;
