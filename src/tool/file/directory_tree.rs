//! `directory_tree`: lists a directory tree, indented. Respects `.gitignore`. In a large tree, upper levels are
//! shown before lower ones, and the folders of a level that does not fit share the space.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::walk::{ToolWalk, globs, walk_options};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::{code_span, counted, grouped};
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{EntryKind, WalkOptions, Workspace, open_dir};

const MAX_ENTRIES: usize = 1000;

const DEPTH: usize = 3;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DirectoryTreeArguments {
    /// Default: the working directory.
    #[serde(default)]
    path: Option<String>,
    /// Levels to show. Default: 3.
    #[serde(default)]
    depth: Option<usize>,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Show a directory and what lies below it, as an indented list. Leaves out `.git` and files that git ignores.";
    ToolSpec::new("directory_tree", ToolKind::Read, Effect::Read, description).tool(prepare)
}

fn prepare(
    DirectoryTreeArguments { path, depth }: DirectoryTreeArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let title = format!("Tree of {}", code_span(&workspace.display(&target)));
    let depth = depth.unwrap_or(DEPTH).max(1);
    let (top, workspace) = (target.clone(), workspace.clone());
    Ok(PreparedCall::reading(title, target, move |permit| tree(&top, depth, &workspace, permit)))
}

fn tree(top: &Target, depth: usize, workspace: &Workspace, permit: &Permit) -> Result<String, ToolError> {
    // Gives a clear error if the target is not a directory.
    open_dir(top)?;
    let globs = globs(&top.path, None).map_err(ToolError::Failed)?;
    // One level more, for the numbers of entries in the folders that are not opened.
    let options = WalkOptions { depth: Some(depth.saturating_add(1)), ..walk_options(globs, false) };
    let mut walk = ToolWalk::new(top, options, workspace, permit)?;
    let mut nodes = Vec::new();
    while let Some(entry) = walk.next("the tree was complete")? {
        let mark = if entry.kind == EntryKind::Folder { "/" } else { "" };
        nodes.push(Node { depth: entry.depth, name: format!("{}{mark}", entry.name().to_string_lossy()) });
    }
    Ok(walk.report(outline(&nodes, depth, MAX_ENTRIES), "[The directory is empty.]"))
}

struct Node {
    /// Levels below the top, from 1.
    depth: usize,
    name: String,
}

/// Indents at most `most` nodes down to a level, given in depth-first order. A folder counts the nodes left out
/// below it.
fn outline(nodes: &[Node], deepest: usize, most: usize) -> Vec<String> {
    let parents = parents(nodes);
    let is_shown = choose(nodes, &parents, deepest, most);
    let mut left_out = vec![0; nodes.len()];
    for at in 0..nodes.len() {
        let visible = std::iter::successors(Some(at), |at| parents[*at]).find(|at| is_shown[*at]);
        if let Some(folder) = visible.filter(|folder| *folder != at) {
            left_out[folder] += 1;
        }
    }
    let mut lines = Vec::new();
    for at in (0..nodes.len()).filter(|at| is_shown[*at]) {
        let Node { depth, name } = &nodes[at];
        let more =
            if left_out[at] > 0 { format!(" [{} more]", grouped(left_out[at])) } else { String::new() };
        lines.push(format!("{}{name}{more}", "  ".repeat(depth - 1)));
    }
    let total = nodes.iter().filter(|node| node.depth <= deepest).count();
    if lines.len() < total {
        lines.push(format!("[{} of {} entries are shown.]", grouped(lines.len()), grouped(total)));
    } else if total < nodes.len() {
        let closed = (0..nodes.len()).filter(|at| nodes[*at].depth == deepest && left_out[*at] > 0).count();
        let folders = counted(closed, "folder is", "folders are");
        lines.push(format!("[{folders} not opened; depth {} shows what is in them.]", deepest + 1));
    }
    lines
}

/// Index of the folder around each node; `None` at the top level.
fn parents(nodes: &[Node]) -> Vec<Option<usize>> {
    let mut open: Vec<usize> = Vec::new();
    let parents = nodes.iter().enumerate().map(|(at, node)| {
        open.truncate(node.depth - 1);
        let parent = open.last().copied();
        open.push(at);
        parent
    });
    parents.collect()
}

/// Chooses whole levels while they fit. The folders of the next level get equal shares.
fn choose(nodes: &[Node], parents: &[Option<usize>], deepest: usize, most: usize) -> Vec<bool> {
    let mut is_shown = vec![false; nodes.len()];
    let mut remaining = most;
    let depths = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    for depth in 1..=depths.min(deepest) {
        let mut siblings: Vec<Vec<usize>> = Vec::new();
        let level = (0..nodes.len()).filter(|at| nodes[*at].depth == depth);
        for at in level {
            match siblings.last_mut() {
                Some(same) if parents[same[0]] == parents[at] => same.push(at),
                _ => siblings.push(vec![at]),
            }
        }
        let largest = siblings.iter().map(Vec::len).max().unwrap_or(0);
        for rank in 0..largest {
            for at in siblings.iter().filter_map(|same| same.get(rank)) {
                if remaining == 0 {
                    return is_shown;
                }
                is_shown[*at] = true;
                remaining -= 1;
            }
        }
    }
    is_shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes from an indented list.
    fn check(tree: &str, deepest: usize, most: usize, expected: &str) {
        let node = |line: &str| Node {
            depth: (line.len() - line.trim_start().len()) / 2 + 1,
            name: line.trim_start().into(),
        };
        let nodes: Vec<_> = tree.lines().map(node).collect();
        assert_eq!(outline(&nodes, deepest, most).join("\n"), expected, "{deepest} {most}");
    }

    #[test]
    fn upper_levels_are_shown_first_and_folders_share_the_rest() {
        let tree = "a/\n  a1/\n    deep\n  a2\n  a3\nb/\n  b1\nc/\n  c1\n  c2\nd";
        check(tree, 3, 11, tree);
        check(
            tree,
            3,
            8,
            "a/ [1 more]\n  a1/ [1 more]\n  a2\nb/\n  b1\nc/ [1 more]\n  c1\nd\n[8 of 11 entries are shown.]",
        );
        check(tree, 3, 4, "a/ [4 more]\nb/ [1 more]\nc/ [2 more]\nd\n[4 of 11 entries are shown.]");
        check(tree, 3, 2, "a/ [4 more]\nb/ [1 more]\n[2 of 11 entries are shown.]");
    }

    #[test]
    fn folders_that_are_not_opened_count_their_entries() {
        let tree = "a/\n  a1/\n    deep\n  a2\nb/\nc";
        let opened =
            "a/\n  a1/ [1 more]\n  a2\nb/\nc\n[1 folder is not opened; depth 3 shows what is in them.]";
        check(tree, 2, 9, opened);
        check(tree, 2, 3, "a/ [3 more]\nb/\nc\n[3 of 5 entries are shown.]");
        let flat = "a/\n  a1/\n  a2\nb/\nc";
        check(flat, 1, 9, "a/ [2 more]\nb/\nc\n[1 folder is not opened; depth 2 shows what is in them.]");
        check(flat, 2, 9, flat);
    }
}
