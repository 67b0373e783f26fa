//! The one block of memory that a session uses.

use core::cell::UnsafeCell;

use bytemuck::AnyBitPattern;

/// Alignment of an arena in bytes.
pub const ARENA_ALIGN: usize = 16;

/// Memory for one session in a `static`, handed out once.
///
/// ```
/// use runtime::StaticArena;
///
/// static ARENA: StaticArena<1024> = StaticArena::new();
/// let bytes = ARENA.take().unwrap();
/// assert_eq!(bytes.len(), 1024);
/// assert!(ARENA.take().is_none());
/// ```
///
/// `take` needs feature `critical-section` where the core has no atomic swap (thumbv6m, riscv32imc).
#[repr(C, align(16))]
pub struct StaticArena<const LEN: usize> {
    bytes: UnsafeCell<[u8; LEN]>,
    taken: Taken,
}

// SAFETY: `taken` lets one caller at most, ever, have a reference to `bytes`.
unsafe impl<const LEN: usize> Sync for StaticArena<LEN> {}

impl<const LEN: usize> Default for StaticArena<LEN> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const LEN: usize> StaticArena<LEN> {
    /// An arena that nobody has taken.
    pub const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; LEN]), taken: Taken::new() }
    }

    /// The memory, the first time; `None` after that.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    #[allow(clippy::mut_from_ref, reason = "the first caller alone gets the reference")]
    pub fn take(&'static self) -> Option<&'static mut [u8; LEN]> {
        if self.taken.swap() {
            return None;
        }
        // SAFETY: `swap` answered `false`, which it does once, so this is the only reference.
        Some(unsafe { &mut *self.bytes.get() })
    }
}

#[cfg(target_has_atomic = "8")]
struct Taken(core::sync::atomic::AtomicBool);

#[cfg(target_has_atomic = "8")]
impl Taken {
    const fn new() -> Self {
        Self(core::sync::atomic::AtomicBool::new(false))
    }

    fn swap(&self) -> bool {
        self.0.swap(true, core::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(not(target_has_atomic = "8"))]
struct Taken(#[cfg_attr(not(feature = "critical-section"), allow(dead_code))] UnsafeCell<bool>);

#[cfg(not(target_has_atomic = "8"))]
impl Taken {
    const fn new() -> Self {
        Self(UnsafeCell::new(false))
    }

    #[cfg(feature = "critical-section")]
    fn swap(&self) -> bool {
        critical_section::with(|_| {
            // SAFETY: inside a critical section, and the cell is touched nowhere else.
            unsafe { self.0.get().replace(true) }
        })
    }
}

/// Hands out the front of a block of memory, piece by piece.
pub(crate) struct Carver<'a> {
    rest: &'a mut [u8],
}

impl<'a> Carver<'a> {
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` elements, whatever bytes they hold.
    ///
    /// Empty where the memory is used up, which the plan excludes; a test runs every model at its
    /// exact arena length.
    #[inline(never)]
    pub fn take<T: AnyBitPattern + bytemuck::NoUninit>(&mut self, len: usize) -> &'a mut [T] {
        bytemuck::try_cast_slice_mut(self.take_elements(len, size_of::<T>())).unwrap_or_default()
    }

    /// The next `len` bytes.
    pub fn take_bytes(&mut self, len: usize) -> &'a mut [u8] {
        self.take_elements(len, 1)
    }

    /// Not inlined, since every type of element shares it.
    #[inline(never)]
    fn take_elements(&mut self, len: usize, size: usize) -> &'a mut [u8] {
        let bytes = len.wrapping_mul(size);
        let stride = crate::plan::padded(bytes);
        let piece = match core::mem::take(&mut self.rest).split_at_mut_checked(stride) {
            Some((piece, rest)) => {
                self.rest = rest;
                piece.get_mut(..bytes)
            }
            None => None,
        };
        debug_assert!(piece.is_some(), "the plan is too small");
        piece.unwrap_or_default()
    }

    /// All that is left.
    pub fn take_rest(self) -> &'a mut [u8] {
        self.rest
    }
}
