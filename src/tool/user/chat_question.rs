//! Questions in the chat, for clients without forms: a numbered list, answered by the next prompt. Pure.
//!
//! Permission requests cannot replace forms: clients relabel their options, and some accept without the user.

use crate::text::visible;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatQuestion {
    pub question: String,
    /// Empty if the user answers in free text.
    pub choices: Vec<String>,
}

pub fn text(questions: &[ChatQuestion]) -> String {
    let mut text = String::new();
    for ChatQuestion { question, choices } in questions {
        text.push_str(&format!("\n{}\n\n", visible(question)));
        for (number, choice) in (1..).zip(choices) {
            text.push_str(&format!("{number}. {}\n", visible(choice)));
        }
    }
    let has_choices = questions.iter().any(|question| !question.choices.is_empty());
    let how = match (questions.len(), has_choices) {
        (_, false) => "Answer with the next message.",
        (1, true) => "Answer with a number or in your own words.",
        (_, true) => "Answer with a number for each, or in your own words.",
    };
    text.push_str(&format!("\n{how}\n"));
    text
}

/// The answer in words, if the prompt is one choice number per question.
pub fn answer(questions: &[ChatQuestion], prompt: &str) -> Option<String> {
    let numbers: Vec<&str> = prompt
        .split(|c: char| c.is_whitespace() || [',', ';', '.', ')'].contains(&c))
        .filter(|number| !number.is_empty())
        .collect();
    if questions.is_empty() || numbers.len() != questions.len() {
        return None;
    }
    let chosen = questions.iter().zip(&numbers).map(|(ChatQuestion { question, choices }, number)| {
        let at = number.parse::<usize>().ok()?.checked_sub(1)?;
        Some(format!("{question}\n{number}. {}", choices.get(at)?))
    });
    chosen.collect::<Option<Vec<_>>>().map(|answers| answers.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions(all: &[(&str, &[&str])]) -> Vec<ChatQuestion> {
        let one = |(question, choices): &(&str, &[&str])| ChatQuestion {
            question: (*question).into(),
            choices: choices.iter().map(|choice| (*choice).into()).collect(),
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn question_text_is_a_numbered_list() {
        let one = questions(&[("Which language?", &["English", "Ger\u{202e}man"])]);
        let expected = "\nWhich language?\n\n1. English\n2. Ger\\u{202e}man\n\nAnswer with a number or in your own words.\n";
        assert_eq!(text(&one), expected);
        assert_eq!(text(&questions(&[("Why?", &[])])), "\nWhy?\n\n\nAnswer with the next message.\n");
        assert!(
            text(&questions(&[("A?", &["x"]), ("B?", &[])]))
                .ends_with("a number for each, or in your own words.\n")
        );
    }

    #[test]
    fn only_choice_numbers_are_answers() {
        let one = questions(&[("Which?", &["a", "b", "c"])]);
        for (prompt, expected) in [
            ("2", Some("Which?\n2. b")),
            (" 3.\n", Some("Which?\n3. c")),
            ("0", None),
            ("4", None),
            ("-1", None),
            ("b", None),
            ("2 of them", None),
            ("1 2", None),
            ("", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(answer(&one, prompt).as_deref(), expected, "{prompt}");
        }
        let two = questions(&[("A?", &["x", "y"]), ("B?", &["z"])]);
        assert_eq!(answer(&two, "2, 1").as_deref(), Some("A?\n2. y\nB?\n1. z"));
        assert_eq!(answer(&two, "2"), None);
        assert_eq!(answer(&[], ""), None);
        assert_eq!(answer(&questions(&[("Why?", &[])]), "1"), None);
    }
}
