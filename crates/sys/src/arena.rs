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
/// Alignment of the block, the largest that a place in it can have.
const ALIGNMENT: usize = 64;

/// The allocator, for `#[global_allocator]`.
#[derive(Debug)]
pub struct Arena {
    block: UnsafeCell<Block>,
    /// Bytes handed out so far.
    used: AtomicUsize,
    /// Most bytes that were ever handed out. What lies beyond them is still zero.
    touched: AtomicUsize,
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
        Self {
            block: UnsafeCell::new(Block { _bytes: [0; SIZE] }),
            used: AtomicUsize::new(0),
            touched: AtomicUsize::new(0),
        }
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
        let resized =
            new_end <= SIZE && self.used.compare_exchange(end, new_end, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if resized {
            self.touched.fetch_max(new_end, Ordering::AcqRel);
        }
        resized
    }

    /// A place in the block, and whether it was never handed out before; `None` when it is too large or does not fit.
    fn take(&self, layout: Layout) -> Option<(*mut u8, bool)> {
        if layout.size() >= LARGE || layout.align() > ALIGNMENT {
            return None;
        }
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let begin = used.next_multiple_of(layout.align());
            let end = Some(begin + layout.size()).filter(|end| *end <= SIZE)?;
            match self.used.compare_exchange_weak(used, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    let fresh = self.touched.fetch_max(end, Ordering::AcqRel) <= begin;
                    return Some((self.start().wrapping_add(begin), fresh));
                }
                Err(now) => used = now,
            }
        }
    }
}

// SAFETY: every byte of the block belongs to at most one live allocation; alignment is seen to below; what is not in the
// block came from `System` and goes back there.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some((place, _)) => place,
            // SAFETY: the caller's promise about `layout` is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some((place, true)) => place,
            Some((place, false)) => {
                // SAFETY: the place is as long as `layout` says.
                unsafe { place.write_bytes(0, layout.size()) };
                place
            }
            // SAFETY: the caller's promise about `layout` is passed on.
            None => unsafe { System.alloc_zeroed(layout) },
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_what_is_given_back_last_is_used_again() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: sizes are not zero, and every place is used within its size.
        unsafe {
            let first = arena.alloc(layout(3, 1));
            let second = arena.alloc(layout(8, 8));
            first.write_bytes(1, 3);
            second.write_bytes(2, 8);
            assert_eq!((first as usize + 8, *first.add(2)), (second as usize, 1));
            // The last one grows where it is, another one moves with its content.
            assert_eq!(arena.realloc(second, layout(8, 8), 100), second);
            let moved = arena.realloc(first, layout(3, 1), 10);
            assert!(moved as usize >= second as usize + 100 && *moved.add(2) == 1);
            arena.dealloc(moved, layout(10, 1));
            assert_eq!(arena.alloc(layout(1, 1)), moved);
        }
    }

    #[test]
    fn zeroed_memory_is_zero_also_where_something_was() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let layout = Layout::from_size_align(64, 8).unwrap();
        for _ in 0..3 {
            // SAFETY: the size is not zero, and the place is used within it.
            unsafe {
                let place = arena.alloc_zeroed(layout);
                assert!((0..64).all(|at| *place.add(at) == 0));
                place.write_bytes(7, 64);
                arena.dealloc(place, layout);
            }
        }
    }

    #[test]
    fn what_is_large_or_does_not_fit_comes_from_the_system() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let large = Layout::from_size_align(LARGE, 8).unwrap();
        let small = Layout::from_size_align(LARGE - 1, 1).unwrap();
        // SAFETY: sizes are not zero, and each place goes back with its layout.
        unsafe {
            let places: Vec<_> = (0..SIZE / LARGE + 2).map(|_| arena.alloc(small)).collect();
            assert_eq!(places.iter().filter(|place| arena.offset(**place).is_none()).count(), 2);
            let place = arena.alloc(large);
            assert!(arena.offset(place).is_none() && !place.is_null());
            arena.dealloc(place, large);
            places.into_iter().for_each(|place| arena.dealloc(place, small));
        }
    }
}
