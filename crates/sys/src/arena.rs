//! Memory for a process that lives for a millisecond: taken from one block, and given back at its end.
//!
//! The allocator of musl asks the system for pages again and again, which costs such a process more than its own work.
//! What is large, or no longer fits, is the system allocator's.

#![expect(unsafe_code, reason = "an allocator hands out raw memory")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in the block. They are only touched, and only then take memory, as far as they are handed out.
const SIZE: usize = 1 << 20;
/// From this size on a request is large.
const LARGE: usize = 1 << 16;

/// The allocator, for `#[global_allocator]`.
#[derive(Debug)]
pub struct Arena {
    block: UnsafeCell<Block>,
    /// Bytes handed out so far.
    used: AtomicUsize,
}

#[repr(align(64))]
#[derive(Debug)]
struct Block {
    _bytes: [u8; SIZE],
}

// SAFETY: no byte of the block is handed out twice, since `used` only changes atomically.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of which nothing is used.
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self { block: UnsafeCell::new(Block { _bytes: [0; SIZE] }), used: AtomicUsize::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.block.get().cast()
    }

    /// Distance of `pointer` from the start of the block, if it is in it.
    fn offset(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.start() as usize);
        (offset < SIZE).then_some(offset)
    }

    /// Makes what ends at `end`, if that is the last there is, end at `new_end`.
    fn resize_last(&self, end: usize, new_end: usize) -> bool {
        new_end <= SIZE && self.used.compare_exchange(end, new_end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

// SAFETY: every byte of the block belongs to at most one live allocation; alignment is seen to below; what is not in the
// block came from `System` and goes back there.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut used = self.used.load(Ordering::Relaxed);
        while layout.size() < LARGE && layout.align() <= 64 {
            let begin = used.next_multiple_of(layout.align());
            let end = begin + layout.size();
            if end > SIZE {
                break;
            }
            match self.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: `begin` is within the block.
                Ok(_) => return unsafe { self.start().add(begin) },
                Err(now) => used = now,
            }
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset(pointer) {
            Some(begin) => drop(self.resize_last(begin + layout.size(), begin)),
            // SAFETY: it is not ours, so `System` made it with this layout.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(begin) = self.offset(pointer) else {
            // SAFETY: it is not ours, so `System` made it with this layout.
            return unsafe { System.realloc(pointer, layout, size) };
        };
        if size < LARGE && self.resize_last(begin + layout.size(), begin + size) {
            return pointer;
        }
        // SAFETY: `size` is the caller's, who promises that it is valid with this alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if moved.is_null() {
            return null_mut();
        }
        // SAFETY: both are as long as the shorter of the two sizes, and they do not overlap.
        unsafe { pointer.copy_to_nonoverlapping(moved, layout.size().min(size)) };
        // SAFETY: it was allocated with this layout, and is not used any more.
        unsafe { self.dealloc(pointer, layout) };
        moved
    }
}
