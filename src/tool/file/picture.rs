//! Images for the model and the client, recognised by their content. Never decodes them.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::acp::{ContentBlock, ImageContent};
use crate::conversation::content::ToolContent;
use crate::tool::{ToolError, ToolOutput};
use crate::workspace::OpenFile;

/// Maximum bytes of an image: 5 MiB in Base64, which every provider accepts.
const MAX_IMAGE: u64 = 3840 * 1024;

/// Maximum bytes of a PNG or JPEG image, which is scaled down with the result.
const MAX_SCALED_IMAGE: u64 = 15 * 1024 * 1024;

/// The type of an image that every provider with image support accepts; `None` for anything else.
pub(super) fn mime_type(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// `start` has been read from the file.
pub(super) fn read(start: &[u8], open: OpenFile, mime_type: &str) -> Result<ToolOutput, ToolError> {
    let length = open.metadata.len();
    let about = format!("image, {mime_type}, {length} bytes");
    let most = if matches!(mime_type, "image/png" | "image/jpeg") { MAX_SCALED_IMAGE } else { MAX_IMAGE };
    if length > most {
        return Err(ToolError::Failed(format!("This is an {about}; at most {most} are shown.")));
    }
    let mut bytes = Vec::new();
    // The file may grow, so the read is limited, too.
    let read = start.chain(open.file).take(most).read_to_end(&mut bytes);
    read.map_err(|error| ToolError::Failed(format!("The file cannot be read: {error}")))?;
    let image = ContentBlock::Image(ImageContent::new(STANDARD.encode(bytes), mime_type));
    let content = vec![ToolContent::Block(Box::new(image))];
    Ok(ToolOutput { content, ..ToolOutput::text(format!("[{about}, attached if you accept images]")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_recognised_by_their_content() {
        let cases: [(&[u8], Option<&str>); 7] = [
            (b"\x89PNG\r\n\x1a\n\0", Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a\x01", Some("image/gif")),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"RIFF\x10\0\0\0WAVEfmt ", None),
            (b"\x89PNG", None),
            (b"GIF", None),
        ];
        for (start, expected) in cases {
            assert_eq!(mime_type(start), expected, "{start:?}");
        }
    }
}
