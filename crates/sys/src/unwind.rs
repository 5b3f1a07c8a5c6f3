//! No unwinding, for programs that abort on a panic: an eighth of such a binary is spared.
//!
//! The standard library can print a stack trace, and links for it a reader of stack frames, one of debug information and
//! one of compressed sections. A stripped program that aborts has neither frames nor symbols to read, but the linker
//! cannot know. Here the functions that such a trace starts from find nothing, so that everything behind them falls
//! away. Their signatures are those of the Itanium C++ ABI, chapter "Exception Handling"; only what the standard
//! library refers to is here.

#![expect(unsafe_code, reason = "functions that replace those of a C library carry its names")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `_URC_END_OF_STACK`: there is nothing to walk.
const END_OF_STACK: c_int = 5;

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_each: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_RaiseException(_exception: *mut c_void) -> c_int {
    END_OF_STACK
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume(_exception: *mut c_void) -> ! {
    std::process::abort()
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_DeleteException(_exception: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_FindEnclosingFunction(_address: *mut c_void) -> *mut c_void {
    null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetLanguageSpecificData(_context: *mut c_void) -> *mut c_void {
    null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetIP(_context: *mut c_void) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetIPInfo(_context: *mut c_void, _before: *mut c_int) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetCFA(_context: *mut c_void) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetRegionStart(_context: *mut c_void) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetTextRelBase(_context: *mut c_void) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetDataRelBase(_context: *mut c_void) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_SetGR(_context: *mut c_void, _index: c_int, _value: usize) {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_SetIP(_context: *mut c_void, _value: usize) {}
