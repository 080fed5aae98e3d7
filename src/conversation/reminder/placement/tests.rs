//! Places of a reminder over the requests of a session.

use super::*;

fn text(text: &str) -> Block {
    Block::Text(text.into())
}

fn user(blocks: Vec<Block>) -> Arc<Message> {
    Arc::new(Message { role: Role::User, blocks })
}

fn assistant(words: &str) -> Arc<Message> {
    Arc::new(Message { role: Role::Assistant, blocks: vec![text(words)] })
}

fn result(id: &str) -> Block {
    Block::ToolResult { id: id.into(), name: "t".into(), text: "r".into(), is_error: false }
}

fn two_turns() -> Vec<Arc<Message>> {
    vec![
        user(vec![text("first")]),
        assistant("answer"),
        user(vec![text("second"), text("more")]),
        assistant("calls"),
        user(vec![result("c")]),
    ]
}

/// The message and the block of each reminder.
fn places(messages: &[Arc<Message>]) -> Vec<(usize, usize)> {
    let blocks = messages.iter().enumerate().flat_map(|(message, content)| {
        content.blocks.iter().enumerate().map(move |(block, kind)| (message, block, kind))
    });
    let reminders = blocks.filter(|(.., block)| matches!(block, Block::Reminder(_)));
    reminders.map(|(message, block, _)| (message, block)).collect()
}

#[test]
fn before_prompt_reminder_precedes_the_last_prompt() {
    let spliced = Placement::default().splice(two_turns(), Some("R".into()), ReminderPosition::BeforePrompt);
    assert_eq!(places(&spliced), [(2, 0)]);
}

/// Splices a reminder into a growing number of the messages. Returns the places in each request.
fn places_over(placement: &mut Placement, requests: &[(usize, Option<&str>)]) -> Vec<Vec<(usize, usize)>> {
    let places = requests.iter().map(|(count, reminder)| {
        let messages = two_turns()[..*count].to_vec();
        places(&placement.splice(messages, reminder.map(str::to_owned), ReminderPosition::Stay))
    });
    places.collect()
}

#[test]
fn reminder_stays_while_it_says_the_same() {
    let requests = [(1, Some("R")), (3, Some("R")), (5, Some("R"))];
    assert_eq!(places_over(&mut Placement::default(), &requests), [[(0, 1)], [(0, 1)], [(0, 1)]]);
}

#[test]
fn another_text_moves_the_reminder_to_the_end_where_it_stays() {
    let requests = [(1, Some("R")), (3, Some("S")), (5, Some("S"))];
    assert_eq!(places_over(&mut Placement::default(), &requests), [[(0, 1)], [(2, 2)], [(2, 2)]]);
    let requests = [(1, Some("R")), (3, None), (5, Some("R"))];
    assert_eq!(places_over(&mut Placement::default(), &requests), [vec![(0, 1)], vec![], vec![(4, 1)]]);
}

#[test]
fn reset_reminder_stands_at_the_end() {
    let mut placement = Placement::default();
    assert_eq!(places_over(&mut placement, &[(1, Some("R"))]), [[(0, 1)]]);
    placement.reset();
    assert_eq!(places_over(&mut placement, &[(5, Some("R"))]), [[(4, 1)]]);
}

#[test]
fn place_that_is_gone_is_replaced_by_the_end() {
    let mut placement = Placement::default();
    assert_eq!(places_over(&mut placement, &[(5, Some("R")), (3, Some("R"))]), [[(4, 1)], [(2, 2)]]);
    let with_answer = vec![user(vec![text("first")]), assistant("answer")];
    let spliced = placement.splice(with_answer, Some("R".into()), ReminderPosition::Stay);
    assert_eq!(places(&spliced), [(2, 0)], "a message of its own");
    let shorter = vec![user(vec![result("c")]), assistant("a"), user(vec![result("d")])];
    let mut placement = Placement::default();
    placement.splice(two_turns()[..3].to_vec(), Some("R".into()), ReminderPosition::Stay);
    let spliced = placement.splice(shorter, Some("R".into()), ReminderPosition::Stay);
    assert_eq!(places(&spliced), [(2, 1)], "never before a result");
}

#[test]
fn message_of_a_standing_reminder_is_the_same_until_it_changes() {
    let mut placement = Placement::default();
    let mut splice = |messages: &[Arc<Message>], reminder: &str| {
        placement.splice(messages.to_vec(), Some(reminder.into()), ReminderPosition::Stay)
    };
    let mut messages = two_turns();
    let first = splice(&messages[..1], "R");
    let second = splice(&messages[..3], "R");
    assert!(Arc::ptr_eq(&first[0], &second[0]));
    messages[0] = user(vec![text("other")]);
    let changed = splice(&messages, "R");
    assert_eq!((places(&changed), &changed[0].blocks[0]), (vec![(0, 1)], &text("other")));
    let moved = splice(&messages, "another text");
    assert_eq!((places(&moved), &moved[0].blocks), (vec![(4, 1)], &messages[0].blocks));
}
