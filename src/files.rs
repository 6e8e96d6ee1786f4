//! Files that users name: each is looked at before it is opened, and read up to a bound.
//!
//! A path alone may hold a process for ever: opening a pipe waits for its other end, and a device
//! such as `/dev/zero` has no end.

use crate::cells::no_text;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// What is read up to a bound, beyond which reading is an error.
///
/// ```
/// use codedgrad::files::BoundedReader;
/// use std::io::Read;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("table.csv");
/// std::fs::write(&path, "0.5,1\n")?;
/// let mut text = String::new();
/// BoundedReader::open(&path, 6)?.read_to_string(&mut text)?;
/// assert_eq!(text, "0.5,1\n");
/// let error = BoundedReader::open(&path, 5).unwrap_err();
/// assert!(error.to_string().contains("more than 5 bytes"));
/// let error = BoundedReader::open(folder.path(), 5).unwrap_err();
/// assert!(error.to_string().contains("it is a folder"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct BoundedReader<R> {
    input: R,
    most: u64,
    left: u64,
}

impl BoundedReader<File> {
    /// A regular file of at most `most` bytes, and nothing else.
    ///
    /// # Errors
    /// An error that says what the file is, or how long it may be.
    pub fn open(path: &Path, most: u64) -> io::Result<Self> {
        Self::of_file(open_regular(path, File::options().read(true))?, most)
    }

    /// The same, or a pipe, such as `/dev/stdin`: opening and reading it wait for its writer.
    ///
    /// # Errors
    /// As [`BoundedReader::open`].
    pub fn open_or_wait(path: &Path, most: u64) -> io::Result<Self> {
        if is_pipe(fs::metadata(path)?.file_type()) {
            return Self::of_file(File::open(path)?, most);
        }
        Self::open(path, most)
    }

    fn of_file(file: File, most: u64) -> io::Result<Self> {
        let input = Self::new(file, most);
        if input.metadata()?.len() > most { Err(input.too_long()) } else { Ok(input) }
    }

    /// What the system says of it.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.input.metadata()
    }
}

impl<R> BoundedReader<R> {
    /// At most `most` bytes of anything.
    pub fn new(input: R, most: u64) -> Self {
        Self { input, most, left: most }
    }

    fn too_long(&self) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "it has more than {} bytes, the most that may be read here: shorten it, or name \
                 the right file",
                self.most
            ),
        )
    }
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        // A pipe has no length, and other files may have grown since they were opened.
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| self.too_long())?;
        Ok(read)
    }
}

impl<R: Seek> Seek for BoundedReader<R> {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        let place = self.input.seek(place)?;
        self.left = self.most.saturating_sub(place);
        Ok(place)
    }
}

/// How a file is opened: by [`BoundedReader::open`], or, where it is read once, by
/// [`BoundedReader::open_or_wait`].
pub type Opener = fn(&Path, u64) -> io::Result<BoundedReader<File>>;

/// All of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`BoundedReader::open`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = BoundedReader::open(path, most)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len() as usize);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same of a file that holds text.
///
/// # Errors
/// As [`BoundedReader::open`], and if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let what = no_text(error.as_bytes());
        let what = what.map_or_else(|| "it is not text".into(), |what| format!("it is {what}"));
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Opens a regular file, and nothing else, as `options` say.
///
/// # Errors
/// An error that says what the file is.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Even opening a device may do something.
    if let Ok(found) = fs::metadata(path) {
        check(found.file_type())?;
    }
    // It may be another one by now, and a pipe without a writer would be waited for.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens an empty regular file to write to, new or in the place of what is there.
///
/// # Errors
/// As [`open_regular`].
pub fn create(path: &Path) -> io::Result<File> {
    open_regular(path, File::options().write(true).create(true).truncate(true))
}

/// Writes a regular file, new or in the place of what is there.
///
/// # Errors
/// As [`open_regular`], and if it cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

fn check(found: FileType) -> io::Result<()> {
    let what = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => "a folder",
        found if is_pipe(found) => "a pipe",
        _ => "a device or a socket",
    };
    let problem = format!("it is {what}, where a regular file is needed");
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

#[cfg(unix)]
fn is_pipe(found: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&found)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests;
