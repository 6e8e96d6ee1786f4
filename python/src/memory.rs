//! Memory of this module that a device of another library reads and writes: page-locked.
//!
//! What is page-locked must not be freed: another owner of the same addresses would be read and
//! written where its numbers are not. So the allocator keeps what its owner frees while it is held
//! here, until it is let go.

#![expect(unsafe_code, reason = "an allocator is unsafe")]

use crate::arguments::lock;
use pyo3::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks of fewer bytes are never held: they are freed without a look.
const LEAST: usize = 1024;

/// Whether anything is held, or was.
static ANY: AtomicBool = AtomicBool::new(false);

/// Blocks that are held by their addresses, with the layout of those that their owner has freed.
static HELD: Mutex<BTreeMap<usize, Option<Layout>>> = Mutex::new(BTreeMap::new());

/// The system's allocator, which keeps what is held.
pub(crate) struct KeepingAllocator;

#[global_allocator]
static ALLOCATOR: KeepingAllocator = KeepingAllocator;

impl KeepingAllocator {
    /// Takes in that a block's owner frees it; whether it is kept.
    fn keeps(block: *mut u8, layout: Layout) -> bool {
        if layout.size() < LEAST || !ANY.load(Ordering::Acquire) {
            return false;
        }
        match lock(&HELD).get_mut(&block.addr()) {
            Some(freed) => *freed = Some(layout),
            None => return false,
        }
        true
    }
}

// SAFETY: every block is the system allocator's, with the layout that it was asked for, and is given
// back to it once: by its owner, or by `let_go` after its owner.
unsafe impl GlobalAlloc for KeepingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !Self::keeps(block, layout) {
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() < LEAST || !ANY.load(Ordering::Acquire) {
            // SAFETY: as the caller promises.
            return unsafe { System.realloc(block, layout, size) };
        }
        // A block that is held stays where it is.
        // SAFETY: the caller promises that the new size fits the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller promises; both blocks have as many bytes as are copied.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                std::ptr::copy_nonoverlapping(block, to, layout.size().min(size));
                self.dealloc(block, layout);
            }
            to
        }
    }
}

/// Keeps a block of so many bytes from being freed, until it is let go; false if it is too small to
/// be kept.
#[pyfunction]
pub(crate) fn hold(address: usize, bytes: usize) -> bool {
    ANY.store(true, Ordering::Release);
    if bytes >= LEAST {
        lock(&HELD).entry(address).or_insert(None);
    }
    bytes >= LEAST
}

/// Addresses that are held, and were freed by their owners.
#[pyfunction]
pub(crate) fn freed() -> Vec<usize> {
    let held = lock(&HELD);
    // To grow it would free memory, and come back to the lock.
    let mut found = Vec::with_capacity(held.len());
    found.extend(held.iter().filter(|(_, freed)| freed.is_some()).map(|(address, _)| *address));
    found
}

/// Holds the memory at an address no longer: frees it, if its owner has done so.
#[pyfunction]
pub(crate) fn let_go(address: usize) {
    let held = lock(&HELD).remove(&address);
    if let Some(Some(layout)) = held {
        // SAFETY: its owner has freed this block of the system's allocator, with this layout, and it
        // was kept since.
        unsafe { System.dealloc(std::ptr::with_exposed_provenance_mut(address), layout) }
    }
}
