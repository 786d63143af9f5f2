//! The memory that the program and user space share: its layout, and each kind of map as a type.

pub mod flows;
pub mod layout;
pub mod map;
pub mod mapped;
