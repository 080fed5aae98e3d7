//! A question of an external agent, or about its change: first shows the parts that the client would not show.

use std::path::Path;

use crate::acp::RequestPermissionRequest;
use crate::client::{ClientRequest, ReplySender};
use crate::conversation::question_text::CallPreview;
use crate::session::mode::decider::Decider;

impl Decider {
    pub(crate) fn forward(&mut self, cwd: &Path, id: u64, mut request: ClientRequest, reply: ReplySender) {
        if let ClientRequest::RequestPermission(request) = &mut request {
            self.show_unseen(cwd, request);
        }
        self.log.client().send_request(id, request, reply);
    }

    fn show_unseen(&mut self, cwd: &Path, request: &mut RequestPermissionRequest) {
        let display = self.policy.context.updates.display;
        let call = &mut request.tool_call;
        let preview = CallPreview::of_update(&call.fields, cwd);
        let title = call.fields.title.as_deref().unwrap_or_default();
        let message = preview.unseen(title, display, None);
        if let Some(width) = display.question_width {
            call.fields.title = Some(preview.title_away_from_chat(title, width, message.is_some()));
        }
        if let Some(text) = message {
            self.log.show_question(&call.tool_call_id, &text);
        }
    }
}
