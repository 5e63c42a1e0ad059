//! Whether the target of a symbolic link stays inside the workspace.
//!
//! Pure.

use std::ffi::OsString;

/// `PATH_MAX`, which includes the final NUL.
const PATH_MAX: usize = 4096;

/// The target of a link that lies `depth` directories below the top, if it cannot lead out of the workspace: relative,
/// with `..` only at its beginning and at most `depth` times. A `..` after a name could lead out through another link.
pub(super) fn confined(target: Vec<u8>, depth: usize) -> Option<OsString> {
    let target = String::from_utf8(target).ok()?;
    let ascents = target.split('/').take_while(|name| *name == "..").count();
    let mut rest = target.split('/').skip(ascents).enumerate();
    let is_descending = rest.all(|(index, name)| match name {
        ".." => false,
        // `dir/` and `../` end with an empty component; one at the beginning makes the target absolute.
        "" => index > 0 || ascents > 0,
        _ => true,
    });
    let is_valid = !target.is_empty() && target.len() < PATH_MAX && !target.contains('\0');
    (is_descending && is_valid && ascents <= depth).then(|| target.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::sibling("x", 0, true)]
    #[case::descendant("a/b", 0, true)]
    #[case::directory("a/", 0, true)]
    #[case::parent("../x", 1, true)]
    #[case::top("../..", 2, true)]
    #[case::top_with_slash("../", 1, true)]
    #[case::above_top("../x", 0, false)]
    #[case::far_above_top("../../x", 1, false)]
    #[case::absolute("/etc/passwd", 3, false)]
    #[case::parent_of_a_name("a/../x", 3, false)]
    #[case::empty("", 3, false)]
    fn targets_ascend_only_at_their_beginning(#[case] target: &str, #[case] depth: usize, #[case] is_confined: bool) {
        assert_eq!(confined(target.into(), depth).is_some(), is_confined);
    }

    proptest! {
        #[test]
        fn confined_targets_never_ascend_above_the_top(target in "(\\.\\./|\\.\\.|a/|a|/|\\./){0,6}", depth in 0_usize..4) {
            if confined(target.clone().into_bytes(), depth).is_some() {
                let mut level = isize::try_from(depth).unwrap();
                prop_assert!(!target.starts_with('/'));
                for name in target.split('/') {
                    level += match name { ".." => -1, "" | "." => 0, _ => 1 };
                    prop_assert!(level >= 0, "{target:?} from {depth}");
                }
            }
        }
    }
}
