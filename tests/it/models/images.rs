//! Images: a refused image is left out alone, and images that are too large are scaled down.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::models::http_server::{Reply, Server};
use crate::models::provider_streams;
use crate::models::remote::{asking, shown};
use crate::support::{Setup, TestClient};

const GOOD: &str = "R09PRA==";
const FINE: &str = "RklORQ==";
const BAD: &str = "QkFEIQ==";

const PROVIDERS: [&str; 4] = ["anthropic", "gemini", "openai", "openai-responses"];

async fn look(client: &mut TestClient, session: &str, images: &[&str]) -> Vec<Value> {
    let images = images.iter().map(|data| json!({ "type": "image", "mimeType": "image/png", "data": data }));
    let prompt: Vec<Value> =
        std::iter::once(json!({ "type": "text", "text": "look" })).chain(images).collect();
    let id = client.request("session/prompt", json!({ "sessionId": session, "prompt": prompt })).await;
    client.until_answer(id).await
}

fn refusal(message: &str) -> Reply {
    Reply::error(400, &json!({ "error": { "message": message } }).to_string())
}

/// Returns the images that each request contains.
fn sent(server: &Server) -> Vec<Vec<&'static str>> {
    let contained =
        |text: String| [GOOD, FINE, BAD].into_iter().filter(|image| text.contains(image)).collect();
    server.requests().into_iter().map(|request| contained(request.text)).collect()
}

#[tokio::test]
async fn refused_image_is_left_out_alone() {
    for id in PROVIDERS {
        let answer = || Reply::stream(provider_streams::text(id, "Seen."));
        let bad = || refusal("messages.0.content.1: Could not process image");
        let replies = [bad(), answer(), answer(), answer()];
        let (mut client, server) = asking(id, Setup::default(), replies).await;
        let session = client.session().await;
        let messages = look(&mut client, &session, &[BAD]).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{id}: {messages:#?}");
        assert!(shown(&messages).contains("refuses an image, which is left out"), "{id}: {messages:#?}");
        look(&mut client, &session, &[GOOD]).await;
        let other = client.session().await;
        look(&mut client, &other, &[FINE]).await;
        assert_eq!(sent(&server), [vec![BAD], vec![], vec![GOOD], vec![FINE]], "{id}");
        let second = &server.requests()[1].text;
        assert!(second.contains("image omitted: the model's server cannot process it"), "{id}: {second}");
        client.end().await;
    }
}

#[tokio::test]
async fn refused_image_is_found_among_others() {
    let answer = || Reply::stream(provider_streams::text("openai", "Seen."));
    let bad = || refusal("You uploaded an unsupported image.");
    let replies = [answer(), bad(), bad(), answer(), answer()];
    let (mut client, server) = asking("openai", Setup::default(), replies).await;
    let session = client.session().await;
    look(&mut client, &session, &[FINE]).await;
    look(&mut client, &session, &[BAD, GOOD]).await;
    look(&mut client, &session, &[]).await;
    let expected = [vec![FINE], vec![GOOD, FINE, BAD], vec![FINE, BAD], vec![GOOD, FINE], vec![GOOD, FINE]];
    assert_eq!(sent(&server), expected);
    client.end().await;
}

#[tokio::test]
async fn images_are_left_out_for_good_only_if_the_model_takes_none() {
    let answer = || Reply::stream(provider_streams::text("openai", "Seen."));
    let replies = [refusal("This model does not support images."), answer(), answer()];
    let (mut client, server) = asking("openai", Setup::default(), replies).await;
    let session = client.session().await;
    look(&mut client, &session, &[BAD]).await;
    look(&mut client, &session, &[GOOD]).await;
    assert_eq!(sent(&server), [vec![BAD], vec![], vec![]]);
    assert!(server.requests()[2].text.contains("this model does not accept images"));
    client.end().await;
    // The controls: several images, and an error about something else.
    let (mut client, server) =
        asking("openai", Setup::default(), [refusal("At most 1 image(s) may be provided."), answer()]).await;
    let session = client.session().await;
    look(&mut client, &session, &[BAD, GOOD]).await;
    assert_eq!(sent(&server), [vec![GOOD, BAD], vec![GOOD]]);
    client.end().await;
    let (mut client, server) = asking("openai", Setup::default(), [refusal("odd"), refusal("odd")]).await;
    let session = client.session().await;
    let answer = look(&mut client, &session, &[GOOD]).await.pop().unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().contains("odd"), "{answer}");
    assert_eq!(
        sent(&server),
        [vec![GOOD], vec![]],
        "an error without a cause is tried once without the image"
    );
    client.end().await;
}

#[tokio::test]
async fn older_images_are_left_out_of_a_body_that_is_too_large() {
    let answer = || Reply::stream(provider_streams::text("openai", "Seen."));
    let replies = [answer(), Reply::error(413, "{}"), answer(), Reply::error(413, "{}")];
    let (mut client, server) = asking("openai", Setup::default(), replies).await;
    let session = client.session().await;
    let [old, new] = [1, 2].map(|byte| STANDARD.encode([b"GIF".as_slice(), &vec![byte; 700_000]].concat()));
    look(&mut client, &session, &[&old]).await;
    let messages = look(&mut client, &session, &[&new]).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{:#?}", messages.last());
    let sent = server
        .requests()
        .into_iter()
        .map(|request| (request.text.contains(&old), request.text.contains(&new)));
    assert_eq!(sent.collect::<Vec<_>>(), [(true, false), (true, true), (false, true)]);
    // The control: without an older image, the error remains.
    let other = client.session().await;
    let error = look(&mut client, &other, &[&new]).await.pop().unwrap()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("too l"), "{error}");
    client.end().await;
}

#[tokio::test]
async fn request_has_at_most_a_hundred_images() {
    let replies = [(); 2].map(|()| Reply::stream(provider_streams::text("openai", "Seen.")));
    let (mut client, server) = asking("openai", Setup::default(), replies).await;
    let session = client.session().await;
    look(&mut client, &session, &[GOOD; 100]).await;
    look(&mut client, &session, &[FINE]).await;
    let count = |text: &str, image: &str| text.matches(image).count();
    let sent: Vec<_> = server
        .requests()
        .iter()
        .map(|request| (count(&request.text, GOOD), count(&request.text, FINE)))
        .collect();
    assert_eq!(sent, [(100, 0), (49, 1)]);
    client.end().await;
}

/// An error without a cause would come again with each request of the session.
#[tokio::test]
async fn unexplained_error_leaves_out_the_images_that_are_new() {
    let answer = || Reply::stream(provider_streams::text("openai", "Seen."));
    for (status, message) in [
        (422, "Input should be a valid string: messages.1.content"),
        (400, "qwen3 is not a multimodal model"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
    ] {
        let error = || Reply::error(status, &json!({ "error": { "message": message } }).to_string());
        let (mut client, server) = asking("openai", Setup::default(), [error(), answer(), answer()]).await;
        let session = client.session().await;
        for images in [&[BAD][..], &[]] {
            let messages = look(&mut client, &session, images).await;
            assert_eq!(
                messages.last().unwrap()["result"]["stopReason"],
                "end_turn",
                "{message}: {messages:#?}"
            );
        }
        assert_eq!(sent(&server), [vec![BAD], vec![], vec![]], "{message}");
        client.end().await;
    }
    let error = || refusal("Input should be a valid string: messages.1.content");
    let (mut client, server) = asking("openai", Setup::default(), [answer(), error(), error()]).await;
    let session = client.session().await;
    look(&mut client, &session, &[GOOD]).await;
    let messages = look(&mut client, &session, &[]).await;
    assert!(
        messages.last().unwrap()["error"].is_object(),
        "an image that was taken is not the cause: {messages:#?}"
    );
    assert_eq!(sent(&server), [vec![GOOD], vec![GOOD]]);
    client.end().await;
}

/// Returns a grey PNG image without compression and checksums.
fn png(width: u32, height: u32) -> Vec<u8> {
    let row = [&[0], vec![0x40; width as usize].as_slice()].concat();
    let blocks = row.repeat(height as usize);
    let blocks = blocks.chunks(0xffff).flat_map(|block| {
        let length = u16::try_from(block.len()).unwrap();
        [&[0], &length.to_le_bytes()[..], &(!length).to_le_bytes(), block].concat()
    });
    let data = [vec![0x78, 1], blocks.collect(), vec![1, 0, 0, 0xff, 0xff, 0, 0, 0, 0]].concat();
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        [&u32::try_from(data.len()).unwrap().to_be_bytes()[..], kind, data, &[0; 4]].concat()
    };
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", &data), chunk(b"IEND", &[])].concat();
    [b"\x89PNG\r\n\x1a\n", chunks.as_slice()].concat()
}

/// Returns the types and sizes of the images in a request.
fn sizes(request: &str) -> Vec<(String, usize, usize)> {
    let size = |part: &str| {
        let (kind, data) = part.split_once(";base64,").unwrap();
        let bytes = STANDARD.decode(data.split('"').next().unwrap()).unwrap();
        let edge = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        if kind == "image/png" {
            return (kind.to_owned(), edge(18), edge(22));
        }
        let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        (kind.to_owned(), edge(frame + 7), edge(frame + 5))
    };
    request.split("data:").skip(1).map(size).collect()
}

#[tokio::test]
async fn large_images_of_prompts_and_results_are_scaled_down() {
    let read = provider_streams::reply("openai", "", &[("c1", "read_file", json!({ "path": "wide.png" }))]);
    let replies = [read, provider_streams::text("openai", "Seen.")].map(Reply::stream);
    let (mut client, server) = asking("openai", Setup::default(), replies).await;
    std::fs::write(client.cwd().join("wide.png"), png(5_000, 50)).unwrap();
    let session = client.session().await;
    let large = STANDARD.encode(png(3_000, 300));
    let small = STANDARD.encode(png(30, 20));
    look(&mut client, &session, &[&large, &small]).await;
    let last = server.requests().pop().unwrap().text;
    let image = |kind: &str, width, height| (format!("image/{kind}"), width, height);
    let expected = [image("jpeg", 2_000, 200), image("png", 30, 20), image("jpeg", 2_000, 20)];
    assert_eq!(sizes(&last), expected);
    assert!(last.contains(&small), "the control: what fits is sent as it is");
    assert!(last.contains("scaled from 5000 x 50 to 2000 x 20 pixels"), "{}", last.len());
    client.end().await;
}

#[tokio::test]
async fn image_that_cannot_be_scaled_is_rejected_with_the_reason() {
    let (mut client, server) = asking("openai", Setup::default(), []).await;
    let session = client.session().await;
    let noise = STANDARD.encode(vec![7; 4 * 1024 * 1024]);
    let answer = look(&mut client, &session, &[&noise]).await.pop().unwrap();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("too large, and only PNG and JPEG images are scaled"), "{message}");
    assert!(server.requests().is_empty());
    client.end().await;
}
