//! Scales the images of prompts and results down, off the main thread.

use serde_json::json;
use tokio::sync::Semaphore;

use crate::acp::{ContentBlock, ImageContent};
use crate::conversation::content::ToolContent;
use crate::conversation::prompt_block::MAX_PICTURE;
use crate::error::AgentError;
use crate::image_scaling::{self, SCALED_TYPE, Scaled};

/// Maximum bytes in Base64 of an image that is scaled down.
pub(crate) const MAX_TO_SCALE: usize = 20 * 1024 * 1024;

/// Several images at once could exhaust the memory.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// Returns what happened, as a note for the model. The error is a phrase; the image stays as it was.
async fn fit(image: &mut ImageContent) -> Result<Option<String>, String> {
    if image.data.len() > MAX_TO_SCALE {
        return Err(format!("it has more than {MAX_TO_SCALE} bytes in Base64"));
    }
    let _permit = ONE_AT_A_TIME.acquire().await.expect("the semaphore is never closed");
    let data = std::mem::take(&mut image.data);
    let task = tokio::task::spawn_blocking(move || (image_scaling::fit(&data), data));
    let (fitted, data) = task.await.map_err(|_| "it cannot be read".to_owned())?;
    image.data = data;
    let Some(Scaled { data, from, to }) = fitted? else { return Ok(None) };
    image.data = data;
    SCALED_TYPE.clone_into(&mut image.mime_type);
    Ok(Some(format!("[The image was scaled from {} x {} to {} x {} pixels.]", from.0, from.1, to.0, to.1)))
}

/// Scales the images of a prompt. The error names an image that is too large and cannot be scaled.
pub(crate) async fn fit_prompt(content: &mut [ContentBlock]) -> Result<(), AgentError> {
    for block in content {
        let ContentBlock::Image(image) = block else { continue };
        match fit(image).await {
            Ok(_) => {}
            // Only its provider can judge it.
            Err(_) if image.data.len() <= MAX_PICTURE => {}
            Err(reason) => {
                let message = format!("the image is too large, and {reason}");
                return Err(AgentError::invalid_params(message, json!({ "maxBytesInBase64": MAX_PICTURE })));
            }
        }
    }
    Ok(())
}

/// Scales the images of a result. Returns notes for the model: about scaled images, and about images that are left
/// out because they are too large.
pub(crate) async fn fit_result(content: &mut Vec<ToolContent>) -> String {
    let mut notes = String::new();
    let mut too_large = Vec::new();
    for (at, part) in content.iter_mut().enumerate() {
        let ToolContent::Block(block) = part else { continue };
        let ContentBlock::Image(image) = &mut **block else { continue };
        match fit(image).await {
            Ok(None) => {}
            Ok(Some(note)) => notes.push_str(&format!("\n{note}")),
            Err(_) if image.data.len() <= MAX_PICTURE => {}
            Err(reason) => {
                notes.push_str(&format!("\n[An image is left out: it is too large, and {reason}.]"));
                too_large.push(at);
            }
        }
    }
    for at in too_large.into_iter().rev() {
        content.remove(at);
    }
    notes
}
