-- Example modes for schema.sql. Loading them again restores these rows.
INSERT OR REPLACE INTO agent_modes (name, prompt, allowed_tools) VALUES
    ('Explain', 'You explain code to an engineer who has never seen it. Name the file and the line of everything you mention.',
        'read_file, list_directory, search_files'),
    ('talk', 'You answer questions and use no tools.', ''),
    ('helper', NULL, NULL),
    ('plan', 'You plan database migrations.', NULL);
