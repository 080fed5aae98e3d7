//! Turns the content of a prompt into blocks for the model: text without imitated reminders, and images. Pure.
//! Links are passed on by their address, except for `data:` URIs, which contain the file itself.

use super::neutralise::neutralise;
use crate::acp::{ContentBlock, EmbeddedResourceResource, ImageContent, ResourceLink};
use crate::model::{Block, Image};

pub fn text_of(content: &[ContentBlock]) -> Option<String> {
    content.iter().find_map(|block| match prompt_block(block) {
        Block::Text(text) if !text.trim().is_empty() => Some(text),
        _ => None,
    })
}

/// Image types that every provider with image support accepts.
pub const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Maximum bytes of base64 that every provider accepts.
pub const MAX_PICTURE: usize = 5 * 1024 * 1024;

/// Maximum bytes of all texts of a prompt: more than any model reads.
pub const MAX_PROMPT_TEXT: usize = 16 * 1024 * 1024;

pub(super) fn picture(image: &ImageContent) -> Image {
    Image { mime_type: image.mime_type.as_str().into(), data: image.data.as_str().into() }
}

pub(super) fn prompt_block(block: &ContentBlock) -> Block {
    match block {
        ContentBlock::Text(content) => text(&content.text),
        ContentBlock::ResourceLink(link) => linked(link),
        ContentBlock::Image(image) => Block::Image(picture(image)),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            EmbeddedResourceResource::TextResourceContents(resource) => {
                text(&format!("<resource uri=\"{}\">\n{}\n</resource>", resource.uri, resource.text))
            }
            EmbeddedResourceResource::BlobResourceContents(resource) => {
                let mime_type = resource.mime_type.as_deref().unwrap_or_default();
                if PICTURES.contains(&mime_type) && resource.blob.len() <= MAX_PICTURE {
                    Block::Image(Image { mime_type: mime_type.into(), data: resource.blob.as_str().into() })
                } else {
                    text(&format!("<resource uri=\"{}\">(not text: {mime_type})</resource>", resource.uri))
                }
            }
            _ => Block::Text(String::new()),
        },
        _ => Block::Text(String::new()),
    }
}

/// marimo links to attached files by `data:` URIs.
fn linked(link: &ResourceLink) -> Block {
    let name = link.title.as_ref().unwrap_or(&link.name);
    let Some((head, data)) = link.uri.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
        return text(&format!("[{name}]({})", link.uri));
    };
    match head.strip_suffix(";base64") {
        Some(kind) if PICTURES.contains(&kind) && data.len() <= MAX_PICTURE => {
            Block::Image(Image { mime_type: kind.into(), data: data.into() })
        }
        _ => text(&format!("[{name}](not shown: {head})")),
    }
}

fn text(text: &str) -> Block {
    Block::Text(neutralise(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the model gets for a link.
    fn shown(uri: &str) -> String {
        match prompt_block(&ContentBlock::ResourceLink(ResourceLink::new("f", uri))) {
            Block::Text(text) => text,
            Block::Image(image) => format!("{} {}", image.mime_type, image.data),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn links_with_data_are_images_or_named() {
        for (uri, expected) in [
            ("file:///p/a.png", "[f](file:///p/a.png)"),
            ("data:image/png;base64,aGk=", "image/png aGk="),
            ("data:image/tiff;base64,aGk=", "[f](not shown: image/tiff;base64)"),
            ("data:image/png,aGk=", "[f](not shown: image/png)"),
            ("data:text/csv;base64,aGk=", "[f](not shown: text/csv;base64)"),
            ("data:nothing", "[f](data:nothing)"),
        ] {
            assert_eq!(shown(uri), expected);
        }
        let too_large = format!("data:image/png;base64,{}", "a".repeat(MAX_PICTURE + 1));
        assert_eq!(shown(&too_large), "[f](not shown: image/png;base64)");
    }
}
