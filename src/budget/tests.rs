use super::*;

fn limits(yaml: &str) -> BudgetLimits {
    serde_saphyr::from_str::<BudgetSettings>(yaml).unwrap().limits().unwrap()
}

fn spent(tokens: u64, micro_dollars: u64, ms: u64) -> Spent {
    Spent { tokens, micro_dollars, ms }
}

/// The state for what was spent in a turn, a session and a day, in short form.
fn check(limits: &BudgetLimits, spent: [Spent; 3], expected: &str) {
    let short = |used: &BudgetUse| format!("{} {:?}", used.period.as_str(), used.figure);
    let state = match limits.state(|period| spent[period as usize]) {
        BudgetState::Exceeded(used) => format!("ended: {}", short(&used)),
        BudgetState::Within(due) => due.iter().map(short).collect::<Vec<_>>().join(", "),
    };
    assert_eq!(state, expected, "{spent:?}");
}

#[test]
fn each_budget_warns_at_80_percent_and_ends_beyond_its_limit() {
    let none = Spent::default();
    for (figure, name, at) in [
        ("tokens: 100", "Tokens", [(79, ""), (80, "warn"), (100, "warn"), (101, "end")]),
        ("cost_usd: 0.0001", "Cost", [(79, ""), (80, "warn"), (100, "warn"), (101, "end")]),
        ("minutes: 1", "Time", [(47_999, ""), (48_000, "warn"), (60_000, "warn"), (60_001, "end")]),
    ] {
        for (number, period) in ["turn", "session", "day"].into_iter().enumerate() {
            let limits = limits(&format!("{period}: {{{figure}}}"));
            for (amount, expected) in at {
                let used = match name {
                    "Tokens" => spent(amount, 0, 0),
                    "Cost" => spent(0, amount, 0),
                    _ => spent(0, 0, amount),
                };
                let mut all = [none; 3];
                all[number] = used;
                let expected = match expected {
                    "warn" => format!("{period} {name}"),
                    "end" => format!("ended: {period} {name}"),
                    _ => String::new(),
                };
                check(&limits, all, &expected);
                // The same amount in another period is not compared.
                all.rotate_right(1);
                check(&limits, all, "");
            }
        }
    }
}

#[test]
fn first_exceeded_budget_is_named_and_all_warnings_are() {
    let limits = limits("turn: {tokens: 100}\nsession: {tokens: 200, minutes: 1}\nday: {cost_usd: 1}");
    let much = spent(500, 900_000, 59_000);
    check(
        &limits,
        [spent(90, 0, 0), spent(190, 0, 59_000), much],
        "turn Tokens, session Tokens, session Time, day Cost",
    );
    check(&limits, [spent(101, 0, 0), spent(500, 0, 0), much], "ended: turn Tokens");
    check(&limits, [spent(90, 0, 0), spent(500, 0, 0), much], "ended: session Tokens");
    check(&BudgetLimits::default(), [much; 3], "");
}

#[test]
fn stricter_of_two_limits_counts_for_each_figure() {
    let user = limits("session: {tokens: 100, minutes: 5}\nday: {cost_usd: 1}");
    let policy = limits("session: {tokens: 50, minutes: 9, cost_usd: 2}\nturn: {tokens: 7}");
    for both in [user.stricter(&policy), policy.stricter(&user)] {
        assert_eq!(both.get(Period::Session, Figure::Tokens), Some(50));
        assert_eq!(both.get(Period::Session, Figure::Time), Some(300_000));
        assert_eq!(both.get(Period::Session, Figure::Cost), Some(2_000_000));
        assert_eq!(both.get(Period::Day, Figure::Cost), Some(1_000_000));
        assert_eq!(both.get(Period::Turn, Figure::Tokens), Some(7));
        assert_eq!(both.get(Period::Turn, Figure::Time), None);
    }
}

#[test]
fn time_left_is_until_the_next_warning_or_end() {
    let limits = limits("turn: {minutes: 2}\nday: {minutes: 10}");
    let left = |turn, day, warned: &[Period]| {
        let spent = |period| match period {
            Period::Turn => spent(0, 0, turn),
            Period::Session => Spent::default(),
            Period::Day => spent(0, 0, day),
        };
        limits.time_left(spent, |period| warned.contains(&period))
    };
    assert_eq!(left(0, 0, &[]), Some(96_000));
    assert_eq!(left(0, 0, &[Period::Turn]), Some(120_001));
    assert_eq!(left(0, 479_000, &[Period::Turn]), Some(1000));
    assert_eq!(left(0, 599_000, &[Period::Turn, Period::Day]), Some(1001));
    assert_eq!(left(500_000, 0, &[]), Some(1));
    assert_eq!(BudgetLimits::default().time_left(|_| Spent::default(), |_| false), None);
}

#[test]
fn amount_that_is_none_is_an_error_with_its_key() {
    for (yaml, key) in [
        ("day: {cost_usd: -1}", "budgets: day: cost_usd"),
        ("turn: {minutes: .nan}", "budgets: turn: minutes"),
    ] {
        let error = serde_saphyr::from_str::<BudgetSettings>(yaml).unwrap().limits().unwrap_err();
        assert!(error.starts_with(key), "{error}");
    }
    assert!(serde_saphyr::from_str::<BudgetSettings>("week: {tokens: 1}").is_err());
    assert_eq!(limits("day: {tokens: 0}").get(Period::Day, Figure::Tokens), Some(0), "the control");
}

#[test]
fn texts_name_the_budget_the_amounts_and_the_renewal() {
    let used = |period, figure, limit, spent| BudgetUse { period, figure, limit, spent };
    let day = used(Period::Day, Figure::Cost, 2_000_000, 2_104_900);
    assert_eq!(
        day.end_notice("2026-11-28 00:00 +01:00"),
        "\nStopped: the budget of this day is used up ($2.10 of $2.00). It renews at midnight (2026-11-28 00:00 \
         +01:00). To continue now, raise `budgets` in config.yaml, unless a policy sets the limit. Slash commands \
         still work.\n"
    );
    let turn = used(Period::Turn, Figure::Time, 90_000, 90_300);
    assert_eq!(
        turn.end_notice(""),
        "\nStopped: the budget of this turn is used up (1 min 30 s of 1 min 30 s). Send another prompt to continue \
         with a new budget.\n"
    );
    let all = "session: {cost_usd: 5, minutes: 30}\nday: {tokens: 100}";
    assert_eq!(limits(all).to_string(), "session: $5.00, 30 min; day: 100 tokens");
    let session = used(Period::Session, Figure::Tokens, 100, 85);
    assert!(session.warning().starts_with("80 % of the budget of this session are used (85 of 100 tokens)."));
    assert!(session.note().starts_with("85 of 100 tokens of the budget of this session are used;"));
    assert_eq!(used(Period::Turn, Figure::Cost, 5000, 40).amounts(), "$0.000040 of $0.005000");
    assert_eq!(used(Period::Turn, Figure::Time, 200, 1000).amounts(), "1 second of 0.2 s");
}
