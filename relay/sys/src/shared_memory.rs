//! Memory shared between processes: memfd regions, which can neither be shrunk nor grown.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, ftruncate, lseek};

use crate::memory::Memory;

/// Creates a region of `bytes` zero bytes that can be neither shrunk nor grown.
///
/// # Errors
/// The system call's.
pub fn create(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&fd, bytes as libc::off_t)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

/// Clears bytes of a region and frees the whole pages among them.
///
/// # Errors
/// The system call's.
pub fn clear(fd: BorrowedFd<'_>, bytes: Range<usize>) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let (start, length) = (bytes.start as libc::off_t, bytes.len() as libc::off_t);
    Ok(fallocate(fd, mode, start, length)?)
}

/// Copies what was written to a region into another one, which is at least as long; unwritten parts take no memory
/// there either.
///
/// # Errors
/// The system call's.
pub fn copy(from: &File, to: BorrowedFd<'_>) -> io::Result<()> {
    let to = File::from(to.try_clone_to_owned()?);
    let mut at = 0;
    loop {
        let start = match lseek(from, at, Whence::SeekData) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = lseek(from, start, Whence::SeekHole)?;
        let mut bytes = vec![0; (at - start) as usize];
        from.read_exact_at(&mut bytes, start as u64)?;
        to.write_all_at(&bytes, start as u64)?;
    }
}

/// Maps the first `bytes` bytes of a region that [`create`] made.
///
/// # Errors
/// The system call's; `EINVAL` for a length of 0, or for anything but a region of at least that length
/// that can never be shrunk: touching missing memory would kill the process.
pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Memory> {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS);
    let length = nix::sys::stat::fstat(fd)?.st_size;
    let is_fixed = seals.is_ok_and(|seals| seals & libc::F_SEAL_SHRINK != 0);
    if !is_fixed || usize::try_from(length).is_ok_and(|length| length < bytes) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Memory::map(fd, bytes)
}

/// A region, for other processes, and its content.
pub type Held<R> = (OwnedFd, R);

/// The content of a region; [`region!`](crate::region) declares it.
pub trait Region: Sized {
    /// The region's name where processes' files are listed.
    const NAME: &CStr;
    /// Its length, which identifies the layout.
    const BYTES: usize;
    /// The same in words.
    const WORDS: usize = Self::BYTES / size_of::<u64>();

    /// Locates the arrays.
    fn of(memory: &Memory) -> Self;

    /// Makes a region of zeros. It is sparse: only what is written takes memory.
    ///
    /// # Errors
    /// The system call's.
    fn create() -> io::Result<Held<Self>> {
        let region = create(Self::NAME, Self::BYTES)?;
        let mapped = Self::map(region.as_fd())?;
        Ok((region, mapped))
    }

    /// Maps a region that another process made.
    ///
    /// # Errors
    /// The system call's.
    fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::of(&map(region, Self::BYTES)?))
    }
}

/// Declares a [`Region`]: its name, and the arrays in it, one behind the other.
#[macro_export]
macro_rules! region {
    (
        $(#[$about:meta])*
        $access:vis struct $type:ident as $name:literal {
            $($(#[$what:meta])* $field_access:vis $field:ident: [$entry:ty; $count:expr],)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        $access struct $type {
            $($(#[$what])* $field_access $field: $crate::memory::Array<$entry>,)+
        }

        const _: () = {
            #[repr(C)]
            struct Layout {
                $($field: [$entry; $count as usize],)+
            }

            impl $crate::shared_memory::Region for $type {
                const NAME: &::std::ffi::CStr = $name;
                const BYTES: usize = size_of::<Layout>();

                fn of(memory: &$crate::memory::Memory) -> Self {
                    Self {
                        $($field: memory.array(
                            ::std::mem::offset_of!(Layout, $field),
                            $count as u32,
                        ),)+
                    }
                }
            }
        };
    };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_see_the_same_words() {
        let region = create(c"mcr-test", 4096).unwrap();
        let words = || map(region.as_fd(), 4096).unwrap().array::<u64>(0, 512);
        let (one, other) = (words(), words());
        one.write(511, &7);
        assert_eq!(other.read(511), 7);
    }

    #[test]
    fn what_is_no_whole_region_is_not_mapped() {
        let region = create(c"mcr-test", 4096).unwrap();
        assert!(map(region.as_fd(), 4097).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(map(file.as_fd(), 4096).is_err());
    }

    #[test]
    fn a_longer_region_takes_what_was_written_and_no_more_memory() {
        use std::os::unix::fs::MetadataExt;

        let short = create(c"mcr-test", 1 << 20).unwrap();
        let long = create(c"mcr-test", 8 << 20).unwrap();
        let short = File::from(short);
        for at in [0, 300_000, (1 << 20) - 1] {
            short.write_all_at(&[7], at).unwrap();
        }
        copy(&short, long.as_fd()).unwrap();
        let long = File::from(long);
        let mut both = [vec![0; 1 << 20], vec![0; 1 << 20]];
        short.read_exact_at(&mut both[0], 0).unwrap();
        long.read_exact_at(&mut both[1], 0).unwrap();
        assert!(both[0] == both[1]);
        assert_eq!(long.metadata().unwrap().len(), 8 << 20);
        let taken = long.metadata().unwrap().blocks() * 512;
        assert!(taken <= 1 << 20, "{taken}");
    }

    #[test]
    fn cleared_bytes_are_zero_and_take_no_memory() {
        use std::os::unix::fs::MetadataExt;

        const BYTES: usize = 8 << 20;
        let region = create(c"mcr-test", BYTES).unwrap();
        let words = map(region.as_fd(), BYTES).unwrap();
        let words = words.array::<u64>(0, (BYTES / 8) as u32);
        for word in words.all() {
            word.store(7, Ordering::Relaxed);
        }
        let file = std::fs::File::from(region);
        let taken = || file.metadata().unwrap().blocks();
        let before = taken();
        clear(file.as_fd(), 512 * 8..BYTES - 8).unwrap();
        // Before the words are read: reading takes memory again.
        let after = taken();
        let values = words.all().iter().map(|w| w.load(Ordering::Relaxed));
        assert_eq!(values.sum::<u64>(), 7 * 513);
        assert!(after < before / 100, "{after} of {before}");
    }

    #[test]
    fn a_region_cannot_be_shrunk_under_its_readers() {
        let region = create(c"mcr-test", 4096).unwrap();
        let file = std::fs::File::from(region);
        assert!(file.set_len(0).is_err());
    }
}
