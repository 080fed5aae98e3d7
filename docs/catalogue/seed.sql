-- Examples for docs/catalogue/schema.sql. Loading them once more puts these rows back as they were.
INSERT OR REPLACE INTO agent_modes (name, prompt, allowed_tools, definition) VALUES
    ('Explain', 'You explain code to somebody who has never seen it. Name the file and the line of whatever you speak of.',
        'read_file, list_directory, search_files', NULL),
    ('talk', 'You talk, and touch nothing.', '', NULL),
    ('helper', NULL, NULL, NULL),
    ('docs', 'You write documentation. Check every claim against the code.
', NULL,
'id: docs
name: "Docs"
description: "Writes documentation only"
access: edit
permission: auto
shell: read_only
network: ask
write_paths: ["docs/**","**/*.md"]
max_steps: 50
in_band_switch: parse
reminder_position: tail
prompt: |
  You write documentation. Check every claim against the code.
');
