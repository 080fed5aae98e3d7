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
    }
    effects {
        denied_running_effect_ends_before_set_mode_answers,
        running_effects_continue_when_the_new_mode_asks,
        unconfirmed_effect_is_named_to_client_and_model,
        reads_run_in_parallel_and_changes_sequentially,
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
}

/// Tests that no client of version 2 could pass, and why.
const ONLY_VERSION_1: &[(&str, &str)] = &[];

#[test]
fn every_test_of_modes_runs_over_version_2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/modes");
    for (module, listed) in LISTED {
        let source = std::fs::read_to_string(folder.join(format!("{module}.rs"))).unwrap();
        let declared = source.lines().filter_map(|line| line.strip_prefix("pub(super) async fn "));
        let declared: BTreeSet<&str> = declared.map(|rest| rest.split('(').next().unwrap()).collect();
        let excluded = ONLY_VERSION_1.iter().map(|(test, _)| *test);
        let known: BTreeSet<&str> = listed.iter().copied().chain(excluded).collect();
        assert_eq!(declared.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "{module}");
    }
}
