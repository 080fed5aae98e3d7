//! Encodes the message of a user. Pure.

use super::updates;
use crate::acp::{ContentBlock, v2};

/// Bytes of the text in one chunk of a user's message: six times as many as JSON, in the worst case.
const CHUNK: usize = 8 * 1024;

/// Bytes of JSON up to which a message is sent whole.
const WHOLE_MESSAGE: usize = 32 * 1024;

/// A message that is too long for one line begins empty, and its content follows in chunks.
pub(super) fn user_message(id: &str, content: &[ContentBlock]) -> Vec<v2::SessionUpdate> {
    let blocks: Vec<v2::ContentBlock> = content.iter().filter_map(updates::block).collect();
    let len = serde_json::to_vec(&blocks).map_or(usize::MAX, |json| json.len());
    let message = |content| v2::SessionUpdate::UserMessage(v2::UserMessage::new(id).content(content));
    if len <= WHOLE_MESSAGE {
        return vec![message(blocks)];
    }
    let pieces = blocks.into_iter().flat_map(pieces);
    let chunks = pieces.map(|block| {
        v2::SessionUpdate::UserMessageChunk(v2::ContentChunk::new(block, v2::MessageId::new(id)))
    });
    [message(Vec::new())].into_iter().chain(chunks).collect()
}

fn pieces(block: v2::ContentBlock) -> Vec<v2::ContentBlock> {
    let v2::ContentBlock::Text(text) = block else { return vec![block] };
    let mut pieces = Vec::new();
    let mut rest = text.text.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(CHUNK));
        pieces.push(v2::ContentBlock::Text(v2::TextContent::new(piece)));
        rest = after;
    }
    pieces
}
