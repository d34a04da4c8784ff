//! A new migration must be compiled in, and the compiler does not notice new files by itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
