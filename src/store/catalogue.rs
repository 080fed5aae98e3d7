//! Catalogues of modes: SQLite files with one table, in which modes are passed from one tool to another (G46).
//!
//! What a row means is not known here, and no session reads a catalogue: `docs/catalogue.md` has the rules.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, params};

use super::schema::BUSY;

/// The table as it is documented, so that what is documented is what is made (G47).
const SCHEMA: &str = include_str!("../../docs/catalogue/schema.sql");

/// Without these a table is not the one that is meant.
const REQUIRED: [&str; 3] = ["name", "prompt", "allowed_tools"];

/// One mode of a catalogue, as it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// What it is called; empty where it has no name.
    pub name: String,
    /// What the model is told.
    pub prompt: Option<String>,
    /// Names of tools with commas between them; absent means all, empty none.
    pub allowed_tools: Option<String>,
    /// The whole mode in YAML; absent in rows of other tools.
    pub definition: Option<String>,
}

/// Why a catalogue cannot be used, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CatalogueError(String);

impl CatalogueError {
    fn expected(found: &str) -> Self {
        Self(format!(
            "{found}: a catalogue is a SQLite database with a table agent_modes (name, prompt, allowed_tools, and definition \
             where it is known)"
        ))
    }
}

impl From<rusqlite::Error> for CatalogueError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::expected("it is no database"),
            Some(ErrorCode::CannotOpen) => Self("there is no such file, or it may not be opened".into()),
            // SQLite's own words are sentences for people, too.
            Some(_) | None => Self(error.to_string()),
        }
    }
}

/// All rows, by name. The file is opened for reading only.
pub fn read(path: &Path) -> Result<Vec<Row>, CatalogueError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let definition = if has_definition(&connection)? { "definition" } else { "NULL" };
    let mut statement = connection.prepare(&format!(
        "SELECT coalesce(name, ''), prompt, allowed_tools, {definition} FROM agent_modes ORDER BY lower(trim(name)), name"
    ))?;
    let rows = statement.query_map([], |row| {
        Ok(Row {
            name: row.get(0)?,
            prompt: row.get(1)?,
            allowed_tools: row.get(2)?,
            definition: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Writes all rows, or none. One of the same name, in whatever case, is replaced; the others stay. The file, the table
/// and the column for definitions are made where they are missing.
pub fn write(path: &Path, rows: &[Row]) -> Result<(), CatalogueError> {
    let mut connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    if !has_definition(&transaction)? {
        transaction.execute_batch("ALTER TABLE agent_modes ADD COLUMN definition TEXT")?;
    }
    for row in rows {
        // Another tool's table may tell names apart by their case, or have spaces around them; a mode's id does not.
        transaction
            .execute("DELETE FROM agent_modes WHERE lower(trim(name)) = lower(?1)", params![row.name])?;
        transaction.execute(
            "INSERT INTO agent_modes (name, prompt, allowed_tools, definition) VALUES (?1, ?2, ?3, ?4)",
            params![row.name, row.prompt, row.allowed_tools, row.definition],
        )?;
    }
    Ok(transaction.commit()?)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, CatalogueError> {
    if path.is_dir() {
        return Err(CatalogueError::expected("it is a folder"));
    }
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // A catalogue comes from others: what its views and triggers call is not to be trusted.
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// Whether the table has the column that is ours alone; an error where it is not the table that is meant.
fn has_definition(connection: &Connection) -> Result<bool, CatalogueError> {
    let mut statement = connection.prepare("SELECT lower(name) FROM pragma_table_info('agent_modes')")?;
    let columns: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    if columns.is_empty() {
        return Err(CatalogueError::expected("it has no table agent_modes"));
    }
    let is_there = |column: &str| columns.iter().any(|known| known == column);
    if let Some(missing) = REQUIRED.iter().find(|column| !is_there(column)) {
        return Err(CatalogueError::expected(&format!("its table has no column {missing}")));
    }
    Ok(is_there("definition"))
}
