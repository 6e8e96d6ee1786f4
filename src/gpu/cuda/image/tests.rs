//! A damaged cache is compiled again.

#![cfg(test)]

use super::*;

#[test]
fn a_damaged_cache_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let get = |image: &'static [u8]| {
        cached_in(folder.path(), "sm_90", "nvrtc 12.8", || Ok::<_, ()>(image.to_vec())).unwrap()
    };
    assert_eq!((get(b"first"), get(b"second")), (b"first".to_vec(), b"first".to_vec()));
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    for damaged in [&b""[..], b"short", b"12345678first"] {
        fs::write(&file, damaged).unwrap();
        assert_eq!((get(b"again"), get(b"unused")), (b"again".to_vec(), b"again".to_vec()));
    }
    let other = cached_in(folder.path(), "sm_80", "nvrtc 12.8", || Err("asked")).unwrap_err();
    assert_eq!(other, "asked", "an architecture has an image of its own");
    let nowhere = file.join("below a file");
    assert_eq!(cached_in(&nowhere, "sm_90", "nvrtc 12.8", || Ok::<_, ()>(vec![1])), Ok(vec![1]));
}
