//! Programs that run as guests of the executable `anyring`.

mod common;
mod go;
mod hot;
mod programs;
mod refused;
mod run;
mod zig;
