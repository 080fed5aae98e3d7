//! Messages of the DNS: reads a query with one question, and writes its answer. Pure.

use std::net::Ipv4Addr;

const HEADER: usize = 12;

/// Seconds for which an answer may be kept.
const LIFETIME: u32 = 60;

const CLASS_INTERNET: u16 = 1;
pub(super) const TYPE_A: u16 = 1;

/// Marks a name that stands at an offset. The question follows the header.
const POINTER_TO_QUESTION: [u8; 2] = [0xc0, 12];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Query {
    header: [u8; HEADER],
    /// The name in wire format, the type and the class.
    question: Vec<u8>,
    /// Lower case, labels with dots between. `None` if a label has other characters than a host's name.
    pub(super) name: Option<String>,
    pub(super) kind: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameAnswer {
    /// None if the name has no record of this type.
    Addresses(Vec<Ipv4Addr>),
    NoSuchName,
    Failed,
}

/// Returns `None` for a message that is no query, or has another number of questions than one.
pub(super) fn query(message: &[u8]) -> Option<Query> {
    let header: [u8; HEADER] = message.get(..HEADER)?.try_into().ok()?;
    let is_query = header[2] & 0xf8 == 0;
    if !is_query || header[4..6] != [0, 1] {
        return None;
    }
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        match length {
            0 => break,
            // No pointers: there is nothing before the question.
            1..=63 => labels.push(message.get(at..at + length)?),
            _ => return None,
        }
        at += length;
        if at > HEADER + 255 {
            return None;
        }
    }
    let rest: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
    if u16::from_be_bytes([rest[2], rest[3]]) != CLASS_INTERNET {
        return None;
    }
    let question = message.get(HEADER..at + 4)?.to_vec();
    let kind = u16::from_be_bytes([rest[0], rest[1]]);
    Some(Query { header, question, name: name(&labels), kind })
}

fn name(labels: &[&[u8]]) -> Option<String> {
    let labels: Option<Vec<String>> = labels
        .iter()
        .map(|label| {
            let text = std::str::from_utf8(label).ok()?;
            label.iter().copied().all(is_of_host).then(|| text.to_ascii_lowercase())
        })
        .collect();
    Some(labels?.join(".")).filter(|name| !name.is_empty())
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Returns a whole message.
pub(super) fn response(query: &Query, answer: &NameAnswer) -> Vec<u8> {
    let (code, addresses): (u8, &[Ipv4Addr]) = match answer {
        NameAnswer::Addresses(addresses) => (0, addresses),
        NameAnswer::Failed => (2, &[]),
        NameAnswer::NoSuchName => (3, &[]),
    };
    let count = u8::try_from(addresses.len()).unwrap_or(u8::MAX);
    let mut message = query.header[..2].to_vec();
    // An answer, with "recursion desired" as in the query, and "recursion available".
    message.extend([0x80 | query.header[2] & 1, 0x80 | code]);
    message.extend([0, 1, 0, count, 0, 0, 0, 0]);
    message.extend(&query.question);
    for address in addresses.iter().take(count.into()) {
        message.extend(POINTER_TO_QUESTION);
        message.extend(TYPE_A.to_be_bytes());
        message.extend(CLASS_INTERNET.to_be_bytes());
        message.extend(LIFETIME.to_be_bytes());
        message.extend([0, 4]);
        message.extend(address.octets());
    }
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    #[test]
    fn addresses_answer_the_question() {
        let query = query(&message("Api.Example.com", TYPE_A)).unwrap();
        assert_eq!((query.name.as_deref(), query.kind), (Some("api.example.com"), TYPE_A));
        let answer = response(&query, &NameAnswer::Addresses(vec![Ipv4Addr::new(198, 18, 0, 1)]));
        let mut expected = message("Api.Example.com", TYPE_A);
        expected[2..4].copy_from_slice(&[0x81, 0x80]);
        expected[7] = 1;
        expected.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 1]);
        assert_eq!(answer, expected);
        for (answer, code) in [
            (NameAnswer::NoSuchName, 0x83),
            (NameAnswer::Failed, 0x82),
            (NameAnswer::Addresses(Vec::new()), 0x80),
        ] {
            let answer = response(&query, &answer);
            assert_eq!((answer[3], answer[7], answer.len()), (code, 0, message("Api.Example.com", 1).len()));
        }
    }

    #[test]
    fn names_that_are_no_hosts_have_no_text() {
        let mut dotted = message("a-b", TYPE_A);
        dotted[HEADER + 2] = b'.';
        assert_eq!(query(&dotted).unwrap().name, None);
        let mut root = message("a", TYPE_A);
        root.drain(HEADER..HEADER + 2);
        assert_eq!(query(&root).unwrap().name, None);
        assert_eq!(query(&message("a-b", TYPE_A)).unwrap().name.as_deref(), Some("a-b"));
    }

    #[test]
    fn other_messages_are_no_queries() {
        let good = message("a.b", TYPE_A);
        assert!(query(&good).is_some());
        let mut with_options = good.clone();
        with_options.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        assert!(query(&with_options).is_some(), "options are ignored");
        for (at, value) in
            [(2, 0x81), (2, 0x28), (4, 1), (5, 2), (HEADER, 0xc0), (HEADER, 200), (good.len() - 1, 3)]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(query(&bad), None, "{at} {value}");
        }
        for length in 0..good.len() {
            assert_eq!(query(&good[..length]), None);
        }
        assert_eq!(query(&message(&["a"; 128].join("."), TYPE_A)), None, "too long");
    }

    proptest! {
        #[test]
        fn any_message_is_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            name in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut message = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            message.extend(name);
            for message in [bytes, message] {
                if let Some(query) = query(&message) {
                    let answer = response(&query, &NameAnswer::Addresses(vec![Ipv4Addr::LOCALHOST; 300]));
                    prop_assert!(answer.len() <= HEADER + 255 + 5 + 255 * 16);
                    prop_assert!(answer.starts_with(&message[..2]));
                }
            }
        }
    }
}
