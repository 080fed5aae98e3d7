//! Sizes: of the binary, and of the lock file.

use std::path::Path;

use crate::baseline::Figure;
use crate::valgrind::BINARY;

pub(crate) fn all() -> Vec<Figure> {
    let elf = std::fs::read(BINARY).unwrap();
    let lock = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock")).unwrap();
    let packages = lock.lines().filter(|line| *line == "[[package]]").count();
    let size = |name, value| Figure { name, value, spread: None };
    vec![
        size("binary_bytes", elf.len() as u64),
        size("relocations", relocations(&elf)),
        size("packages", packages as u64),
    ]
}

/// Entries of the relocation tables (`SHT_RELA`) of a 64-bit little-endian ELF file: work of the dynamic linker
/// at each start.
fn relocations(elf: &[u8]) -> u64 {
    const SHT_RELA: u64 = 4;
    assert!(elf.starts_with(b"\x7fELF\x02\x01"), "the binary is no 64-bit little-endian ELF file");
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).unwrap();
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&elf[at..at + bytes]);
        u64::from_le_bytes(word)
    };
    let (table, entry_size, entries) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let sections = (0..entries).map(|index| table + index * entry_size);
    let relocation_tables = sections.filter(|section| number(section + 4, 4) == SHT_RELA);
    relocation_tables.map(|section| number(section + 0x20, 8) / number(section + 0x38, 8)).sum()
}
