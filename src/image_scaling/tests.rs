use super::*;

/// 4,000 x 4 pixels, black but for a row of gray, with filters and compression.
const COMPRESSED: &str = "iVBORw0KGgoAAAANSUhEUgAAD6AAAAAECAIAAAAV2FdEAAAAVUlEQVR42u3aMQEAMAzDsHXIwh9VYTSHBMG3J8kDAAAAAAAAAA\
    AAAIBrXwIAAAAAAAAAAAAAABoY3AEAAAAAAAAAAAAAqGBwBwAAAAAAAAAAAACgwgJThADI3I9WVwAAAABJRU5ErkJggg==";

/// Noise, which hardly compresses, or one colour.
fn pixels(width: u32, height: u32, channels: usize, is_noise: bool) -> Pixels {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if is_noise { state.to_be_bytes()[0] } else { 0x40 }
    };
    let bytes = (0..width as usize * height as usize * channels).map(|_| next()).collect();
    Pixels { size: (width, height), channels, bytes }
}

/// A PNG image without compression. `color` and `depth` are the numbers of the format; the checksums, which the
/// decoder ignores, are 0.
fn png((width, height): (u32, u32), color: u8, depth: u8, pixel: &[u8]) -> Vec<u8> {
    let row = [&[0], pixel.repeat(width as usize).as_slice()].concat();
    let rows = row.repeat(height as usize);
    let mut zlib = vec![0x78, 1];
    for block in rows.chunks(0xffff) {
        let length = u16::try_from(block.len()).unwrap();
        zlib.push(0);
        zlib.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
        zlib.extend(block);
    }
    zlib.extend([1, 0, 0, 0xff, 0xff, 0, 0, 0, 0]);
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, color, 0, 0, 0]].concat();
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        [&u32::try_from(data.len()).unwrap().to_be_bytes()[..], kind, data, &[0; 4]].concat()
    };
    let palette = if color == 3 { chunk(b"PLTE", &[9, 9, 9, 0x40, 0x40, 0x40]) } else { Vec::new() };
    let chunks = [chunk(b"IHDR", &header), palette, chunk(b"IDAT", &zlib), chunk(b"IEND", &[])].concat();
    [b"\x89PNG\r\n\x1a\n", chunks.as_slice()].concat()
}

/// `expected` is the size after scaling, `None` for an image that fits.
fn check(bytes: &[u8], expected: Option<(u32, u32)>) -> Vec<u8> {
    let fitted = fit(&STANDARD.encode(bytes)).unwrap();
    assert_eq!(fitted.as_ref().map(|scaled| scaled.to), expected);
    let Some(scaled) = fitted else { return Vec::new() };
    assert!(scaled.data.len() <= 5 * 1024 * 1024);
    let again = STANDARD.decode(&scaled.data).unwrap();
    assert_eq!(size(&again), expected, "the header says the same");
    assert_eq!(fit(&scaled.data), Ok(None), "what was scaled fits");
    again
}

/// Bytes of a pixel in the middle.
fn middle(jpeg: &[u8]) -> Vec<u8> {
    let (pixels, _) = decode_jpeg(jpeg).unwrap();
    let at = pixels.bytes.len() / pixels.channels / 2 * pixels.channels;
    pixels.bytes[at..at + pixels.channels].to_vec()
}

#[test]
fn images_are_scaled_only_if_they_are_too_large() {
    for (color, depth, pixel, expected) in [
        (0, 8, [0x40].as_slice(), 0x40),
        (0, 16, &[0x40, 0], 0x40),
        (2, 8, &[0x40; 3], 0x40),
        (3, 8, &[1], 0x40),
        (4, 8, &[0, 0xc0], 0x3f),
        (6, 8, &[0, 0, 0, 0], 0xff),
        (6, 16, &[0x40, 0, 0x40, 0, 0x40, 0, 0xff, 0xff], 0x40),
    ] {
        check(&png((2_000, 10), color, depth, pixel), None);
        let scaled = check(&png((4_000, 100), color, depth, pixel), Some((2_000, 50)));
        let is_close = middle(&scaled).iter().all(|byte| byte.abs_diff(expected) <= 2);
        assert!(is_close, "{color} {depth}: {:?}", middle(&scaled));
    }
    check(&STANDARD.decode(COMPRESSED).unwrap(), Some((2_000, 2)));
    for channels in [1, 3] {
        check(&encode(&pixels(300, 2_000, channels, false), None).unwrap(), None);
        check(&encode(&pixels(300, 3_000, channels, false), None).unwrap(), Some((200, 2_000)));
        check(&encode(&pixels(90, 9_000, channels, false), None).unwrap(), Some((20, 2_000)));
    }
    let heavy = png((1_400, 1_000), 2, 8, &[0x40; 3]);
    assert!(heavy.len() > MAX_BYTES);
    check(&heavy, Some((1_400, 1_000)));
}

#[test]
fn image_that_stays_too_large_is_scaled_further() {
    let noise = pixels(2_000, 2_000, 3, true);
    let scaled = scale(&noise, 1_400);
    assert!(
        encode(&noise, None).unwrap().len() > MAX_BYTES && encode(&scaled, None).unwrap().len() <= MAX_BYTES
    );
    check(&encode(&noise, None).unwrap(), Some((1_400, 1_400)));
}

#[test]
fn scaled_pixels_are_means() {
    let source = Pixels { size: (4, 2), channels: 1, bytes: vec![0, 100, 10, 30, 100, 200, 50, 70] };
    let scaled = scale(&source, 2);
    assert_eq!((scaled.size, scaled.bytes), ((2, 1), vec![100, 40]));
    let unchanged = scale(&source, 4);
    assert_eq!((unchanged.size, unchanged.bytes), (source.size, source.bytes));
}

#[test]
fn exif_data_stays_with_a_photo() {
    let exif = b"II*\0\x08\0\0\0\0\0";
    let photo = encode(&pixels(2_500, 20, 3, false), Some(exif)).unwrap();
    let scaled = check(&photo, Some((2_000, 16)));
    assert!(scaled.windows(exif.len() + 6).any(|bytes| bytes[6..] == exif[..] && bytes.starts_with(b"Exif")));
}

#[test]
fn images_that_cannot_be_scaled_are_refused_with_the_reason() {
    let error = |bytes: &[u8]| fit(&STANDARD.encode(bytes)).unwrap_err();
    let mut bomb = png((400, 400), 2, 8, &[0; 3]);
    bomb[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
    assert_eq!(error(&bomb), "it has 16384 x 16384 pixels, too many to scale");
    let mut cut = png((2_500, 20), 2, 8, &[7; 3]);
    cut.truncate(5_000);
    assert!(error(&cut).starts_with("it cannot be read: "), "{}", error(&cut));
    let mut photo = encode(&pixels(2_500, 20, 3, true), None).unwrap();
    photo.truncate(300);
    assert!(error(&photo).starts_with("it cannot be read: "), "{}", error(&photo));
    let gif = |edge: u16| [b"GIF89a".as_slice(), &edge.to_le_bytes(), &edge.to_le_bytes()].concat();
    assert_eq!(error(&gif(9_000)), "only PNG and JPEG images are scaled");
    assert_eq!(fit("no base64"), Err("it is not valid Base64".into()));
    // The controls: of a size that providers take, or of a form that only they can judge.
    check(&gif(7_000), None);
    check(b"GIF", None);
    check(b"\x89PNG broken", None);
    check(&[0xff, 0xd8, 0xff, 0xe0], None);
}

#[test]
fn sizes_are_read_from_headers() {
    let webp = |kind: &[u8; 4], rest: &[u8]| [b"RIFF\0\0\0\0WEBP", &kind[..], &[0; 4], rest].concat();
    for (bytes, expected) in [
        (webp(b"VP8X", &[0, 0, 0, 0, 0x8f, 1, 0, 0x2b, 1, 0]), Some((400, 300))),
        (webp(b"VP8 ", &[0, 0, 0, 0x9d, 1, 0x2a, 0x90, 1, 0x2c, 1]), Some((400, 300))),
        (webp(b"VP8L", &[0x2f, 0x8f, 0xc1, 0x4a, 0]), Some((400, 300))),
        (webp(b"VP8X", &[0]), None),
        (encode(&pixels(30, 20, 1, false), None).unwrap(), Some((30, 20))),
        (png((30, 20), 2, 8, &[0; 3]), Some((30, 20))),
        (b"BM".to_vec(), None),
    ] {
        assert_eq!(size(&bytes), expected);
    }
}
