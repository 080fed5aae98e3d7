//! Encodes text chunks, the most frequent messages: a sixth of the work for a chunk was the general encoder.
//! Pure.

use crate::acp::{ContentBlock, ContentChunk, SessionNotification, SessionUpdate, TextContent, Update};

/// Returns the line of a text chunk without metadata, as the general encoder writes it. `None` for other updates.
pub(super) fn chunk_line(SessionNotification { session_id, update }: &SessionNotification) -> Option<String> {
    let Update::Schema(update) = update else { return None };
    let (kind, chunk) = match &**update {
        SessionUpdate::AgentMessageChunk(chunk) => ("agent_message_chunk", chunk),
        SessionUpdate::AgentThoughtChunk(chunk) => ("agent_thought_chunk", chunk),
        _ => return None,
    };
    let ContentChunk { content: ContentBlock::Text(content), message_id: Some(id), meta: None, .. } = chunk
    else {
        return None;
    };
    let TextContent { text, annotations: None, meta: None, .. } = content else { return None };
    let mut line = Vec::with_capacity(text.len() + 256);
    line.extend_from_slice(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#);
    put_string(&mut line, &session_id.0);
    line.extend_from_slice(br#","update":{"sessionUpdate":""#);
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(br#"","content":{"type":"text","text":"#);
    put_string(&mut line, text);
    line.extend_from_slice(br#"},"messageId":"#);
    put_string(&mut line, &id.0);
    line.extend_from_slice(b"}}}\n");
    Some(String::from_utf8(line).expect("JSON of strings is UTF-8"))
}

fn put_string(line: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(line, text).expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::{ImageContent, MessageId, Meta, SessionId};
    use crate::json_rpc::call_line;

    fn notification(update: SessionUpdate) -> SessionNotification {
        SessionNotification { session_id: SessionId::new("sess_1"), update: update.into() }
    }

    fn chunk(text: &str) -> ContentChunk {
        ContentChunk::new(text.into()).message_id(MessageId::new("msg_1_\"2\""))
    }

    #[test]
    fn text_chunks_are_encoded_as_by_the_general_encoder() {
        for text in ["", "plain", "\"quoted\" \\ \n\r\t\u{1}", "é \u{2028} 😀"] {
            for update in
                [SessionUpdate::AgentMessageChunk(chunk(text)), SessionUpdate::AgentThoughtChunk(chunk(text))]
            {
                let notification = notification(update);
                let expected = call_line(None, "session/update", &notification);
                assert_eq!(chunk_line(&notification), Some(expected));
            }
        }
    }

    #[test]
    fn other_updates_are_left_to_the_general_encoder() {
        let meta = Meta::from_iter([("a".to_owned(), true.into())]);
        let with_meta = ContentBlock::Text(TextContent::new("a").meta(meta.clone()));
        for update in [
            SessionUpdate::UserMessageChunk(chunk("a")),
            SessionUpdate::AgentMessageChunk(chunk("a").meta(meta)),
            SessionUpdate::AgentMessageChunk(ContentChunk::new("a".into())),
            SessionUpdate::AgentMessageChunk(ContentChunk::new(with_meta).message_id(MessageId::new("m"))),
            SessionUpdate::AgentMessageChunk(
                ContentChunk::new(ContentBlock::Image(ImageContent::new("", "image/png")))
                    .message_id(MessageId::new("m")),
            ),
        ] {
            assert_eq!(chunk_line(&notification(update)), None);
        }
    }
}
