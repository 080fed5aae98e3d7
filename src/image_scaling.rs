//! Scales images down to a size that every provider takes. The only module that decodes images. Pure.
//!
//! PNG and JPEG images are scaled, and become JPEG images. GIF and WebP images are passed on as they are, or
//! refused if they are too large. An image that is small enough is never decoded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jpeg_decoder::PixelFormat;
use jpeg_encoder::ColorType;

/// Maximum bytes of an image: 5 MiB in Base64.
pub const MAX_BYTES: usize = 3840 * 1024;

/// Longest edge in pixels. With many images in a request, Anthropic takes no more.
pub const MAX_EDGE: u16 = 2_000;

/// Longest edge of an image that is not scaled because of its format.
const MAX_UNSCALED_EDGE: u16 = 8_000;

/// Maximum bytes of the decoded pixels: 50 million of four bytes.
const MAX_DECODED: usize = 200_000_000;

/// Longest edges that are tried until the image is small enough.
const EDGES: [u16; 4] = [MAX_EDGE, 1_400, 1_000, 700];

/// From 90 on, the encoder keeps all colours, which coloured text needs.
const QUALITY: u8 = 90;

pub const SCALED_TYPE: &str = "image/jpeg";

/// A smaller image in the place of one that was too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaled {
    /// A JPEG image in Base64.
    pub data: String,
    /// Width and height before and after, in pixels.
    pub from: (u32, u32),
    pub to: (u32, u32),
}

/// Pixels with `channels` bytes each: one for grey, three for colours.
struct Pixels {
    size: (u32, u32),
    channels: usize,
    bytes: Vec<u8>,
}

/// Returns `None` if the image is small enough, or of a form that only its provider can judge. The error is a
/// phrase.
pub fn fit(data: &str) -> Result<Option<Scaled>, String> {
    let bytes = STANDARD.decode(data).map_err(|_| "it is not valid Base64".to_owned())?;
    let is_light = bytes.len() <= MAX_BYTES;
    let size = size(&bytes);
    let is_within =
        |edge: u16| is_light && size.is_none_or(|(width, height)| width.max(height) <= edge.into());
    if is_within(MAX_EDGE) {
        return Ok(None);
    }
    let (pixels, exif) = match bytes[..] {
        [0x89, b'P', b'N', b'G', ..] => (decode_png(&bytes)?, None),
        [0xff, 0xd8, 0xff, ..] => decode_jpeg(&bytes)?,
        _ if is_within(MAX_UNSCALED_EDGE) => return Ok(None),
        _ => return Err("only PNG and JPEG images are scaled".into()),
    };
    for edge in EDGES {
        let scaled = scale(&pixels, edge);
        let encoded = encode(&scaled, exif.as_deref())?;
        if encoded.len() <= MAX_BYTES {
            let data = STANDARD.encode(encoded);
            return Ok(Some(Scaled { data, from: size.unwrap_or(pixels.size), to: scaled.size }));
        }
    }
    Err("it stays too large".into())
}

/// Width and height from the header. `None` if the format is unknown or the header broken.
fn size(bytes: &[u8]) -> Option<(u32, u32)> {
    let short = |at: usize| Some(u32::from(u16::from_le_bytes(bytes_at(bytes, at)?)));
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => {
            Some((u32::from_be_bytes(bytes_at(bytes, 16)?), u32::from_be_bytes(bytes_at(bytes, 20)?)))
        }
        [b'G', b'I', b'F', b'8', ..] => Some((short(6)?, short(8)?)),
        [0xff, 0xd8, 0xff, ..] => jpeg_size(bytes),
        [b'R', b'I', b'F', b'F', ..] if bytes.get(12..16)? == b"VP8X" => {
            let [width, height] =
                [24, 27].map(|at| Some(short(at)? + (u32::from(*bytes.get(at + 2)?) << 16) + 1));
            width.zip(height)
        }
        [b'R', b'I', b'F', b'F', ..] if bytes.get(12..16)? == b"VP8 " => {
            Some((short(26)? & 0x3fff, short(28)? & 0x3fff))
        }
        [b'R', b'I', b'F', b'F', ..] if bytes.get(12..16)? == b"VP8L" => {
            let bits = u32::from_le_bytes(bytes_at(bytes, 21)?);
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        _ => None,
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Finds the frame header behind the other segments.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let [0xff, marker] = *bytes.get(at..at + 2)? else { return None };
        match marker {
            0xff => at += 1,
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let [height, width] = [at + 5, at + 7].map(|at| bytes_at(bytes, at).map(u16::from_be_bytes));
                return Some((width?.into(), height?.into()));
            }
            0x01 | 0xd0..=0xd8 => at += 2,
            _ => at += 2 + usize::from(u16::from_be_bytes(bytes_at(bytes, at + 2)?)),
        }
    }
}

fn check_pixels((width, height): (u32, u32), decoded: usize) -> Result<(), String> {
    if decoded > MAX_DECODED {
        return Err(format!("it has {width} x {height} pixels, too many to scale"));
    }
    Ok(())
}

/// Transparent parts become white.
fn decode_png(bytes: &[u8]) -> Result<Pixels, String> {
    let header = minipng::decode_png_header(bytes).map_err(unreadable)?;
    let size = (header.width(), header.height());
    check_pixels(size, header.required_bytes_rgba8bpc())?;
    let mut buffer = vec![0; header.required_bytes_rgba8bpc()];
    let mut image = minipng::decode_png(bytes, &mut buffer).map_err(unreadable)?;
    image.convert_to_rgba8bpc().map_err(unreadable)?;
    let bytes = image.pixels().chunks_exact(4).flat_map(opaque_pixel).collect();
    Ok(Pixels { size, channels: 3, bytes })
}

fn opaque_pixel(pixel: &[u8]) -> [u8; 3] {
    let alpha = u16::from(pixel[3]);
    [pixel[0], pixel[1], pixel[2]].map(|color| {
        let mixed = (u16::from(color) * alpha + 255 * (255 - alpha)) / 255;
        u8::try_from(mixed).expect("a mean of two bytes is a byte")
    })
}

/// Also returns the EXIF data, which says how the image is turned.
fn decode_jpeg(bytes: &[u8]) -> Result<(Pixels, Option<Vec<u8>>), String> {
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    decoder.read_info().map_err(unreadable)?;
    let info = decoder.info().ok_or("it has no size")?;
    let size = (u32::from(info.width), u32::from(info.height));
    check_pixels(size, 4 * usize::from(info.width) * usize::from(info.height))?;
    let channels = match info.pixel_format {
        PixelFormat::L8 => 1,
        PixelFormat::RGB24 => 3,
        PixelFormat::L16 | PixelFormat::CMYK32 => return Err("its colours cannot be scaled".into()),
    };
    // Halves the image while its longest edge stays above the limit, which saves time and memory.
    let (width, height) = decoder.scale(MAX_EDGE, MAX_EDGE).map_err(unreadable)?;
    let pixels = decoder.decode().map_err(unreadable)?;
    let exif = decoder.exif_data().map(<[u8]>::to_vec);
    Ok((Pixels { size: (width.into(), height.into()), channels, bytes: pixels }, exif))
}

fn unreadable(error: impl std::fmt::Display) -> String {
    format!("it cannot be read: {error}")
}

/// Makes each pixel the mean of those that it replaces. An image without a longer edge stays as it is.
fn scale(pixels: &Pixels, edge: u16) -> Pixels {
    let Pixels { size: (width, height), channels, ref bytes } = *pixels;
    let (longest, edge) = (width.max(height), u32::from(edge).min(width.max(height)));
    let [new_width, new_height] = [width, height].map(|length| {
        let length = u64::from(length) * u64::from(edge) / u64::from(longest);
        u32::try_from(length.max(1)).expect("it is at most the old length")
    });
    let mut scaled = Vec::with_capacity(new_width as usize * new_height as usize * channels);
    for y in 0..new_height {
        let rows = replaced_range(y, height, new_height);
        for x in 0..new_width {
            let columns = replaced_range(x, width, new_width);
            let mut sums = [0_u64; 3];
            for row in rows.clone() {
                let start = (row * width as usize + columns.start) * channels;
                for pixel in bytes[start..start + columns.len() * channels].chunks_exact(channels) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, byte)| *sum += u64::from(*byte));
                }
            }
            let count = (rows.len() * columns.len()) as u64;
            scaled.extend(
                sums[..channels]
                    .iter()
                    .map(|sum| u8::try_from(sum / count).expect("a mean of bytes is a byte")),
            );
        }
    }
    Pixels { size: (new_width, new_height), channels, bytes: scaled }
}

/// The old pixels, along one edge, that the new pixel `at` replaces.
fn replaced_range(at: u32, old: u32, new: u32) -> std::ops::Range<usize> {
    let [start, end] = [at, at + 1].map(|at| at as usize * old as usize / new as usize);
    start..end.max(start + 1)
}

fn encode(pixels: &Pixels, exif: Option<&[u8]>) -> Result<Vec<u8>, String> {
    let failed = |error: jpeg_encoder::EncodingError| format!("it cannot be written: {error}");
    let [width, height] = [pixels.size.0, pixels.size.1]
        .map(|edge| u16::try_from(edge).expect("the longest edge is at most `MAX_EDGE`"));
    let mut encoded = Vec::new();
    let mut writer = jpeg_encoder::Encoder::new(&mut encoded, QUALITY);
    // Without its EXIF data, a photo could be turned.
    if let Some(exif) = exif.filter(|exif| exif.len() < 60_000) {
        writer.add_app_segment(1, [b"Exif\0\0", exif].concat()).map_err(failed)?;
    }
    let color = if pixels.channels == 1 { ColorType::Luma } else { ColorType::Rgb };
    writer.encode(&pixels.bytes, width, height, color).map_err(failed)?;
    Ok(encoded)
}

#[cfg(test)]
mod tests;
