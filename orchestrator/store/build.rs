//! Makes Cargo compile the crate again when a migration is added or changed: `sqlx::migrate!` reads them at compile
//! time.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}
