//! The table of clients in `docs/guides/editors.md`, from the known clients of the code.

use std::fmt::Write;

use modegate::client::known_clients::{AutomaticConsent, ClientDisplay, FileWriter, KNOWN_CLIENTS};

use super::check_table;

const HEAD: &str = "| client | shows before you answer | accepts without you | writes files |\n\
                    | --- | --- | --- | --- |\n";

fn row(client: &str, display: ClientDisplay, consent: &str, writer: &str) -> String {
    let parts = [
        (display.plans, "plans"),
        (display.text, "texts"),
        (display.changes, "changes"),
        (display.new_files, "new files"),
    ];
    let shown: Vec<_> = parts.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, part)| part).collect();
    let shown = match shown.len() {
        0 => "titles".to_owned(),
        4 => "all".to_owned(),
        _ => shown.join(", "),
    };
    format!("| {client} | {shown} | {consent} | {writer} |\n")
}

fn table() -> String {
    let mut table = HEAD.to_owned();
    for client in KNOWN_CLIENTS {
        let mut label = client.label.to_owned();
        if !client.since.is_empty() {
            write!(label, ", `{}` {}", client.name, client.since).unwrap();
        }
        let consent = match client.consent {
            AutomaticConsent::Never => "no".to_owned(),
            AutomaticConsent::Setting(setting) => format!("with {setting}"),
            AutomaticConsent::Always => "always".to_owned(),
        };
        let writer = match client.writer {
            FileWriter::Editor => "editor",
            FileWriter::Disk => "client",
            FileWriter::DiskAfterQuestion => "client, which asks",
            FileWriter::Modegate => "Modegate",
        };
        table += &row(&label, client.display, &consent, writer);
    }
    table + &row("others", ClientDisplay::UNKNOWN, "?", "?")
}

#[test]
fn editors_page_has_the_table_of_clients() {
    check_table("docs/guides/editors.md", "| client | shows before you answer |", &table());
}
