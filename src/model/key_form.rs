//! The form of a key, checked before the key is stored. Pure. No message contains the key.

/// Beginnings of the keys of providers. The first match counts.
const PREFIXES: [(&str, &str); 4] =
    [("sk-ant-", "anthropic"), ("AIza", "gemini"), ("AQ.", "gemini"), ("sk-", "openai")];

/// Why a text cannot be a key, as a phrase.
pub fn fault(key: &str) -> Option<&'static str> {
    let quotes = ['"', '\'', '`'];
    if key.starts_with(quotes) || key.ends_with(quotes) {
        Some("it is in quotation marks")
    } else if key.contains("_KEY=") || key.contains("_TOKEN=") {
        Some("it begins with the name of a variable")
    } else if key.starts_with('$') {
        Some("it is the name of a variable, not the variable's value")
    } else if key.contains("://") {
        Some("it is an address")
    } else if key.contains("***") || key.contains("...") || key.contains(['…', '•']) {
        Some("a part of it is hidden")
    } else if !key.chars().all(|c| c.is_ascii_graphic()) {
        Some("it contains a blank, or a character that no key has")
    } else {
        None
    }
}

/// Says that a key is unlike those of the provider. Only for the provider's own address: another server may take any
/// key. No reason to refuse it, because providers introduce new forms.
pub fn doubt(key: &str, provider: &str) -> Option<String> {
    // Both formats of OpenAI take its keys.
    let owner = provider.strip_suffix("-responses").unwrap_or(provider);
    let likely = PREFIXES.iter().find(|(prefix, _)| key.starts_with(prefix)).map(|(_, likely)| *likely);
    let known: Vec<&str> =
        PREFIXES.iter().filter(|(_, of)| *of == owner).map(|(prefix, _)| *prefix).collect();
    match likely {
        Some(likely) if likely == owner => None,
        Some(likely) => Some(format!("the key looks like one of {likely}, not of {provider}")),
        None if known.is_empty() => None,
        None => Some(format!("keys of {provider} begin with {}, and this one does not", known.join(" or "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_cannot_be_keys_are_named() {
        for (key, expected) in [
            ("\"sk-1\"", Some("quotation marks")),
            ("sk-1'", Some("quotation marks")),
            ("ANTHROPIC_API_KEY=sk-1", Some("the name of a variable")),
            ("$OPENAI_API_KEY", Some("not the variable's value")),
            ("https://api.example/keys", Some("an address")),
            ("sk-ant-***", Some("hidden")),
            ("sk-ant-…x", Some("hidden")),
            ("sk 1", Some("a blank")),
            ("sk-1\n", Some("a blank")),
            ("schlüssel", Some("no key has")),
            ("x", None),
            ("sk-ant-api03-a_B-9.=/+", None),
        ] {
            let fault = fault(key);
            let is_right = fault.is_some() == expected.is_some();
            assert!(
                is_right && fault.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{key}: {fault:?}"
            );
        }
    }

    #[test]
    fn keys_unlike_those_of_the_provider_are_doubted() {
        for (key, provider, expected) in [
            ("sk-ant-1", "anthropic", None),
            ("sk-ant-1", "openai", Some("looks like one of anthropic, not of openai")),
            ("sk-proj-1", "openai-responses", None),
            ("sk-proj-1", "openai", None),
            ("sk-proj-1", "gemini", Some("looks like one of openai")),
            ("AIzaSy1", "gemini", None),
            ("AQ.1", "gemini", None),
            ("AIzaSy1", "openai-responses", Some("looks like one of gemini")),
            ("notakey", "openai", Some("keys of openai begin with sk-, and")),
            ("notakey", "gemini", Some("keys of gemini begin with AIza or AQ., and")),
            ("notakey", "ollama", None),
        ] {
            let doubt = doubt(key, provider);
            let is_right = doubt.is_some() == expected.is_some();
            assert!(
                is_right && doubt.as_deref().unwrap_or_default().contains(expected.unwrap_or_default()),
                "{key} for {provider}: {doubt:?}"
            );
        }
    }
}
