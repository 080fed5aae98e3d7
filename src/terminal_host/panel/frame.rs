//! Turns a picture into bytes for the terminal.

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::text::Span;

/// All cells, as one synchronized update.
pub(super) fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut text = "\x1b[?2026h".to_owned();
    let width = usize::from(buffer.area().width);
    for (row, cells) in buffer.content().chunks(width.max(1)).enumerate() {
        text.push_str(&format!("\x1b[{};1H", row + 1));
        let mut attributes = String::new();
        let mut covered = 0;
        for cell in cells {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            let new_attributes = attributes_of(cell);
            if new_attributes != attributes {
                text.push_str(&format!("\x1b[0{new_attributes}m"));
                attributes = new_attributes;
            }
            text.push_str(cell.symbol());
            covered = Span::raw(cell.symbol()).width().saturating_sub(1);
        }
        text.push_str("\x1b[0m");
    }
    text.push_str("\x1b[?2026l");
    text.into_bytes()
}

/// Parameters of the sequence that sets attributes.
fn attributes_of(cell: &Cell) -> String {
    let modifiers = [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")];
    let set = modifiers.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier));
    let mut attributes: String = set.map(|(_, code)| *code).collect();
    attributes.push_str(match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        _ => "",
    });
    attributes
}
