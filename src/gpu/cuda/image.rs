//! The kernels' source text, and the disk cache of what was compiled from it.

use crate::files;
use std::path::{Path, PathBuf};
use std::{env, fs, process};
use xxhash_rust::xxh3::xxh3_64;

/// All kernels as one text, which names no header.
pub(super) const SOURCE: &str = concat!(
    include_str!("../kernels/numbers.cuh"),
    include_str!("../kernels/combine.cu"),
    include_str!("../kernels/cast.cu"),
    include_str!("../kernels/fold.cu"),
    include_str!("../kernels/scan.cu"),
    include_str!("../kernels/adamw.cu"),
    include_str!("../kernels/digest.cu"),
);

/// What every architecture is compiled with: no contraction to fused multiply-adds.
pub(super) const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Many times what the kernels are compiled to.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Where images are kept: `$CODEDGRAD_CACHE`, or `codedgrad` in `$XDG_CACHE_HOME` or `~/.cache`.
fn folder() -> Option<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("CODEDGRAD_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|folder| folder.join("codedgrad")))
        .or_else(|| var("HOME").map(|folder| folder.join(".cache/codedgrad")))
}

/// The image for an architecture (`sm_90`), from the cache or else compiled and put there.
/// `compiler` names the compiler and its version. A cache that cannot be read or written costs the
/// time to compile, nothing else.
pub(super) fn cached<E>(
    arch: &str,
    compiler: &str,
    compile: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let Some(folder) = folder() else { return compile() };
    cached_in(&folder, arch, compiler, compile)
}

fn cached_in<E>(
    folder: &Path,
    arch: &str,
    compiler: &str,
    compile: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let key = xxh3_64([SOURCE, &OPTIONS.join(" "), arch, compiler].join("\0").as_bytes());
    let path = folder.join(format!("{arch}-{key:016x}.cubin"));
    if let Some(image) = files::read(&path, IMAGE_BYTES_MAX).ok().and_then(unsealed) {
        return Ok(image);
    }
    let image = compile()?;
    if let Err(error) = keep(&path, &image) {
        tracing::debug!("the compiled kernels are not kept in {}: {error}", path.display());
    }
    Ok(image)
}

/// An image that carries its own checksum in its first eight bytes.
fn unsealed(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let (checksum, image) = file.split_at_checked(8)?;
    let good = checksum == xxh3_64(image).to_le_bytes();
    good.then(|| file.split_off(8))
}

fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let unfinished = path.with_extension(format!("{}.part", process::id()));
    files::write(&unfinished, &[&xxh3_64(image).to_le_bytes(), image].concat())?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests;
