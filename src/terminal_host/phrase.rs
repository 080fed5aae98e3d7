//! Two words that only the user and the terminal host know. They are on the screen, which no program can read, at the
//! start and in the panel: a program that imitates the panel lacks them.

const COLOURS: [&str; 16] = [
    "amber", "azure", "coral", "crimson", "golden", "green", "indigo", "ivory", "jade", "lilac", "olive",
    "orange", "pearl", "purple", "silver", "violet",
];

const ANIMALS: [&str; 32] = [
    "badger", "bear", "beaver", "bison", "camel", "cat", "crane", "crow", "deer", "dolphin", "eagle",
    "falcon", "ferret", "fox", "gecko", "goose", "hare", "heron", "horse", "koala", "lemur", "lion", "lynx",
    "moose", "otter", "owl", "panda", "raven", "seal", "stork", "tiger", "wolf",
];

/// Chosen by random bytes.
pub(super) fn new(random: [u8; 2]) -> String {
    format!("{} {}", word(&COLOURS, random[0]), word(&ANIMALS, random[1]))
}

fn word(words: &[&'static str], random: u8) -> &'static str {
    words[usize::from(random) % words.len()]
}
