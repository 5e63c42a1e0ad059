//! The World harness that the stories, rings and fault tests share.
