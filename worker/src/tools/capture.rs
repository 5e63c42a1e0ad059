//! Captures a command's output in bounded memory: the head, the tail, and the number of bytes dropped in between.

use std::collections::VecDeque;

/// Bytes kept of the head and of the tail.
const KEPT_BYTES: usize = 32 * 1024;

/// Keeps the head and the tail of any amount of output.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total_bytes: u64,
}

impl Capture {
    /// Appends output.
    pub(crate) fn take(&mut self, chunk: &[u8]) {
        self.total_bytes += chunk.len() as u64;
        let (for_head, rest) = chunk.split_at(chunk.len().min(KEPT_BYTES - self.head.len()));
        self.head.extend_from_slice(for_head);
        let rest = &rest[rest.len().saturating_sub(KEPT_BYTES)..];
        let too_many = (self.tail.len() + rest.len()).saturating_sub(KEPT_BYTES);
        self.tail.drain(..too_many);
        self.tail.extend(rest);
    }

    /// The output as text. Characters that were split by the cut are dropped.
    pub(crate) fn into_text(mut self) -> String {
        let kept = (self.head.len() + self.tail.len()) as u64;
        if kept == self.total_bytes {
            self.head.extend(self.tail);
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        let tail: Vec<u8> = self.tail.into();
        let head = without_cut_end(&self.head);
        let tail = without_cut_start(&tail);
        let dropped = self.total_bytes - (head.len() + tail.len()) as u64;
        format!("{}\n[… {dropped} bytes dropped …]\n{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
    }
}

/// The bytes without a character at their end that is not complete.
pub(super) fn without_cut_end(bytes: &[u8]) -> &[u8] {
    // The last character starts at most three bytes before the last byte, unless this is not UTF-8.
    for back in 1..=bytes.len().min(4) {
        let start = bytes.len() - back;
        if !is_continuation(bytes[start]) {
            let whole = std::str::from_utf8(&bytes[start..]).is_ok();
            return if whole { bytes } else { &bytes[..start] };
        }
    }
    bytes
}

fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let cut = bytes.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
    &bytes[cut..]
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_megabytes_keep_head_and_tail_and_the_dropped_count() {
        let mut capture = Capture::default();
        capture.take(b"first line\n");
        for _ in 0..1_000 {
            capture.take(&[b'x'; 10_000]);
        }
        capture.take(b"\nlast line");
        assert!(capture.head.capacity() + capture.tail.capacity() < 4 * KEPT_BYTES);
        let text = capture.into_text();
        assert!(text.starts_with("first line\n"));
        assert!(text.ends_with("\nlast line"));
        assert!(text.contains("[… 9934485 bytes dropped …]"), "{}", &text[KEPT_BYTES - 10..KEPT_BYTES + 60]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn output_that_fits_is_unchanged(chunks in prop::collection::vec(".{0,200}", 0..40)) {
            let mut capture = Capture::default();
            for chunk in &chunks {
                capture.take(chunk.as_bytes());
            }
            prop_assert_eq!(capture.into_text(), chunks.concat());
        }

        #[test]
        fn a_cut_never_splits_a_character(unit in "[aäß漢🦀]{1,7}", times in 20_000usize..40_000, size in 1usize..70_000) {
            let text = unit.repeat(times);
            let mut capture = Capture::default();
            for chunk in text.as_bytes().chunks(size) {
                capture.take(chunk);
            }
            let kept = capture.into_text();
            prop_assert!(!kept.contains(char::REPLACEMENT_CHARACTER));
            prop_assert!(kept.len() <= 2 * KEPT_BYTES + 60);
        }
    }
}
