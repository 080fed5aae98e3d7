//! Rows that are kept for a retry while the file cannot be written.

use std::collections::HashSet;

use super::Row;
use crate::workspace::Changes;

/// Maximum number of rows kept for a retry.
const MAX_RETRY_ROWS: usize = 10_000;

/// Maximum bytes of file contents in kept rows.
const MAX_RETRY_BYTES: usize = 64 * 1024 * 1024;

/// Limits the rows kept while writing fails. Concluded intents go first, then the oldest file contents, then
/// the oldest rows. Rows that start or release a session stay.
pub(super) fn forget_oldest(retained: &mut Vec<Row>) {
    let concluded = |row: &Row| match row {
        Row::Changes { changes, .. } => changes.concludes.clone(),
        _ => None,
    };
    let over: HashSet<String> = retained.iter().filter_map(concluded).collect();
    retained.retain(|row| !matches!(row, Row::Intent { intent, .. } if over.contains(&intent.token)));
    let mut bytes: usize = retained.iter().map(content_bytes).sum();
    for row in retained.iter_mut() {
        let length = content_bytes(row);
        if bytes > MAX_RETRY_BYTES
            && length > 0
            && let Row::Changes { changes, .. } = row
        {
            bytes -= length;
            let paths: Vec<String> =
                changes.changed.iter().map(|changed| changed.path.display().to_string()).collect();
            let text = format!(
                "The session store could not be written, so changes of these files cannot be undone: {}.",
                paths.join(", ")
            );
            let intent = changes.concludes.take();
            *changes = Changes { uncovered: vec![text], concludes: intent, ..Changes::default() };
        }
    }
    let mut excess = retained.len().saturating_sub(MAX_RETRY_ROWS);
    retained.retain(|row| {
        let is_discarded = excess > 0 && !matches!(row, Row::Session { .. } | Row::Release { .. });
        excess -= usize::from(is_discarded);
        !is_discarded
    });
}

fn content_bytes(row: &Row) -> usize {
    match row {
        Row::Changes { changes, .. } => changes.contents.iter().map(|(_, content)| content.len()).sum(),
        Row::Intent { intent, .. } => intent.contents.iter().map(|(_, content)| content.len()).sum(),
        _ => 0,
    }
}
