//! Finds the images that a server refuses: leaves them out one by one, then several, then all. Pure.

use std::collections::HashSet;

/// Images that are tried one by one.
const MAX_SINGLE: usize = 8;

/// Meaning of an error about images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRefusal {
    Model,
    /// The model takes at most so many images.
    Count(usize),
    /// One of the images cannot be processed.
    Image,
}

/// Words that need no `image` beside them.
const OF_TEXT_MODELS: [&str; 3] = ["multimodal", "multi-modal", "mmproj"];

const OF_MODEL: [&str; 9] = [
    "not support image",
    "support image input",
    "images are not supported",
    "image input is not",
    "image inputs are not",
    "not accept image",
    "only supported by",
    "unknown variant",
    "not a vision",
];

impl ImageRefusal {
    /// `None` if the error is not about images.
    pub fn of(error: &str) -> Option<Self> {
        let error = error.to_ascii_lowercase();
        if OF_TEXT_MODELS.iter().any(|words| error.contains(words)) {
            return Some(Self::Model);
        }
        if !error.contains("image") {
            return None;
        }
        let rest = error.split_once("at most ").map(|(_, rest)| rest);
        let count = rest.and_then(|rest| rest.split_once(" image")).and_then(|(count, _)| count.parse().ok());
        Some(match count {
            Some(0) => Self::Model,
            Some(count) => Self::Count(count),
            None if OF_MODEL.iter().any(|words| error.contains(words)) => Self::Model,
            None => Self::Image,
        })
    }
}

#[derive(Debug)]
pub struct ImageProbe {
    /// Images that the server has not taken before, newest first, then the others.
    suspects: Vec<u64>,
    tried: usize,
}

impl ImageProbe {
    pub fn new(images: &[u64], accepted: &HashSet<u64>) -> Self {
        let newest_first = images.iter().rev();
        let (mut suspects, accepted): (Vec<u64>, Vec<u64>) =
            newest_first.partition(|image| !accepted.contains(*image));
        suspects.extend(accepted);
        Self { suspects, tried: 0 }
    }
}

/// The images to leave out in each attempt. Ends once all have been left out.
impl Iterator for ImageProbe {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        let single = self.suspects.len().min(MAX_SINGLE);
        let at = self.tried;
        self.tried += 1;
        if at < single {
            return Some(vec![self.suspects[at]]);
        }
        // Two, four, eight …, all.
        let count = 2_usize.checked_pow(u32::try_from(at - single).ok()? + 1)?;
        let is_over = count >= self.suspects.len().saturating_mul(2) || self.suspects.len() < 2;
        (!is_over).then(|| self.suspects[..count.min(self.suspects.len())].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_a_bad_image_from_a_model_without_images() {
        for (error, expected) in [
            ("Could not process image", Some(ImageRefusal::Image)),
            (
                "messages.3.content.1.image.source.base64: image exceeds 5 MB maximum",
                Some(ImageRefusal::Image),
            ),
            ("You uploaded an unsupported image. Formats: png, jpeg, gif, webp", Some(ImageRefusal::Image)),
            ("Unable to process input image", Some(ImageRefusal::Image)),
            ("At most 1 image(s) may be provided in one prompt.", Some(ImageRefusal::Count(1))),
            ("At most 0 image(s) may be provided in one prompt.", Some(ImageRefusal::Model)),
            ("No endpoints found that support image input", Some(ImageRefusal::Model)),
            ("unknown variant `image_url`, expected `text`", Some(ImageRefusal::Model)),
            ("This model does not support images.", Some(ImageRefusal::Model)),
            ("qwen3 is not a multimodal model", Some(ImageRefusal::Model)),
            (
                "image input is not supported - hint: you may need to provide the mmproj",
                Some(ImageRefusal::Model),
            ),
            ("Input should be a valid string", None),
            ("Invalid 'tools'", None),
        ] {
            assert_eq!(ImageRefusal::of(error), expected, "{error}");
        }
    }

    #[test]
    fn images_are_left_out_one_by_one_and_then_together() {
        let all = |images: &[u64], accepted: &[u64]| {
            ImageProbe::new(images, &accepted.iter().copied().collect()).collect::<Vec<_>>()
        };
        assert_eq!(all(&[1], &[]), [vec![1]]);
        assert_eq!(all(&[1, 2, 3], &[1, 2]), [vec![3], vec![2], vec![1], vec![3, 2], vec![3, 2, 1]]);
        let many: Vec<u64> = (0..20).collect();
        let tried = all(&many, &[]);
        assert_eq!(tried.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 20]);
        assert_eq!(all(&[], &[]), Vec::<Vec<u64>>::new());
    }

    #[test]
    fn every_bad_image_is_left_out_and_a_single_one_alone() {
        for count in 1..=6_u64 {
            let images: Vec<u64> = (0..count).collect();
            for bad in 1..1_u64 << count {
                let is_bad = |image: &u64| bad >> image & 1 == 1;
                let left_out = ImageProbe::new(&images, &HashSet::new())
                    .find(|left_out| !images.iter().any(|image| is_bad(image) && !left_out.contains(image)));
                let left_out = left_out.expect("the request is taken in the end");
                assert!(bad.count_ones() > 1 || left_out.len() == 1, "{bad:b}: {left_out:?}");
            }
        }
    }
}
