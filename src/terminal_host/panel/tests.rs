use super::*;
use crate::terminal_run::control::{ChangedPath, Choice, DiffKind, RefusedAct};

fn question(number: u64) -> TerminalReport {
    let options =
        ["allow_once", "reject_once"].map(|id| Choice { id: id.into(), name: format!("Name of {id}") });
    TerminalReport::Asked(TerminalQuestion {
        number,
        title: format!("Create file{number} (sh)"),
        text: "sh wants to create a.".into(),
        options: options.into(),
    })
}

fn panel() -> Panel {
    let mut panel = Panel::new(PanelKey::default(), Some("amber fox".into()));
    let state = TerminalReport::State {
        session: "019-9907b3".into(),
        program: "vim".into(),
        folder: "/work".into(),
        mode: "ask".into(),
        limit: None,
        is_confirmed: true,
        modes: vec!["ask".into(), "plan".into(), "code".into()],
        mode_descriptions: vec!["Asks before each change".into(), "Changes nothing".into(), String::new()],
        is_read_only: false,
        open_questions: 0,
    };
    panel.report(state, Instant::now());
    panel
}

#[test]
fn answers_count_after_the_question_was_readable() {
    let (mut panel, start) = (panel(), Instant::now());
    panel.report(question(7), start);
    panel.open(true, start);
    assert_eq!(panel.key(PressedKey::Char('1'), start + READING_TIME / 2), PanelEffect::None);
    let answer = |option: &str| PanelEffect::Send(Order::Answer { number: 7, option: option.into() });
    let later = start + READING_TIME;
    assert_eq!(panel.key(PressedKey::Char('9'), later), PanelEffect::None);
    assert_eq!(panel.key(PressedKey::Char('2'), later), answer("reject_once"));
    assert_eq!(panel.report(TerminalReport::Closed(7), later), PanelEffect::Close);
}

#[test]
fn key_without_effect_shows_the_keys_that_count() {
    let (mut panel, start) = (panel(), Instant::now());
    panel.report(question(7), start);
    panel.open(true, start);
    let later = start + READING_TIME;
    for key in [PressedKey::Char('y'), PressedKey::Enter, PressedKey::Char('9')] {
        panel.hint = None;
        assert_eq!(panel.key(key, later), PanelEffect::None);
        assert_eq!(
            panel.hint.as_deref(),
            Some("This key is no answer: press a number from 1 to 2."),
            "{key:?}"
        );
    }
    // The controls: keys that scroll, and the keys of another view.
    panel.hint = None;
    panel.key(PressedKey::Down, later);
    panel.key(PressedKey::Char(' '), later);
    assert_eq!(panel.hint, None);
    panel.key(PressedKey::Char('m'), later);
    panel.key(PressedKey::Char('y'), later);
    assert!(panel.hint.as_deref().is_some_and(|hint| hint.contains("are below")), "{:?}", panel.hint);
}

#[test]
fn answer_closes_the_panel_also_if_the_key_has_opened_it() {
    let (mut panel, start) = (panel(), Instant::now());
    let later = start + READING_TIME;
    for (is_answered, closes) in [(true, PanelEffect::Close), (false, PanelEffect::None)] {
        panel.report(question(7), start);
        panel.open(false, start);
        if is_answered {
            panel.key(PressedKey::Char('1'), later);
        }
        assert_eq!(panel.report(TerminalReport::Closed(7), later), closes, "{is_answered}");
        panel.answered = None;
    }
    // Another question is open.
    panel.report(question(8), start);
    panel.report(question(9), start);
    panel.open(false, start);
    panel.key(PressedKey::Char('1'), later);
    assert_eq!(panel.report(TerminalReport::Closed(8), later), PanelEffect::None);
}

#[test]
fn next_question_takes_no_key_of_the_one_before() {
    let (mut panel, start) = (panel(), Instant::now());
    panel.report(question(1), start);
    panel.report(question(2), start);
    panel.open(true, start);
    let later = start + READING_TIME;
    panel.key(PressedKey::Char('1'), later);
    assert_eq!(panel.report(TerminalReport::Closed(1), later), PanelEffect::None);
    assert_eq!(panel.key(PressedKey::Char('1'), later), PanelEffect::None);
    let answer = Order::Answer { number: 2, option: "allow_once".into() };
    assert_eq!(panel.key(PressedKey::Char('1'), later + READING_TIME), PanelEffect::Send(answer));
}

#[test]
fn mode_is_chosen_and_the_panel_closed() {
    let (mut panel, now) = (panel(), Instant::now());
    panel.open(false, now);
    assert_eq!(panel.key(PressedKey::Char('3'), now), PanelEffect::None);
    panel.key(PressedKey::Char('m'), now);
    assert_eq!(panel.key(PressedKey::Char('3'), now), PanelEffect::Send(Order::SetMode("code".into())));
    assert_eq!(panel.key(PressedKey::Escape, now), PanelEffect::Close);
    assert_eq!(panel.key(PressedKey::Control(b']'), now), PanelEffect::CloseAndPass);
}

#[test]
fn frames_fit_every_size_and_have_the_options() {
    let (mut panel, now) = (panel(), Instant::now());
    panel.report(question(1), now);
    panel.report(TerminalReport::Notice("refused \x1b[31m example.com".into()), now);
    panel.report(changes(&[("\x1b[31mexample", "+\u{1b}")]), now);
    panel.report(TerminalReport::Refusal(refused("\x1b[31m example", None)), now);
    for (columns, rows) in [(80, 24), (40, 12), (200, 60), (1, 1), (3, 2)] {
        for view in VIEWS {
            panel.change_view(view, now);
            let text = String::from_utf8(panel.frame(columns, rows)).unwrap();
            assert!(!text.contains("\x1b[31m example"), "text of others is no sequence");
            if columns >= 40 && view == PanelView::Overview {
                for part in
                    ["ask mode", "amber fox", "Create file1 (sh)", " 1 ", "Name of allow_once", "Name of rej"]
                {
                    assert!(text.contains(part), "{columns}x{rows} {part}: {text:?}");
                }
            }
        }
    }
}

const VIEWS: [PanelView; 7] = [
    PanelView::Overview,
    PanelView::Questions,
    PanelView::Modes,
    PanelView::Messages,
    PanelView::Changes,
    PanelView::Diff,
    PanelView::Refusals,
];

fn changes(paths: &[(&str, &str)]) -> TerminalReport {
    let changes = paths.iter().map(|(name, diff)| ChangedPath {
        path: format!("/work/{name}").into(),
        kind: DiffKind::Changed,
        diff: (*diff).to_owned(),
    });
    TerminalReport::Changes(changes.collect())
}

fn refused(act: &str, host: Option<&str>) -> RefusedAct {
    RefusedAct { act: act.into(), reason: "Plan mode allows no changes.".into(), host: host.map(Into::into) }
}

fn shown(panel: &mut Panel) -> String {
    String::from_utf8(panel.frame(80, 24)).unwrap()
}

/// Presses keys, of which the last has the returned effect.
fn press(panel: &mut Panel, keys: &[PressedKey]) -> PanelEffect {
    let effects = keys.iter().map(|key| panel.key(*key, Instant::now() + READING_TIME));
    effects.last().unwrap()
}

#[test]
fn changes_are_undone_after_a_second_key() {
    use PressedKey::{Char, Down, Enter};
    let (mut panel, now) = (panel(), Instant::now());
    assert_eq!(panel.open(false, now), PanelEffect::Send(Order::ListChanges));
    panel.report(changes(&[("a", "@@ -1 +1 @@\n-old\n+new\n"), ("b", "+b\n")]), now);
    assert_eq!(press(&mut panel, &[Char('c')]), PanelEffect::Send(Order::ListChanges));
    assert!(shown(&mut panel).contains("2 changed paths") && shown(&mut panel).contains("+1 -1"));
    assert_eq!(press(&mut panel, &[Down, Enter, Char('u')]), PanelEffect::None);
    assert!(shown(&mut panel).contains("Undo the changes of b?"));
    assert_eq!(press(&mut panel, &[Char('x')]), PanelEffect::None, "another key keeps them");
    assert_eq!(press(&mut panel, &[Char('y')]), PanelEffect::None);
    let undo = |path: Option<&str>| PanelEffect::Send(Order::Undo { path: path.map(Into::into) });
    assert_eq!(press(&mut panel, &[Char('u'), Char('y')]), undo(Some("/work/b")));
    assert_eq!(press(&mut panel, &[Char('U'), Char('y')]), undo(None));
    let undone = TerminalReport::Undone { count: 2, remaining_folders: Vec::new() };
    assert_eq!(panel.report(undone, now), PanelEffect::Send(Order::ListChanges));
    panel.report(changes(&[]), now);
    assert!(shown(&mut panel).contains("2 paths were restored.") && shown(&mut panel).contains("nothing"));
    assert_eq!(press(&mut panel, &[Char('u'), Char('y')]), PanelEffect::None, "there is nothing to undo");
}

#[test]
fn diff_is_searched_and_scrolled() {
    use PressedKey::{Backspace, Char, Enter, Escape, Right};
    let (mut panel, now) = (panel(), Instant::now());
    let lines: Vec<String> =
        (0..100).map(|number| format!("+line {number} of many, all of them long\n")).collect();
    panel.report(changes(&[("a", &lines.concat())]), now);
    press(&mut panel, &[Char('c'), Enter]);
    assert!(shown(&mut panel).contains("line 0 of") && !shown(&mut panel).contains("line 90 of"));
    press(&mut panel, &[Char('/'), Char('E'), Char(' '), Char('9'), Char('q'), Backspace]);
    assert!(shown(&mut panel).contains("/E 9_") && panel.reads_text());
    press(&mut panel, &[Enter]);
    assert!(!panel.reads_text() && shown(&mut panel).contains("line 9 of"));
    press(&mut panel, &[Char('n')]);
    assert!(shown(&mut panel).contains("line 90 of"));
    press(&mut panel, &[Char('N')]);
    assert!(shown(&mut panel).contains("line 9 of"));
    press(&mut panel, &[Right]);
    assert!(!shown(&mut panel).contains("line 9 of") && shown(&mut panel).contains("many, all"));
    press(&mut panel, &[Char('/'), Char('!'), Enter]);
    assert!(shown(&mut panel).contains("There is no match."));
    press(&mut panel, &[Escape]);
    assert!(shown(&mut panel).contains("1 changed path"));
}

#[test]
fn refused_temporary_files_are_one_line() {
    let (mut panel, now) = (panel(), Instant::now());
    for name in ["a.json.tmp.25843.4b83506e", "a.json.tmp.25843.6c4106fc", "a.json", "b.json"] {
        panel.report(TerminalReport::Refusal(refused(&format!("Change {name} (node)"), None)), now);
    }
    press(&mut panel, &[PressedKey::Char('d')]);
    let list = shown(&mut panel);
    assert!(list.contains("6c4106fc") && !list.contains("4b83506e") && list.contains("2 times"), "{list}");
    assert!(list.contains("Change a.json (node)") && list.contains("Change b.json"), "{list}");
}

#[test]
fn refused_host_is_allowed_on_request() {
    use PressedKey::{Char, Down};
    let (mut panel, now) = (panel(), Instant::now());
    for act in [refused("Connect to example.com", Some("example.com:443")), refused("Change a (sh)", None)] {
        panel.report(TerminalReport::Refusal(act.clone()), now);
        panel.report(TerminalReport::Refusal(act), now);
    }
    assert_eq!(press(&mut panel, &[Char('d'), Char('a')]), PanelEffect::None, "that is no host");
    assert!(shown(&mut panel).contains("4 refused acts") && shown(&mut panel).contains("2 times"));
    let allowed = PanelEffect::Send(Order::AllowHost("example.com:443".into()));
    assert_eq!(press(&mut panel, &[Down, Char('a')]), allowed);
    panel.report(TerminalReport::HostAllowed("example.com:443".into()), now);
    assert!(shown(&mut panel).contains("You have allowed this host since"));
    assert_eq!(press(&mut panel, &[Char('a')]), PanelEffect::None, "once");
}

/// The program decides when it makes another attempt.
#[test]
fn later_acts_and_changes_move_no_selection() {
    use PressedKey::{Char, Down};
    let (mut panel, now) = (panel(), Instant::now());
    let connect = |host: &str| refused(&format!("Connect to {host}"), Some(&format!("{host}:443")));
    let allow = |host: &str| PanelEffect::Send(Order::AllowHost(format!("{host}:443")));
    for host in ["one", "two"] {
        panel.report(TerminalReport::Refusal(connect(host)), now);
    }
    press(&mut panel, &[Char('d')]);
    panel.report(TerminalReport::Refusal(connect("three")), now);
    assert_eq!(press(&mut panel, &[Char('a')]), allow("two"));
    press(&mut panel, &[Down]);
    // The selected act, an older one and a newer one are repeated.
    for host in ["one", "two", "three", "one"] {
        panel.report(TerminalReport::Refusal(connect(host)), now);
        assert_eq!(press(&mut panel, &[Char('a')]), allow("one"), "{host}");
    }
    press(&mut panel, &[Char('q')]);
    panel.report(changes(&[("a", "+a\n"), ("b", "+b\n")]), now);
    press(&mut panel, &[Char('c'), Char('u')]);
    panel.report(changes(&[("b", "+b\n")]), now);
    assert!(shown(&mut panel).contains("Undo the changes of a?"));
    let undo = PanelEffect::Send(Order::Undo { path: Some("/work/a".into()) });
    assert_eq!(press(&mut panel, &[Char('y')]), undo);
}

#[test]
fn question_of_the_list_is_answered_after_it_was_shown() {
    use PressedKey::{Char, Tab};
    let (mut panel, now) = (panel(), Instant::now());
    for number in 1..=3 {
        panel.report(question(number), now);
    }
    panel.open(true, now);
    let later = now + READING_TIME;
    panel.key(Tab, later);
    let list = shown(&mut panel);
    assert!(["1 Create file1", "2 Create file2", "3 Create file3"].iter().all(|line| list.contains(line)));
    assert_eq!(panel.key(Char('2'), later), PanelEffect::None);
    assert!(shown(&mut panel).contains("Question 2 of 3"));
    assert_eq!(panel.key(Char('1'), later), PanelEffect::None, "it has just appeared");
    let answer = Order::Answer { number: 2, option: "allow_once".into() };
    assert_eq!(panel.key(Char('1'), later + READING_TIME), PanelEffect::Send(answer));
    assert_eq!(panel.report(TerminalReport::Closed(2), later), PanelEffect::None);
    assert!(shown(&mut panel).contains("Create file3"));
    assert_eq!(panel.report(TerminalReport::Closed(1), later), PanelEffect::None);
    assert_eq!(panel.report(TerminalReport::Closed(3), later), PanelEffect::Close);
}

/// A question that came while another view was open appears only when that view is left.
#[test]
fn question_behind_another_view_takes_no_early_key() {
    use PressedKey::Char;
    let (mut panel, now) = (panel(), Instant::now());
    panel.open(false, now);
    panel.key(Char('l'), now);
    panel.report(question(1), now);
    let later = now + READING_TIME;
    panel.key(Char('q'), later);
    assert_eq!(panel.key(Char('1'), later), PanelEffect::None);
    let answer = Order::Answer { number: 1, option: "allow_once".into() };
    assert_eq!(panel.key(Char('1'), later + READING_TIME), PanelEffect::Send(answer));
}
