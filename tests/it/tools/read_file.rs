//! `read_file`: large files, long lines, images, binary files.

use modegate::model::Block;
use serde_json::{Value, json};

use crate::support::Setup;
use crate::support::tool_calls::Turns;

async fn session() -> Turns {
    Turns::new(Setup { mode: "plan", ..Setup::default() }).await
}

async fn read(turns: &mut Turns, arguments: Value) -> String {
    turns.tool_result("read_file", arguments).await
}

#[tokio::test]
async fn slices_of_a_large_file_are_read() {
    let mut turns = session().await;
    let line = "x".repeat(119);
    let log: String = (1..=100_000).map(|number| format!("{number} {line}\n")).collect();
    assert!(log.len() > 12_000_000);
    std::fs::write(turns.client.cwd().join("a.log"), log).unwrap();
    let text = read(&mut turns, json!({ "path": "a.log", "line": 99_999, "limit": 1 })).await;
    let note = "[Lines 99999-99999 of 100000. Continue with line 100000.]";
    assert_eq!(text, format!("99999\t99999 {line}\n{note}"));
    let text = read(&mut turns, json!({ "path": "a.log", "line": 100_000 })).await;
    assert_eq!(text, format!("100000\t100000 {line}\n"));
    let text = read(&mut turns, json!({ "path": "a.log" })).await;
    assert!(text.len() < 51 * 1024 && text.contains(" of 100000. Continue with line "), "{text:.300}");
    turns.client.end().await;
}

#[tokio::test]
async fn minified_line_is_clipped() {
    let mut turns = session().await;
    std::fs::write(turns.client.cwd().join("a.js"), "a;".repeat(500_000)).unwrap();
    let text = read(&mut turns, json!({ "path": "a.js" })).await;
    assert_eq!(text, format!("1\t{}[… 998000 more characters]\n", "a;".repeat(1000)));
    turns.client.end().await;
}

/// The content decides the kind of a file, not its name.
#[tokio::test]
async fn images_reach_model_and_client() {
    let mut turns = session().await;
    let image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    std::fs::write(turns.client.cwd().join("image.txt"), image).unwrap();
    let (_, update) = turns.call("read_file", json!({ "path": "image.txt" }), 0).await;
    let shown = json!([{ "type": "content", "content":
        { "type": "image", "mimeType": "image/png", "data": "iVBORw0KGgoAAAANSUhEUg==" } }]);
    assert_eq!(update["content"], shown);
    assert_eq!(turns.result(), "[image, image/png, 16 bytes, attached if you accept images]");
    let last = turns.client.model.requests(&turns.session).pop().unwrap().messages.pop().unwrap();
    let images: Vec<_> = last.blocks.iter().filter(|block| matches!(block, Block::Image(_))).collect();
    assert!(matches!(images[..], [Block::Image(image)] if &*image.data == "iVBORw0KGgoAAAANSUhEUg=="));
    turns.client.end().await;
}

#[tokio::test]
async fn large_images_and_binary_files_are_refused() {
    let mut turns = session().await;
    let padded = |start: &[u8], length: usize| [start, &vec![0; length]].concat();
    for (content, expected) in [
        (
            padded(b"GIF89a", 3840 * 1024),
            "This is an image, image/gif, 3932166 bytes; at most 3932160 are shown.",
        ),
        (
            padded(b"\x89PNG\r\n\x1a\n", 15 * 1024 * 1024),
            "This is an image, image/png, 15728648 bytes; at most 15728640 are shown.",
        ),
        (
            padded(b"\xff\xd8\xff", 3840 * 1024),
            "[An image is left out: it is too large, and it cannot be read: failed to fill whole buffer.]",
        ),
        (padded(b"GIF", 0), "1\tGIF\n"),
        (padded(b"GIF", 9), "is a binary file (12 bytes)."),
        (padded(b"\n", 12_000_000), "is a binary file (12000001 bytes)."),
    ] {
        std::fs::write(turns.client.cwd().join("a"), content).unwrap();
        let text = read(&mut turns, json!({ "path": "a" })).await;
        assert!(text.ends_with(expected), "{text:.200}");
    }
    turns.client.end().await;
}
