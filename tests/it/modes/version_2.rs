//! The tests of modes, run over version 2 of the protocol.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::over_version_2::over_version_2;

/// Runs tests of sibling modules with clients of version 2.
macro_rules! run_over_version_2 {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        $(
            mod $module {
                $(
                    #[test]
                    fn $test() {
                        super::over_version_2(crate::modes::$module::$test);
                    }
                )*
            }
        )*

        const LISTED: &[(&str, &[&str])] = &[$((stringify!($module), &[$(stringify!($test)),*])),*];
    };
}

run_over_version_2! {
    changes {
        exit_tool_names_the_modes_that_may_change_something,
        switch_restoring_an_always_grant_asks_the_user,
        three_rejected_in_band_switches_end_the_turn,
        switch_to_fewer_write_paths_applies_immediately,
        max_mode_limits_the_session_mode,
    }
    checks {
        check_runs_once_after_the_calls_of_a_reply,
        model_reads_only_new_findings,
        check_is_due_only_after_changes_of_its_files,
        deny_rule_also_refuses_a_check,
        refused_check_is_tried_once_in_a_turn,
        check_needs_permission_where_commands_do,
        read_only_check_asks_nothing_and_changes_nothing,
        mode_without_commands_runs_no_check,
        plan_ends_a_check_that_runs,
        cancelled_turn_ends_its_check,
        check_ends_at_its_timeout,
        sub_agent_and_the_session_above_it_run_checks,
        check_at_the_end_brings_the_model_back,
    }
    contract {
        each_mode_offers_exactly_these_tools_to_every_agent,
        tools_of_the_first_request_are_few_and_lean,
        reminder_names_only_offered_tools,
        every_request_in_ask_names_asked_and_free_calls,
        load_resume_and_list_return_the_current_mode,
        mode_of_unknown_sessions_cannot_be_changed,
        mode_prompt_is_trimmed_inside_the_reminder,
        failed_reply_switches_no_mode,
        unknown_switch_target_is_reported_to_the_model,
        mode_changes_table_has_the_documented_columns,
        default_mode_is_configurable,
    }
    effects {
        denied_running_effect_ends_before_set_mode_answers,
        running_effects_continue_when_the_new_mode_asks,
        unconfirmed_effect_is_named_to_client_and_model,
        reads_run_in_parallel_and_changes_sequentially,
    }
    foreign_names {
        other_names_are_refused_in_plan_as_the_tool_itself,
        rules_by_name_hold_for_other_names,
        questions_and_records_show_the_own_tool,
        unknown_names_have_no_effect,
    }
    forced_writes {
        forced_writes_change_nothing_in_plan_mode,
    }
    injection {
        only_the_models_own_answer_can_switch_modes,
        switch_block_in_the_models_answer_asks_the_user,
    }
    loosening {
        loosening_does_not_widen_work_started_by_a_reply,
        loosening_does_not_widen_the_rest_of_a_reply,
        external_agent_keeps_the_mode_of_the_prompt,
        refusal_names_the_mode_in_which_its_reply_began,
    }
    matrix {
        offered_tools_run_and_other_tools_have_no_effect,
    }
    no_user {
        missing_files_outside_are_no_question,
        model_learns_which_command_is_always_allowed,
        reminder_stays_in_its_place_after_an_answer_that_always_allows,
    }
    plan_exit {
        form_answer_decides_the_plan_exit,
        plan_is_shown_before_the_exit_question,
        without_forms_plan_exit_is_a_permission_request,
        plan_exit_result_respects_max_mode,
        in_band_switch_without_an_effect_is_not_asked,
        exit_to_an_unknown_mode_is_answered_with_the_modes,
        mode_and_permissions_commands_show_max_mode,
        acceptance_faster_than_reading_does_not_count,
        form_accepted_faster_than_reading_does_not_count,
        no_exit_removes_the_tool_and_in_band_exits,
    }
    rejections {
        rejection_reason_from_a_form_reaches_the_model,
        cancel_during_the_reason_form_ends_the_turn,
    }
    stored {
        stored_session_opens_in_the_listed_mode,
        newest_mode_change_row_decides_the_mode,
        unknown_modes_are_logged_by_name,
        reminders_and_switches_are_logged_at_debug,
    }
    untrusted_project {
        hostile_project_runs_sends_and_widens_nothing,
        narrowing_project_file_applies_without_trust,
        trust_is_listed_and_ends_when_it_is_revoked,
        widening_project_file_applies_only_while_it_is_trusted,
        broken_user_file_restricts_to_plan,
        broken_project_file_keeps_max_mode,
    }
}

/// Tests without a client, and why.
const WITHOUT_CLIENT: &[(&str, &str)] = &[
    ("in_band_switch_reports_mode_id_and_reason", "the output of a headless run"),
    ("headless_plan_is_printed_and_keeps_the_mode", "the output of a headless run"),
    ("checks_of_a_project_run_only_while_its_file_is_trusted", "the output of a headless run"),
    ("trust_names_what_begins_to_count", "the output of a command"),
    ("trust_asks_in_a_terminal", "a terminal"),
    ("examples_of_the_page_are_valid", "a page of the documentation"),
];

#[test]
fn every_test_of_modes_runs_over_version_2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/modes");
    let mut declared = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if module == "version_2" {
            continue;
        }
        let source = std::fs::read_to_string(path).unwrap();
        for (attribute, function) in source.lines().zip(source.lines().skip(1)) {
            if matches!(attribute, "#[test]" | "#[tokio::test]") {
                let (_, rest) = function.split_once("fn ").unwrap();
                declared.insert((module.clone(), rest.split('(').next().unwrap().to_owned()));
            }
        }
    }
    let listed = LISTED
        .iter()
        .flat_map(|(module, tests)| tests.iter().map(move |test| ((*module).to_owned(), (*test).to_owned())));
    let mut expected: BTreeSet<(String, String)> = listed.collect();
    for (test, _) in WITHOUT_CLIENT {
        let of_test = declared.iter().find(|(_, declared)| declared == test);
        expected.insert(of_test.unwrap_or_else(|| panic!("there is no {test}")).clone());
    }
    assert_eq!(declared.symmetric_difference(&expected).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
}
